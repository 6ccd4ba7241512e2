"""Flat clipping: bound the norm of one sample's gradient over all parameters.

Place: gradients -> [clipping.flat] -> estimators. Norms and weights are both private.
Source: Abadi et al. (2016), Algorithm 1, https://arxiv.org/abs/1607.00133.
Differs from it in two points: a sample whose norm is not finite counts as zero, and weights respect their bound after
rounding. A weight is a quotient C / n computed in floating point, and the product of weight and gradient is rounded
again. Neither rounding may carry the contribution past C.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from tacita._validate import threshold as checked_threshold
from tacita.clipping.clipper import Clipper


@dataclass(frozen=True, kw_only=True)
class FlatClipper(Clipper):
    r"""Weight each sample by :math:`\min(1, C / \lVert g_i \rVert_2)`; the norm is over all parameters together.

    Guarantee: one sample adds a vector of L2 norm at most ``max_grad_norm`` to the weighted sum, whatever its gradient
    holds; the rounding of the weight and of its product with the gradient is included.

    Attributes:
        max_grad_norm: Clipping threshold C, finite and >= 2^-40, in the gradient's units.

    Example:
        >>> FlatClipper(max_grad_norm=1.0).weights(torch.tensor([[0.5], [4.0], [torch.inf]]))
        tensor([[1.0000],
                [0.2500],
                [0.0000]])
    """

    max_grad_norm: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_grad_norm", checked_threshold("max_grad_norm", self.max_grad_norm))

    def groups(self, shapes: Mapping[str, torch.Size]) -> dict[str, tuple[str, ...]]:
        return {"all": tuple(shapes)}

    def weights(self, norms: Tensor) -> Tensor:
        return clip_weights(self.max_grad_norm, norms)

    def max_contribution(self, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        return {"all": self.max_grad_norm}


def bounded_quotient(threshold: Tensor | float, norms: Tensor, dtype: torch.dtype) -> Tensor:
    r"""Return ``threshold / norms``, rounded so that weight times any vector of that norm stays within ``threshold``.

    The quotient is computed in the dtype of ``norms`` and reduced by the factor :math:`1 - 8u`, where :math:`u` is the
    unit roundoff of ``dtype``. It is subject to at most five roundings, each a factor of at most :math:`1 + u`: a sum
    in the divisor or the reduced threshold, the quotient, the conversion to ``dtype``, and the product with each
    coordinate (two products where an engine multiplies an output gradient first and an activation after it). Since
    :math:`(1 - 8u)(1 + u)^5 < 1`, the rounded vector has :math:`\lVert \mathrm{fl}(w g) \rVert \le C`, and
    :math:`\mathrm{fl}(w \, n) \le C` likewise.

    This holds for normal numbers (``threshold`` included; clippers take none below 2^-40, where a subnormal
    product would need more room). A subnormal weight has no such bound on its relative error,
    so it becomes 0, and so does the weight of a norm that is not finite. A quotient too large for ``dtype`` becomes the
    largest number of ``dtype``.

    Args:
        threshold: C > 0, broadcast against ``norms``.
        norms: Float64, or of ``dtype`` if all thresholds are normal numbers of it; non-negative, infinite or NaN.
        dtype: The dtype of the weights.

    Returns:
        Weights in ``dtype``, with the shape of ``norms``.
    """
    lowered, _ = _bounds(threshold, norms.dtype, dtype, norms.device)
    return _quotient(lowered, norms, torch.finfo(dtype).max, dtype).to(dtype)


def clip_weights(threshold: Tensor | float, norms: Tensor) -> Tensor:
    """Return ``min(1, threshold / norms)`` with the guarantee of :func:`bounded_quotient`; exactly 1 if not clipped."""
    limits = torch.finfo(norms.dtype)
    normal = not isinstance(threshold, Tensor) and limits.tiny <= threshold / 2 <= limits.max / 4
    exact = norms if normal and norms.dtype == torch.float32 else norms.double()  # float32 takes half the time
    lowered, limit = _bounds(threshold, exact.dtype, norms.dtype, norms.device)
    clipped = _quotient(lowered, exact, 1.0, norms.dtype).to(norms.dtype)
    kept = torch.le(exact, limit, out=torch.empty_like(clipped))  # 1 or 0: a tensor of bool is slower
    return torch.maximum(clipped, kept)


def _quotient(lowered: Tensor, norms: Tensor, most: float, dtype: torch.dtype) -> Tensor:
    """Return ``lowered / norms``, at most ``most``; 0 where it is NaN or subnormal in ``dtype``."""
    quotient = (lowered / norms).clamp_(max=most)  # of two tensors: a number would be multiplied by 1 / norms
    largest_subnormal = torch.finfo(dtype).tiny * (1 - torch.finfo(dtype).eps)
    return torch.threshold_(quotient.nan_to_num_(nan=0.0), largest_subnormal, 0.0)


def _bounds(
    threshold: Tensor | float, exact: torch.dtype, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return, in ``exact``, the threshold less the room for roundings in ``dtype``, and the threshold rounded down."""
    if not isinstance(threshold, Tensor):
        return _bounds_of_number(threshold, exact, dtype, device)
    limit = threshold.to(device, torch.float64)
    lowered = (limit * (1 - 4 * torch.finfo(dtype).eps)).to(exact)  # eps is 2 u
    near = limit.to(exact)
    return lowered, torch.where(near.double() > limit, torch.nextafter(near, torch.zeros_like(near)), near)


@cache
def _bounds_of_number(
    threshold: float, exact: torch.dtype, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return :func:`_bounds` of a number: made once, and kept on the device."""
    with torch.inference_mode(mode=False):
        return _bounds(torch.tensor(threshold, dtype=torch.float64), exact, dtype, device)
