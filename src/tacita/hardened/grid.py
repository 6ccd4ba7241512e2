r"""Weighted sums on a grid: each record's contribution is truncated to integers, and integers are summed exactly.

Place: engines -> [hardened.grid] -> hardened.grid_sums. Private. Proof: docs/derivations/hardened-noise.md.

A coordinate of record i becomes the integer :math:`k = \operatorname{trunc}(\mathrm{fl}(w_i g_i / \text{step}))`.
Truncation toward zero makes no norm larger, and the weight leaves room for the one rounding of the product. Therefore
:math:`\text{step} \lVert k \rVert_2 \le w_i \lVert g_i \rVert_2` holds exactly. Integers below 2^53 are summed in
float64 without error, so neither the order nor the physical batches show in the bits, and the contribution of a record
is a function of its gradient alone. That its gradient is a function of the record alone is up to the engine: a
physical batch of 1, given rows and an exact ``LinearSource`` ensure it, batched kernels do not.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tacita.gradients.engine import Engine, Groups, Rule, Sums
from tacita.gradients.weighted_sums import BLOCK, weight_arrays, with_room
from tacita.hardened.row_arithmetic import norms_by_row

MOST_STEPS = 2.0**32  # the largest norm of a record's contribution, in steps
MOST_ROWS = 2**20  # of one float64 sum: this many times the largest entry stay below 2^53


def grid_sums(engine: Engine, rule: Rule, groups: Groups, steps: Mapping[str, float]) -> Sums:
    """Return weighted sums of the engine's rows in whole steps, int64, from per-sample gradients chunk by chunk.

    Args:
        engine: Any engine; :meth:`Engine.materialise` makes one forward and one backward pass a chunk.
        rule: As in :meth:`Engine.weighted_sums`; no row may get more than ``weight * norm = MOST_STEPS`` steps.
        groups: Names of the parameters, by group.
        steps: The step of each group, a power of two.

    Returns:
        ``values`` in steps, (..., *param) int64 (a sum beyond int64 wraps); ``norms`` as from the engine.

    Example:
        >>> from tacita.gradients import GivenEngine
        >>> engine = GivenEngine(torch.tensor([[0.30, -0.40], [0.60, 0.80]]))
        >>> sums = grid_sums(engine, lambda norms: torch.ones_like(norms), {"all": ("theta",)}, {"all": 0.25})
        >>> sums.values[0]["theta"]  # 1 + 2, -1 + 3
        tensor([3, 2])
    """
    norms: list[Tensor] = []
    values: list[dict[str, Tensor]] = []
    for grads in engine.materialise():
        lead = _lead(engine, grads)
        norms.append(norms_by_row(grads, groups, lead))
        parts = [_summed(grads, weights, groups, steps, lead) for weights in weight_arrays(rule, norms[-1])]
        values = [_added(*pair) for pair in zip(values, parts, strict=True)] if values else parts
    if not values:
        norms = [engine.norms(groups)]
        values = [_zeros(engine, groups, norms[0].device) for _ in weight_arrays(rule, norms[0])]
    return Sums(values=tuple(engine.over_ranks(values)), norms=torch.cat(norms, dim=-2))


def truncated_sum(rows: Tensor, weights: Tensor, step: float) -> Tensor:
    """Sum ``trunc(weights * rows / step)`` over the rows, int64: (..., batch, d), (..., batch) -> (..., d)."""
    factors = (with_room(weights.double(), torch.float64) / step).clamp_(max=torch.finfo(torch.float64).max)
    absent = bool((factors == 0).any())
    if rows.ndim > 2:  # many runs at once
        return _truncated(rows, factors, absent).to(torch.int64)
    total = rows.new_zeros(rows.shape[-1], dtype=torch.int64)
    height = min(MOST_ROWS, max(1, BLOCK // max(1, rows.shape[-1])))
    for top in range(0, rows.shape[0], height):
        part = slice(top, top + height)
        total += _truncated(rows[part], factors[part], absent).to(torch.int64)
    return total


def _truncated(rows: Tensor, factors: Tensor, absent: bool) -> Tensor:
    """Sum the truncated products in float64; exact as long as the sum stays below 2^53."""
    products = rows.double() * factors.unsqueeze(-1)
    if absent:  # 0 * nan is nan
        products = torch.where(factors.unsqueeze(-1) == 0, 0.0, products)
    return products.trunc_().sum(dim=-2)


def _summed(
    grads: Mapping[str, Tensor], weights: Tensor, groups: Groups, steps: Mapping[str, float], lead: int
) -> dict[str, Tensor]:
    found = {}
    for column, (group, names) in enumerate(groups.items()):
        for name in names:
            shape = grads[name].shape[lead:]
            rows = grads[name].reshape(*grads[name].shape[:lead], shape.numel())
            total = truncated_sum(rows, weights[..., column], steps[group])
            found[name] = total.reshape(*total.shape[:-1], *shape)
    return found


def _lead(engine: Engine, grads: Mapping[str, Tensor]) -> int:
    """Return the number of axes up to and including the batch's."""
    name, shape = next(iter(engine.shapes.items()))
    return grads[name].ndim - len(shape)


def _zeros(engine: Engine, groups: Groups, device: torch.device) -> dict[str, Tensor]:
    named = [name for names in groups.values() for name in names]
    return {name: torch.zeros(engine.shapes[name], dtype=torch.int64, device=device) for name in named}


def _added(total: dict[str, Tensor], part: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: total[name] + part[name] for name in total}
