r"""Arithmetic in which the bits of a row depend on that row alone: sums, norms and exponentials for hardened noise.

A matrix product, a reduction or an exponential may give a row other last bits at another place of a batch, or beside
other rows: a kernel chooses its order of summation, and its code for the remainder at the end, by the shape. One record
more or less then shows in the bits of all others, and a sum of integers moves by more than one record. IEEE addition,
multiplication, division and square root of single numbers give the same result wherever they are computed. Nothing else
is used here.

Everything here is private. Reason and proof: docs/derivations/hardened-noise.md, "Companions".
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tacita.gradients.engine import Groups
from tacita.gradients.weighted_sums import BLOCK, round_up

LEAST_EXPONENT = -700.0  # exp of it is 1e-304
LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")


def tree_sum(terms: Tensor) -> Tensor:
    """Sum over the last axis by halves, in an order that depends on its length alone; overwrites ``terms``.

    Example:
        >>> tree_sum(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
        tensor([ 6., 15.])
    """
    length = terms.shape[-1]
    if not length:
        return terms.new_zeros(terms.shape[:-1])
    while length > 1:
        half = (length + 1) // 2
        terms[..., : length - half] += terms[..., half:length]
        length = half
    return terms[..., 0].clone()


def norms_by_row(grads: Mapping[str, Tensor], groups: Groups, lead: int = 1) -> Tensor:
    """Return upper bounds of norms as :func:`~tacita.gradients.weighted_sums.group_norms` does, each row by itself.

    Shape (*rows, groups), float64.
    """
    columns = []
    for names in groups.values():
        flat = [grads[name].reshape(*grads[name].shape[:lead], grads[name].shape[lead:].numel()) for name in names]
        total = sum((_squares(rows) for rows in flat[1:]), _squares(flat[0]))
        columns.append(round_up(total.sqrt(), sum(rows.shape[-1] for rows in flat)))
    return torch.stack(columns, dim=-1)


def _squares(rows: Tensor) -> Tensor:
    flat = rows.reshape(rows.shape[:-1].numel(), rows.shape[-1])
    height = max(1, BLOCK // max(1, flat.shape[1]))
    parts = [tree_sum(block.double().square()) for block in flat.split(height)]
    return torch.cat(parts).reshape(rows.shape[:-1])


def exp_by_row(x: Tensor) -> Tensor:
    """Return exp of float64 numbers <= 0, to 1e-15, by additions and multiplications; below -700 counts as -700.

    Example:
        >>> x = torch.tensor([0.0, -1.0, -20.0], dtype=torch.float64)
        >>> bool(((exp_by_row(x) / x.exp() - 1).abs() < 1e-15).all())
        True
    """
    x = x.clamp(min=LEAST_EXPONENT)
    whole = torch.round(x * (1 / math.log(2)))
    rest = (x - whole * LN2_HIGH) - whole * LN2_LOW
    total = torch.full_like(rest, 1 / math.factorial(13))
    for k in range(12, -1, -1):
        total = total * rest
        total = total + 1 / math.factorial(k)
    power = ((whole.nan_to_num(0.0).to(torch.int64) + 1023) << 52).view(torch.float64)
    return total * power
