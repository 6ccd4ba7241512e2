r"""The error that feedback remembers: what clipping has removed so far, and the share of it that is injected next.

It is at the level of the sum: :math:`E = b e` for an error e of the mean gradient and the public divisor b. It is
private unless every residual was released.
Source: Zhang, Bu, Wu, Hong, DiceSGD, Algorithm 2, line 6, in the form without cancellation:
:math:`E' = (1 - \alpha)\, E + \text{residuals}`, :math:`\alpha = \min(1, D / \lVert E \rVert)`.

The error is a function of coins and releases whatever rows hold, and what is injected is finite and of norm at most D
whatever the error holds: a row of NaN has weight 0 in both sums, and an entry that overflows stops at a constant.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tacita.clipping.flat import bounded_quotient
from tacita.gradients.engine import Shapes
from tacita.gradients.weighted_sums import norm_over, round_up

Tensors = Mapping[str, Tensor]
State = dict[str, Any]  # "error": name -> (..., *param); "norm": (...), >= that of the error; "query": calls so far

PIECE = 2**16  # coordinates that are worked on at once
LARGEST = {torch.float32: 2.0**100, torch.float64: 2.0**480}  # where entries stop: their squares are still numbers


def no_error(shapes: Shapes, lead: tuple[int, ...], dtype: torch.dtype) -> State:
    """Return the state before the first query."""
    error = {name: torch.zeros(*lead, *shape, dtype=dtype) for name, shape in shapes.items()}
    return {"error": error, "norm": torch.zeros(lead, dtype=torch.float64), "query": 0}


def share_within(norm: Tensor, bound: float, dtype: torch.dtype) -> Tensor:
    """Return ``min(1, bound / norm)``, the injected share of an error of at most this norm, as ``dtype``.

    The product with the error, rounded in ``dtype``, has a norm of at most ``bound``; 1 rounds nothing.
    """
    if bound in (0, torch.inf):
        return torch.full_like(norm, float(bound > 0), dtype=dtype)
    return torch.where(norm <= bound, 1.0, bounded_quotient(bound, norm, dtype))


def share_of_norm(norm: Tensor, bound: float, dtype: torch.dtype) -> Tensor:
    """Return the share that makes the injected error's norm equal to ``bound``; 0 if there is no error."""
    if bound == 0:
        return torch.zeros_like(norm, dtype=dtype)
    return torch.where(norm > 0, bounded_quotient(bound, norm, dtype), 0.0)


def injected(sums: Tensors, error: Tensors, share: Tensor) -> dict[str, Tensor]:
    """Return each sum plus its share of the error, rounded once to the sum's dtype, in the sum's memory."""
    given = {name: total.contiguous() for name, total in sums.items()}
    for name, total in given.items():
        factor = _column(share, total.device)
        for piece, part in _pieces(share.ndim, total, error[name].to(total.device)):
            piece.addcmul_(part, factor)
    return given


def succeeding(residuals: dict[str, Tensor], error: Tensors, kept: Tensor, max_norm: float) -> State:
    """Return the next error, ``kept`` times the last one plus the residuals, *in the memory of the last one*.

    Args:
        residuals: The batch's residuals, shape (..., *param). They are taken out one by one, so that each is freed once
            it was used.
        error: The last error, whose memory is reused. If its dtype is narrower than the residuals', it is widened.
        kept: The share of the last error that stays, shape (...).
        max_norm: The next error is clipped to this norm; ``inf`` clips nothing.

    Returns:
        "error" and "norm" of the next state; the error is finite.
    """
    following: dict[str, Tensor] = {}
    squares = torch.zeros(kept.shape, dtype=torch.float64, device=next(iter(residuals.values())).device)
    for name in [*residuals]:
        part = residuals.pop(name)
        dtype = torch.promote_types(error[name].dtype, part.dtype)
        following[name] = error[name].to(part.device, dtype).contiguous()
        factor = _column(kept, part.device)
        for piece, more in _pieces(kept.ndim, following[name], part):
            piece.mul_(factor).add_(more)
            wide = piece.double()
            squares += torch.linalg.vecdot(wide, wide)
    coordinates = sum(part.shape[kept.ndim :].numel() for part in following.values())
    norm = round_up(squares.sqrt_(), coordinates)
    if not bool(norm.isfinite().all()):
        following = {name: _saturated(part) for name, part in following.items()}
        norm = norm_over(following.values(), kept.ndim)
    if max_norm < torch.inf:
        for part in following.values():
            factor = _column(share_within(norm, max_norm, part.dtype), part.device)
            for (piece,) in _pieces(kept.ndim, part):
                piece.mul_(factor)
        norm = norm.clamp(max=max_norm)
    return {"error": following, "norm": norm}


def copied(state: State) -> State:
    """Return a copy of the state, with its error in memory of its own."""
    return {**state, "error": {name: part.clone() for name, part in state["error"].items()}}


def _column(factor: Tensor, device: torch.device) -> Tensor:
    """Return a factor (...) in the shape that multiplies pieces (..., coordinates)."""
    return factor.to(device).unsqueeze(-1) if factor.ndim else factor.to(device)


def _pieces(lead: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the same coordinates of tensors (..., *param), as views (..., coordinates) of those that are contiguous.

    Pieces are small enough to stay in cache, and to widen one of another dtype. With leading axes all coordinates come
    at once, because runs that are simulated side by side are small.
    """
    rows = [x.flatten(lead) if x.ndim > lead else x.unsqueeze(-1) for x in tensors]
    if lead or rows[0].numel() <= PIECE:
        yield tuple(rows)
    else:
        yield from zip(*(row.split(PIECE) for row in rows), strict=True)


def _saturated(part: Tensor) -> Tensor:
    most = LARGEST[part.dtype]
    return part.nan_to_num_(0.0, most, -most).clamp_(-most, most)
