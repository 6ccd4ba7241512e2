r"""Weighted sums in float64 whose rounding is bounded before any data is seen.

Everything here is private. Proof: docs/derivations/hardened-noise.md, "Ghost".

The norms of the products that a sum adds up for record i total its *reach*
:math:`S_i = \sum_t \lVert a_t \rVert \lVert d_t \rVert`. Each weight is lowered to at most :math:`c / S_i`, where c
is the public cap. If each term of a float64 sum over n records passes at most :math:`\Lambda` roundings, the sum is
then off by at most :math:`\gamma_\Lambda \, n \, c`: see :func:`summation_error`.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from tacita.errors import UnsupportedModuleError
from tacita.gradients.chunked import Chunk
from tacita.gradients.engine import Groups, Rule, Sums
from tacita.gradients.program.engine import ProgramEngine
from tacita.gradients.rules.rounding import gamma
from tacita.gradients.rules.rule import NamedUse, RowWeights, squared_norm_of
from tacita.gradients.rules.uses import Uses, row_weights
from tacita.gradients.weighted_sums import UNIT, full_precision, weight_arrays, zeros_for

BLOCK_TERMS = 2**16  # products a coordinate that are summed at once, in any order
MOST_POSITIONS = 2**16  # of one record in one parameter, over all uses
MOST_USES = 8  # of one parameter; uses that merge count as one


def summation_error(max_records: int, cap: float) -> float:
    r"""Bound the error, in norm, of a sum over ``max_records`` records whose reach times weight is at most ``cap``.

    A term passes three kinds of roundings: those of its block, those of adding up the blocks (at most
    ``max_records * MOST_POSITIONS / 2^15``, and one for each record and use), and those of its own three products.
    """
    roundings = BLOCK_TERMS + max_records * (1 + 2 * MOST_POSITIONS // BLOCK_TERMS + MOST_USES) + 4
    return gamma(roundings, torch.float64) * max_records * cap * (1 + 2.0**-20)


def capped_sums(engine: ProgramEngine, rule: Rule, groups: Groups, caps: Mapping[str, float]) -> Sums:
    """Return the weighted sums of ``engine`` in float64, where weight times reach of a row is at most the group's cap.

    Args:
        engine: The engine.
        rule: As in :meth:`Engine.weighted_sums`; a weight times its norm must be at most the cap.
        groups: Names of the parameters, by group.
        caps: The cap of each group, > 0.

    Raises:
        UnsupportedModuleError: A parameter meets more than 2^16 positions of a record, or has more than 8 uses.
    """
    norms, totals = list[Tensor](), None
    for one in engine.chunks():
        with engine._seeded(one):
            parts, found = _chunk_sums(engine, one, one.rule(rule), groups, caps)
        norms.append(found[one.absent :])
        totals = parts if totals is None else [_added(*pair) for pair in zip(totals, parts, strict=True)]
    if totals is None:
        zeros = {name: zero.double() for name, zero in engine._zeros(groups).items()}
        totals = [dict(zeros) for _ in weight_arrays(rule, engine._no_norms(groups))]
    return Sums(values=tuple(engine.over_ranks(totals)), norms=engine._joined(norms, groups))


def _chunk_sums(
    engine: ProgramEngine, one: Chunk, rule: Rule, groups: Groups, caps: Mapping[str, float]
) -> tuple[list[dict[str, Tensor]], Tensor]:
    uses = engine.uses(one)
    with full_precision(engine._device):
        norms = uses.norms(groups)
        shares = [caps[group] / _reach(uses, names, norms[:, 0]) for group, names in groups.items()]
        limits = torch.stack(shares, dim=-1).mul_(1 - 8 * UNIT)  # fmin(): a NaN limits nothing
        lowered = (torch.fmin(weights.double(), limits) for weights in weight_arrays(rule, norms))
        return [_sums(engine, uses, weights, groups) for weights in lowered], norms


def _reach(uses: Uses, names: tuple[str, ...], like: Tensor) -> Tensor:
    """Return upper bounds of the rows' reach in a group, (rows,), float64.

    The reaches of the uses of one parameter add up: the sum of the uses may be small where each of them is large. The
    reach of a gradient that is kept is its own norm.
    """
    squares = torch.zeros_like(like)
    for name in names:
        total = torch.zeros_like(like)
        for named, local in uses.meeting(name):
            use = named.use.only((local,))
            held = use.held(local)
            total += named.rule.reach(use)[local] if held is None else squared_norm_of(held).sqrt()
        squares += total.square()
    return squares.sqrt_() * (1 + 2.0**-40)


def _sums(engine: ProgramEngine, uses: Uses, weights: Tensor, groups: Groups) -> dict[str, Tensor]:
    totals: dict[str, Tensor] = {}
    for column, names in zip(row_weights(weights, torch.float64), groups.values(), strict=True):
        for name in names:
            _check_positions(name, uses)
            totals[name] = zeros_for(engine.params[name]).double()
        for named in uses.found:
            mine = {local: name for local, name in named.parameters.items() if name in names}
            for part in _blocks(named, tuple(mine), column):
                for local, summed in part.items():
                    totals[mine[local]] += summed
    return totals


def _check_positions(name: str, uses: Uses) -> None:
    meeting = uses.meeting(name)
    positions = sum(named.rule.positions(named.use) for named, _ in meeting)
    if positions > MOST_POSITIONS or len(meeting) > MOST_USES:
        raise UnsupportedModuleError(
            f"{name!r} is used {len(meeting)} times, over {positions} positions a record: no bound of the rounding is "
            f'stated beyond {MOST_USES} and {MOST_POSITIONS}. Use method="loop".'
        )


def _blocks(named: NamedUse, names: tuple[str, ...], weights: RowWeights) -> Iterator[dict[str, Tensor]]:
    """Yield the weighted sums of one use in parts of at most ``BLOCK_TERMS`` products a coordinate, or of one row."""
    kept = tuple(name for name in names if named.use.held(name) is not None)
    rest = tuple(name for name in names if name not in kept)
    if kept:
        yield named.rule.sums(named.use.only(kept).wide(), weights)
    if not rest:
        return
    use = named.use.only(rest)
    height = max(1, BLOCK_TERMS // max(1, named.rule.positions(use)))
    for top in range(0, len(use.x), height):
        rows = slice(top, top + height)
        yield named.rule.sums(use.rows(rows).wide(), RowWeights(weights.values[rows], weights.plain))


def _added(total: dict[str, Tensor], part: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: total[name] + part[name] for name in total}
