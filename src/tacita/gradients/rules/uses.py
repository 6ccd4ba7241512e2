"""The uses of parameters in one pass: they give norms and weighted sums without per-sample gradients.

Everything here is private.
Source: Bu et al. (2023), book-keeping, https://arxiv.org/abs/2210.00038; Li et al. (2022) for the norms of sequences,
https://arxiv.org/abs/2110.05679. Differs from them in three points: norms are upper bounds
(docs/derivations/ghost_norms.md), the choice between Gram and direct form is by shape for each layer, and every use of
a parameter is counted in the graph before any number leaves.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tacita.gradients.batches import memory_address
from tacita.gradients.engine import Groups
from tacita.gradients.rules.derived import apart
from tacita.gradients.rules.outer import HELD, gram_serves, squares_of_factors
from tacita.gradients.rules.rounding import RowNorms, SquaredNorms, add_radius, gamma, measure, totals
from tacita.gradients.rules.rule import (
    VALUE,
    LayerRule,
    LayerUse,
    NamedUse,
    RowWeights,
    named_autograd_use,
    squared_norm_of,
)
from tacita.gradients.weighted_sums import exact_device, full_precision, round_down, round_up, zeros_for

Kept = Callable[[str, Tensor], Tensor]  # (a parameter's name, its sum) -> what is kept of it


class Uses:
    """All uses of parameters in one forward and backward pass over a chunk.

    Args:
        found: The uses that the pass found.
        size: The number of records.
        params: The parameters, by name.
        margin: Norms are upper bounds, of the gradient's norm and of what a row of weight 1 adds to the sums.

    Attributes:
        found: The uses; those that a rule can serve together are one.
    """

    def __init__(self, found: list[NamedUse], size: int, params: Mapping[str, Tensor], *, margin: bool = True):
        self._size, self._params, self._margin = size, params, margin
        self.found, self._meeting = found, _meeting(found)
        if any(len(uses) > 1 for uses in self._meeting.values()):
            self.found = _merged(found)
            self._meeting = _meeting(self.found)

    def meeting(self, name: str) -> list[tuple[NamedUse, str]]:
        """Return the uses that meet in a parameter, each with the layer's own name for the parameter."""
        return self._meeting.get(name, [])

    def norms(self, groups: Groups) -> Tensor:
        """Return the norms by group, (rows, groups), float64: upper bounds unless the margin is off."""
        chosen = {name for names in groups.values() for name in names}
        squares: dict[str, list[SquaredNorms | Tensor]] = {}
        several = {name: [named.rule for named, _ in uses] for name, uses in self._meeting.items() if len(uses) > 1}
        together = {name for name, rules in several.items() if not apart(rules)}  # uses meet in a coordinate
        for named in self.found:
            alone = {k: n for k, n in named.parameters.items() if n in chosen and n not in together}
            if alone:
                found = named.squares or named.rule.squared_norms(named.use.only(tuple(alone)))
                for local, name in alone.items():
                    squares.setdefault(name, []).append(found[local])
        squares |= {name: [self._shared(name)] for name in self._meeting if name in chosen & together}
        parts = [[square for name in names for square in squares.get(name, ())] for names in groups.values()]
        zeros = [] if all(parts) else [self._zeros()]
        sums = totals([some or zeros for some in parts], rounding_margin=self._margin)
        columns = torch.stack(sums, dim=-1) if len(sums) > 1 else sums[0].unsqueeze(-1)
        return round_up(columns.sqrt(), max(len(some) for some in parts))

    def _zeros(self) -> Tensor:
        device = next(iter(self._params.values())).device
        return torch.zeros(self._size, dtype=torch.float64, device=exact_device(device))

    def sums(self, arrays: Sequence[Sequence[RowWeights]], groups: Groups, reduced: Kept) -> list[dict[str, Tensor]]:
        """Return the weighted sums for each weight array, by parameter. Afterwards the uses are gone.

        Args:
            arrays: For each weight array, the row weights of each group.
            groups: The groups.
            reduced: What is kept of a parameter's sum, by its name, as soon as all its uses are in the sum.
        """
        columns = zip(*arrays, strict=True)
        totals: list[dict[str, Tensor]] = [{} for _ in arrays]
        self._meeting.clear()
        for k, (column, names) in enumerate(zip(columns, groups.values(), strict=True)):
            chosen, last = set(names), k == len(groups) - 1
            waiting = self.found if last else [*self.found]
            left = Counter(name for named in waiting for name in named.parameters.values())
            while waiting:
                named = waiting.pop(0)  # forgotten once it has served the last group: the next use takes its memory
                mine = {local: name for local, name in named.parameters.items() if name in chosen}
                if not mine:
                    continue
                found = named.rule.several_sums(named.use.only(tuple(mine)), column)
                for local, name in mine.items():
                    left[name] -= 1
                    for total, part in zip(totals, found, strict=True):
                        summed = total[name] + part.pop(local) if name in total else part.pop(local)
                        total[name] = summed if left[name] else reduced(name, summed)
        unused = [name for names in groups.values() for name in names if name not in totals[0]]
        return [total | {name: reduced(name, zeros_for(self._params[name])) for name in unused} for total in totals]

    def copy(self) -> "Uses":
        """Return the same uses once more: :meth:`sums` uses them up."""
        other = object.__new__(Uses)
        other._size, other._params, other._margin = self._size, self._params, self._margin
        other.found = [replace(one, use=replace(one.use, kept={**one.use.kept})) for one in self.found]
        other._meeting = _meeting(other.found)
        return other

    def grads(self, name: str) -> Tensor:
        """Return the per-sample gradients of one parameter, over all its uses."""
        if name not in self._meeting:
            return zeros_for(self._params[name], self._size)
        parts = self._parts(name, slice(None))
        return sum(parts[1:], parts[0])

    def _parts(self, name: str, rows: slice) -> list[Tensor]:
        """Return the per-sample gradients of each use of a parameter: those that are kept, where the sums use them."""
        parts = []
        for named, local in self._meeting[name]:
            kept = named.use.kept.get(local)
            parts.append(named.rule.grads(named.use.rows(rows).only((local,)))[local] if kept is None else kept[rows])
        return parts

    def _shared(self, name: str) -> SquaredNorms | Tensor:
        """Return the squared norms of a parameter in which several uses meet, cross terms included.

        They are taken from inner products of the uses' factors where that is cheaper, and else from the gradients, a
        few rows at a time.
        """
        factors = [named.rule.factors(named.use.only((local,))) for named, local in self._meeting[name]]
        if gram_serves(factors, self._params[name].shape):
            return squares_of_factors([part for part in factors if part is not None], partial(self._exactly, name))
        radii = [named.rule.radius(named.use.only((local,)))[local] for named, local in self._meeting[name]]
        named, local = self._meeting[name][0]
        size, width = len(named.use.x), named.use.shapes[local].numel()
        height = max(1, HELD // max(1, width))
        parts = [self._sum_and_spread(name, slice(k, k + height)) for k in range(0, size, height)]
        squares, spread = (torch.cat(one) for one in zip(*parts, strict=True))
        return add_radius(squares, spread + sum(radii)) if self._margin else squares

    def _exactly(self, name: str, rows: Tensor) -> RowNorms:
        """Return the norms of some rows' gradients over all uses, computed in float64."""
        total = torch.zeros((), dtype=torch.float64)
        for named, local in self._meeting[name]:
            total = total + named.rule.grads(named.use.rows(rows).only((local,)).wide())[local]
        return measure(total)

    def _sum_and_spread(self, name: str, rows: slice) -> tuple[Tensor, Tensor]:
        """Return the squared norms of the gradients over all uses, and a bound on the rounding of adding up the uses.

        The uses are added up twice, for the norm and for the sum, so the bound counts twice.
        """
        parts = self._parts(name, rows)
        squares = squared_norm_of(sum(parts[1:], parts[0]), rounding_margin=self._margin)
        norms = sum((squared_norm_of(part).sqrt_() for part in parts), torch.zeros_like(squares))
        return squares, norms.mul_(2 * gamma(len(parts) - 1, parts[0].dtype))


def norms_taken(named: NamedUse, chosen: set[str]) -> list[NamedUse]:
    """Take the norms of a use whose parameters no other use meets; return it with them.

    Its per-sample gradients alone remain, in memory of their own: the sums add them as they are. What the sums would
    read again from input and output gradient waits, because the program may still write these.
    """
    mine = {local: name for local, name in named.parameters.items() if name in chosen}
    use = named.use.only(tuple(mine))
    if not mine or not is_ours(named.rule) or not named.rule.holds(use):
        return [named]
    with full_precision(use.x.device):
        squares = named.rule.squared_norms(use)
    if not all(local in use.kept for local in mine):
        return [named]
    others = {memory_address(use.x), memory_address(use.grad)}
    kept = {local: use.kept[local] for local in mine}
    own = {local: g.clone() if memory_address(g) in others else g for local, g in kept.items()}
    left = {local: named_autograd_use(name, own[local]) for local, name in mine.items()}
    return [replace(one, function=named.function, squares={VALUE: squares[local]}) for local, one in left.items()]


def is_ours(rule: LayerRule) -> bool:
    """Return whether a rule is tacita's, which writes nothing that it is given; a user's might."""
    return type(rule).__module__.startswith("tacita.")


def _meeting(found: list[NamedUse]) -> dict[str, list[tuple[NamedUse, str]]]:
    """Return the uses that meet in each parameter, by the model's name, with the layer's own name for it."""
    meeting: dict[str, list[tuple[NamedUse, str]]] = {}
    for named in found:
        for local, name in named.parameters.items():
            meeting.setdefault(name, []).append((named, local))
    return meeting


def _merged(found: list[NamedUse]) -> list[NamedUse]:
    """Merge calls with the same parameters into one call, where their rule can do that."""
    alike: dict[tuple, list[NamedUse]] = {}
    for named in found:
        key = (id(named.rule), *named.parameters.items(), repr(named.use.settings), named.use.x.shape[-1:])
        alike.setdefault(key, []).append(named)
    result = []
    for calls in alike.values():
        whole: LayerUse | None = calls[0].rule.merged([c.use for c in calls]) if len(calls) > 1 else None
        result += calls if whole is None else [replace(calls[0], use=whole)]
    return result


def row_weights(weights: Tensor, dtype: torch.dtype, norms: Tensor | None = None) -> list[RowWeights]:
    """Return the row weights of each group, rounded down to ``dtype``.

    Weights in [0, 1] are *plain* if no row must be masked for what it holds: every row is finite by ``norms`` (0 times
    a finite number is 0), or, without them, every weight is above 0.
    """
    narrow = round_down(weights, dtype)
    masked = torch.where(narrow > 0, narrow, torch.nan) if norms is None else torch.maximum(narrow, norms * 0)
    plain = [most <= 1 for most in masked.amax(dim=0).tolist()]  # not if one is NaN
    return [RowWeights(w, p) for w, p in zip(narrow.unbind(dim=-1), plain, strict=True)]
