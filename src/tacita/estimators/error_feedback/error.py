r"""The error that feedback remembers: what clipping has removed so far, and what of it is injected next.

Place: the ground of error feedback. At the level of the sum, so :math:`E = b e` for an error e of the mean gradient and
the public divisor b; private unless every residual was released.
Source: Zhang, Bu, Wu, Hong, DiceSGD, Algorithm 2, line 6, in the form without cancellation:
:math:`E' = (1 - \alpha)\, E + \text{residuals}`, :math:`\alpha = \min(1, D / \lVert E \rVert)`.

The error is a function of coins and releases whatever rows hold, and what is injected is finite and of norm at most D
whatever the error holds: a row of NaN has weight 0 in both sums, and an entry that overflows stops at a constant.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tacita.clipping._rounding import bounded_quotient, clip_weights
from tacita.gradients.engine import Shapes
from tacita.gradients.rows import round_up

Tensors = Mapping[str, Tensor]
State = dict[str, Any]  # "error": name -> (..., *param); "norm": (...), >= that of the error; "query": calls so far

LARGEST = {torch.float32: 2.0**100, torch.float64: 2.0**480}  # where entries stop: their squares are still numbers


def no_error(shapes: Shapes, lead: tuple[int, ...], dtype: torch.dtype) -> State:
    """The state before the first query."""
    error = {name: torch.zeros(*lead, *shape, dtype=dtype) for name, shape in shapes.items()}
    return {"error": error, "norm": torch.zeros(lead, dtype=torch.float64), "query": 0}


def share_within(norm: Tensor, bound: float, dtype: torch.dtype) -> Tensor:
    """Which share of an error of at most this norm is injected: ``min(1, bound / norm)``, as a factor of ``dtype``.

    The product with the error, rounded in ``dtype``, has a norm of at most ``bound``.
    """
    if bound == 0:
        return torch.zeros_like(norm, dtype=dtype)
    return _narrowed(clip_weights(bound, norm), dtype) if bound < torch.inf else torch.ones_like(norm, dtype=dtype)


def share_of_norm(norm: Tensor, bound: float, dtype: torch.dtype) -> Tensor:
    """The share with which what is injected has norm ``bound`` whatever the error's; 0 for no error."""
    if bound == 0:
        return torch.zeros_like(norm, dtype=dtype)
    return _narrowed(torch.where(norm > 0, bounded_quotient(bound, norm, norm.dtype), 0.0), dtype)


def injected(sums: Tensors, error: Tensors, share: Tensor) -> dict[str, Tensor]:
    """Each sum plus its share of the error, in the sum's dtype; in its memory, if the error has that dtype."""
    return {name: _plus_share(total, error[name].to(total.device), share) for name, total in sums.items()}


def succeeding(residuals: Tensors, error: Tensors, kept: Tensor, max_norm: float) -> State:
    """The next error, ``kept`` times the last one plus the residuals, in the memory of the residuals.

    Args:
        residuals: This batch's, shape (..., *param).
        error: The last one.
        kept: Which share of it stays, shape (...).
        max_norm: The next error is clipped to this norm (``inf``: not at all).

    Returns:
        "error" and "norm" of the next state; the error is finite.
    """
    following = {name: _plus_share(part, error[name].to(part), kept) for name, part in residuals.items()}
    norm = _norm(following, kept.ndim)
    if not bool(norm.isfinite().all()):
        following = {name: _saturated(part) for name, part in following.items()}
        norm = _norm(following, kept.ndim)
    if max_norm < torch.inf:
        dtype = next(iter(following.values())).dtype
        factor = share_within(norm, max_norm, dtype)
        following = {name: part.mul_(_fitted(factor, part)) for name, part in following.items()}
        norm = norm.clamp(max=max_norm)
    return {"error": following, "norm": norm}


def _narrowed(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 weights as factors of ``dtype``, with room for the rounding of their products; 1 rounds nothing."""
    limits = torch.finfo(dtype)
    narrow = (weights * (1 - 4 * limits.eps)).clamp(max=limits.max).to(dtype)
    return torch.where(weights == 1, 1.0, torch.where(narrow < limits.tiny, 0.0, narrow)).to(dtype)


def _plus_share(total: Tensor, error: Tensor, share: Tensor) -> Tensor:
    """``total + share * error``, rounded once to the dtype of ``total``."""
    exact = torch.promote_types(error.dtype, total.dtype)
    factor = _fitted(share.to(exact), error)
    if error.dtype == total.dtype:
        return total.addcmul_(error, factor)
    return torch.addcmul(total.to(exact), error.to(exact), factor).to(total.dtype)


def _fitted(factor: Tensor, like: Tensor) -> Tensor:
    """A factor of the leading axes, shaped so that it broadcasts."""
    return factor.to(like.device).reshape(*factor.shape, *(1,) * (like.ndim - factor.ndim))


def _norm(error: Tensors, lead: int) -> Tensor:
    """An upper bound of the norm for each leading index, accumulated in float64 (see :mod:`tacita.gradients.rows`)."""
    rows = [part.flatten(lead) if part.ndim > lead else part.unsqueeze(-1) for part in error.values()]
    norms = [torch.linalg.vector_norm(row, dim=-1, dtype=torch.float64) for row in rows]
    return round_up(torch.linalg.vector_norm(torch.stack(norms, dim=-1), dim=-1), sum(row.shape[-1] for row in rows))


def _saturated(part: Tensor) -> Tensor:
    most = LARGEST[part.dtype]
    return part.nan_to_num_(0.0, most, -most).clamp_(-most, most)
