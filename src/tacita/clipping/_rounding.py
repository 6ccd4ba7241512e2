"""Clipping weights that respect their bound after rounding.

A weight is a quotient C / n computed in floating point, and the product of weight and gradient is rounded again.
Neither rounding may carry the contribution past C.
"""

import torch
from torch import Tensor


def bounded_quotient(threshold: Tensor | float, norms: Tensor, dtype: torch.dtype) -> Tensor:
    r"""Return ``threshold / norms``, rounded so that weight times any vector of that norm stays within ``threshold``.

    The quotient is computed in float64 and reduced by the factor :math:`1 - 8u`, where :math:`u` is the unit roundoff
    of ``dtype``. It is subject to at most five roundings, each a factor of at most :math:`1 + u`: a sum in the divisor,
    the quotient, the conversion to ``dtype``, and the product with each coordinate (two products where an engine
    multiplies an output gradient first and an activation after it). Since :math:`(1 - 8u)(1 + u)^5 < 1`, the rounded
    vector has :math:`\lVert \mathrm{fl}(w g) \rVert \le C`, and :math:`\mathrm{fl}(w \, n) \le C` likewise.

    This holds for normal numbers (``threshold`` included). A subnormal weight has no such bound on its relative error,
    so it becomes 0, and so does the weight of a norm that is not finite. A quotient too large for ``dtype`` becomes the
    largest number of ``dtype``.

    Args:
        threshold: C > 0, broadcast against ``norms``.
        norms: Float64, non-negative or not finite.
        dtype: The dtype of the weights.

    Returns:
        Weights in ``dtype``, with the shape of ``norms``.
    """
    limits = torch.finfo(dtype)
    quotient = (threshold / norms) * (1 - 4 * limits.eps)  # eps is 2 u
    quotient = quotient.clamp(max=limits.max)
    return torch.where(norms.isfinite() & (quotient >= limits.tiny), quotient, 0.0).to(dtype)


def clip_weights(threshold: Tensor | float, norms: Tensor) -> Tensor:
    """Return ``min(1, threshold / norms)`` with the guarantee of :func:`bounded_quotient`; exactly 1 if not clipped."""
    exact = norms.double()
    return torch.where(exact <= threshold, 1.0, bounded_quotient(threshold, exact, norms.dtype))
