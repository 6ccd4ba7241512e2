"""Weights that stay below their bound once rounded.

Place: the ground of clipping. A weight is a quotient C / n computed in floating point, and the contribution it scales
is rounded again when it is multiplied; neither may carry the contribution past C.
"""

import torch
from torch import Tensor


def bounded_quotient(threshold: Tensor | float, norms: Tensor, dtype: torch.dtype) -> Tensor:
    r"""``threshold / norms``, rounded so that the product with any vector of that norm stays within ``threshold``.

    The quotient is taken in float64 and made smaller by :math:`8u`, :math:`u` the unit roundoff of ``dtype``. At most
    five roundings follow or precede it, each a factor of at most :math:`1 + u`: a sum in the divisor, the quotient, the
    conversion to ``dtype``, and the product with each coordinate (two of them where an engine multiplies an output
    gradient first and an activation after it). Since :math:`(1 - 8u)(1 + u)^5 < 1`, the rounded vector has
    :math:`\lVert \mathrm{fl}(w g) \rVert \le C`, and so does :math:`\mathrm{fl}(w \, n)`.

    That holds for normal numbers (``threshold`` included). A subnormal weight has no such relative error, so it
    becomes 0, as does one whose norm is not finite; a quotient too large for the dtype becomes its largest number.

    Args:
        threshold: C > 0, broadcast against ``norms``.
        norms: Float64, non-negative or not finite.
        dtype: That of the weights.

    Returns:
        Weights in ``dtype``, shape of ``norms``.
    """
    limits = torch.finfo(dtype)
    quotient = (threshold / norms) * (1 - 4 * limits.eps)  # eps is 2 u
    quotient = quotient.clamp(max=limits.max)
    return torch.where(norms.isfinite() & (quotient >= limits.tiny), quotient, 0.0).to(dtype)


def clip_weights(threshold: Tensor | float, norms: Tensor) -> Tensor:
    """``min(1, threshold / norms)`` with the guarantee of :func:`bounded_quotient`; 1 where nothing need be clipped."""
    exact = norms.double()
    return torch.where(exact <= threshold, 1.0, bounded_quotient(threshold, exact, norms.dtype))
