"""Norms and weighted sums without per-sample gradients: one forward and one backward pass serve both.

Place: [gradients], the fast engine. Private.
Source: Bu et al. (2023), book-keeping, https://arxiv.org/abs/2210.00038; Li et al. (2022) for the norms of sequences,
https://arxiv.org/abs/2110.05679. Differs from them in that norms are upper bounds (docs/derivations/ghost_norms.md),
that the choice between Gram and direct form is by shape for each layer, and that every use of a parameter is counted in
the graph before any number leaves.
"""

from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.engine import Groups, Rule
from tacita.gradients.functional import LossFn
from tacita.gradients.ghost.capture import NamedUse, capture, check_layout
from tacita.gradients.ghost.outer import HELD
from tacita.gradients.ghost.rounding import add_radius
from tacita.gradients.ghost.rule import LayerUse, RowWeights, squared_norm_of
from tacita.gradients.precision import full_precision
from tacita.gradients.probe import row
from tacita.gradients.rows import round_down, round_up, weight_arrays, wide
from tacita.gradients.seeds import seeded

_LAYOUT_CHECKED: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()  # model -> code of losses


class GhostEngine(ChunkedEngine):
    """The engine of networks whose parameters all belong to layers with a rule.

    Norms are upper bounds: of the gradient's norm and of what a row of weight 1 adds to the sums, as computed.

    Raises, when it runs:
        UnsupportedModuleError: A use of a parameter that its layer's rule does not see; see :func:`coverage` for what
            can be told without running the model.
    """

    rounding_margin = True  # set to False on one engine to compare it with another

    def _chunk_sums(self, chunk: Chunk, rule: Rule, groups: Groups) -> tuple[list[dict[str, Tensor]], Tensor]:
        uses = self._uses(chunk)
        with full_precision(self._device):
            norms = self._norms(uses, groups, chunk.size)
            return self._sums(uses, weight_arrays(rule, norms), norms, groups), norms

    def _chunk_norms(self, chunk: Chunk, groups: Groups) -> Tensor:
        uses = self._uses(chunk)
        with full_precision(self._device):
            return self._norms(uses, groups, chunk.size)

    def _chunk_grads(self, chunk: Chunk) -> dict[str, Tensor]:
        uses = self._uses(chunk)
        with full_precision(self._device):
            return {
                name: uses.grads(name, slice(None)) if name in uses else self._zeros_for(name, chunk.size)
                for name in self.params
            }

    def _uses(self, chunk: Chunk) -> "Uses":
        known = _LAYOUT_CHECKED.setdefault(self.model, set())
        if chunk.size > 1 and _identity(self.loss_fn) not in known:
            with seeded(0, self._device):
                check_layout(self.model, self.loss_fn, self.params, row(chunk.batch, 0))
            known.add(_identity(self.loss_fn))
        return Uses(capture(self.model, self.loss_fn, self.params, chunk))

    def _norms(self, uses: "Uses", groups: Groups, size: int) -> Tensor:
        """Norms by group, (rows, groups), float64."""
        squares = uses.squared_norms({n for names in groups.values() for n in names}, self.rounding_margin)
        columns = []
        for names in groups.values():
            parts = [squares[name] for name in names if name in squares]
            total = sum(parts[1:], parts[0]) if parts else torch.zeros(size, dtype=torch.float64, device=self._device)
            columns.append(round_up(total.sqrt(), len(parts)))
        return torch.stack(columns, dim=-1)

    def _sums(self, uses: "Uses", arrays: tuple[Tensor, ...], norms: Tensor, groups: Groups) -> list[dict[str, Tensor]]:
        """The sums for each of the weight arrays."""
        totals: list[dict[str, Tensor]] = [{} for _ in arrays]
        dtype = _narrowest([p.dtype for p in self.params.values()])
        columns = zip(*(row_weights(weights, dtype, norms) for weights in arrays), strict=True)
        for column, names in zip(columns, groups.values(), strict=True):
            for name, parts in uses.sums(set(names), column):
                for total, part in zip(totals, parts, strict=True):
                    total[name] = total[name] + part if name in total else part
        unused = [name for names in groups.values() for name in names if name not in totals[0]]
        return [total | {name: self._zeros_for(name) for name in unused} for total in totals]

    def _zeros_for(self, name: str, *lead: int) -> Tensor:
        p = self.params[name]
        return torch.zeros(*lead, *p.shape, dtype=wide(p.dtype), device=p.device)


class Uses:
    """All uses of layers in one pass, and which of them meet in one parameter."""

    def __init__(self, found: list[NamedUse]):
        self.found = _merged(found)
        self._meeting: dict[str, list[tuple[NamedUse, str]]] = {}  # model's name -> uses, with the layer's own name
        for named in self.found:
            for local, name in named.parameters.items():
                self._meeting.setdefault(name, []).append((named, local))

    def __contains__(self, name: str) -> bool:
        return name in self._meeting

    def meeting(self, name: str) -> list[tuple[NamedUse, str]]:
        """The uses that meet in a parameter, each with the layer's own name for it."""
        return self._meeting.get(name, [])

    def squared_norms(self, chosen: set[str], rounding_margin: bool) -> dict[str, Tensor]:
        """Squared norms by parameter, (rows,), float64."""
        squares: dict[str, Tensor] = {}
        for named in self.found:
            mine = {local: name for local, name in named.parameters.items() if name in chosen}
            alone = {local: name for local, name in mine.items() if len(self._meeting[name]) == 1}
            if alone:
                use = named.use.only(tuple(alone))
                found = named.rule.squared_norms(use, rounding_margin=rounding_margin)
                squares |= {name: found[local] for local, name in alone.items()}
        shared = [n for n, meeting in self._meeting.items() if n in chosen and len(meeting) > 1]
        return squares | {name: self._shared(name, rounding_margin) for name in shared}

    def sums(self, chosen: set[str], weights: Sequence[RowWeights]) -> Iterator[tuple[str, list[Tensor]]]:
        """One sum for each of the weights, by parameter; again for each use of a parameter, to be added up."""
        for named in self.found:
            mine = {local: name for local, name in named.parameters.items() if name in chosen}
            if mine:
                found = named.rule.several_sums(named.use.only(tuple(mine)), weights)
                yield from ((name, [part[local] for part in found]) for local, name in mine.items())

    def grads(self, name: str, rows: slice) -> Tensor:
        """Per-sample gradients of one parameter, over all its uses."""
        parts = [named.rule.grads(named.use.rows(rows).only((local,)))[local] for named, local in self._meeting[name]]
        return sum(parts[1:], parts[0])

    def _shared(self, name: str, rounding_margin: bool) -> Tensor:
        """Squared norms where several uses meet, cross terms included: from the gradients, a few rows at a time."""
        named, local = self._meeting[name][0]
        size, width = len(named.use.x), named.use.module._parameters[local].numel()  # type: ignore[union-attr]
        height = max(1, HELD // max(1, width))
        held = (self.grads(name, slice(k, k + height)) for k in range(0, size, height))
        squares = torch.cat([squared_norm_of(g, rounding_margin=rounding_margin) for g in held])
        if not rounding_margin:
            return squares
        radii = [named.rule.radius(named.use.only((local,)))[local] for named, local in self._meeting[name]]
        return add_radius(squares, squares.new_zeros(()) + sum(radii))


def _merged(found: list[NamedUse]) -> list[NamedUse]:
    """Calls of one layer as one call, where its rule can do that."""
    by_layer: dict[int, list[NamedUse]] = {}
    for named in found:
        by_layer.setdefault(id(named.use.module), []).append(named)
    result = []
    for calls in by_layer.values():
        whole: LayerUse | None = calls[0].rule.merged([c.use for c in calls]) if len(calls) > 1 else None
        result += calls if whole is None else [NamedUse(whole, calls[0].parameters, calls[0].rule)]
    return result


def row_weights(weights: Tensor, dtype: torch.dtype, norms: Tensor | None = None) -> list[RowWeights]:
    """One for each group; rounded down, and 0 where no relative error would bound the rounding (subnormal numbers).

    Weights from 0 to 1 are *plain* where no row is absent for what it holds: where each is above 0, or its row finite,
    which ``norms``, if given, say. Such rows need not be masked: 0 times a finite number is 0.
    """
    narrow = round_down(weights, dtype)
    narrow = torch.where(narrow < torch.finfo(dtype).tiny, 0.0, narrow)
    present = narrow > 0 if norms is None else (narrow > 0) | norms.isfinite()
    plain = (present & (narrow <= 1)).all(dim=0).tolist()
    return [RowWeights(w, p) for w, p in zip(narrow.unbind(dim=-1), plain, strict=True)]


def _narrowest(dtypes: list[torch.dtype]) -> torch.dtype:
    return min((wide(dtype) for dtype in dtypes), key=lambda dtype: dtype.itemsize, default=torch.float32)


def _identity(loss_fn: LossFn) -> int:
    """The same for two closures of one function: a new lambda each step is not a new loss."""
    return id(getattr(loss_fn, "__code__", loss_fn))
