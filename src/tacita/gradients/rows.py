r"""Norms and weighted sums of per-sample gradients that are held as tensors.

Place: inside the engines. Input and output are private.

Norms are accumulated in float64 whatever the dtype (a float32 sum of three million squares is 6e-5 too small) and
rounded up: the sum of n non-negative squares in float64 has a relative error of at most :math:`(n + 1) u / (1 -
(n + 1) u)`, :math:`u = 2^{-53}`, the root halves it, and root and sum over tensors add a few u. A factor
:math:`1 + (n + 8) u` therefore gives an upper bound for every :math:`n < 2^{50}`; it is 1e-7 at a thousand million
parameters. (float64 entries below 1e-150 may underflow when squared; float32 and narrower ones cannot.)

A weight that leaves room for the roundings of float64 leaves none for those of float32, in which a row is weighted:
each product may be larger by a factor :math:`1 + u'`, :math:`u'` the unit roundoff of the rows. A weight is therefore
made smaller by :math:`8 u'` unless it is 1, whose products are exact; and products are never taken in less than the
rows' own precision, whatever autocast or TF32 say.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from tacita.gradients.engine import Groups, Rule
from tacita.gradients.precision import full_precision

UNIT = 2.0**-53  # unit roundoff of float64
BLOCK = 2**18  # elements widened to float64 at once


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums of ``dtype``: float32 or better."""
    return torch.promote_types(dtype, torch.float32)


def group_norms(grads: Mapping[str, Tensor], groups: Groups, lead: int = 1) -> Tensor:
    """Upper bounds of the L2 norm of each row over each group, shape (*rows, groups), float64.

    ``lead`` is the number of leading axes of ``grads`` that count rows: 1 for (batch, *param).
    """
    return torch.stack([norm_over([grads[name] for name in names], lead) for names in groups.values()], dim=-1)


def norm_over(tensors: Iterable[Tensor], lead: int = 1) -> Tensor:
    """Upper bounds of the L2 norm of each row over several tensors, float64, shape: the first ``lead`` axes."""
    flat = [g.reshape(*g.shape[:lead], g.shape[lead:].numel()) for g in tensors]
    squares = torch.stack([_squared_norms(g) for g in flat], dim=-1).sum(dim=-1)
    return round_up(squares.sqrt(), sum(g.shape[-1] for g in flat))


def _squared_norms(rows: Tensor) -> Tensor:
    """Sum of squares over the last axis in float64, by blocks small enough to stay in cache once widened."""
    flat = rows.reshape(rows.shape[:-1].numel(), rows.shape[-1])
    total = flat.new_zeros(flat.shape[0], dtype=torch.float64)
    for columns in flat.split(BLOCK, dim=1):
        height = max(1, BLOCK // max(1, columns.shape[1]))
        for top in range(0, flat.shape[0], height):
            total[top : top + height] += columns[top : top + height].double().square().sum(dim=-1)
    return total.reshape(rows.shape[:-1])


def round_up(norms: Tensor, terms: int) -> Tensor:
    """Upper bounds from float64 norms that were accumulated over ``terms`` squares."""
    return norms * (1 + (terms + 8) * UNIT)


def round_down(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """``weights`` in ``dtype``, never larger than they were (they are >= 0), so that no clip factor is rounded up."""
    narrow = weights.to(dtype)
    return torch.where(narrow > weights, torch.nextafter(narrow, torch.zeros_like(narrow)), narrow)


def with_room(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """``weights`` made smaller by what the product with a number of ``dtype`` may round up; 1 rounds nothing."""
    return torch.where(weights == 1, 1.0, weights * (1 - 4 * torch.finfo(dtype).eps))


def weight_arrays(rule: Rule, norms: Tensor) -> tuple[Tensor, ...]:
    """The weight arrays that ``rule`` gives for ``norms``: each (..., batch, groups), maybe with more leading axes."""
    weights = rule(norms)
    weights = weights if isinstance(weights, tuple) else (weights,)
    for array in weights:
        if array.shape[-norms.ndim :] != norms.shape:
            raise ValueError(f"rule must return weights of shape {tuple(norms.shape)}, got {tuple(array.shape)}.")
    return weights


def weighted_sum(grads: Mapping[str, Tensor], weights: Tensor, groups: Groups, lead: int = 1) -> dict[str, Tensor]:
    """For each parameter the sum over the batch of ``weights[..., g]`` times its rows; weight 0 means absent.

    Args:
        grads: (..., batch, *param) by name, with ``lead`` axes before those of the parameter.
        weights: (..., batch, groups), >= 0; leading axes broadcast against those of ``grads``. A row adds at most its
            weight times itself, rounding included.
        groups: Their columns.
        lead: Number of axes of ``grads`` up to and including ``batch``.

    Returns:
        Parameter name -> (..., *param), float32 or better, in the order of ``grads``.
    """
    column = {name: k for k, names in enumerate(groups.values()) for name in names}
    with full_precision(weights.device):
        return {name: _sum_rows(g, weights[..., column[name]], lead) for name, g in grads.items() if name in column}


def _sum_rows(grad: Tensor, weights: Tensor, lead: int) -> Tensor:
    shape = grad.shape[lead:]
    rows = grad.reshape(*grad.shape[:lead], shape.numel()).to(wide(grad.dtype))
    factors = round_down(with_room(weights, rows.dtype), rows.dtype).unsqueeze(-2)
    total = factors @ rows
    if not total.isfinite().all():  # some row is not finite, and 0 * nan is nan: where() before the product
        total = factors @ _without_absent(rows, weights)
    return total.squeeze(-2).reshape(*total.shape[:-2], *shape)


def _without_absent(rows: Tensor, weights: Tensor) -> Tensor:
    """``rows`` with zeros where a row has weight 0 and is not finite."""
    bad = ~rows.isfinite().all(dim=-1)
    if (bad & (weights != 0)).any():  # absent in one leading index, present in another: a copy for each
        return torch.where((bad & (weights == 0)).unsqueeze(-1), 0.0, rows)
    return torch.where(bad.unsqueeze(-1), 0.0, rows)
