"""The traced engine: the ghost engine's pass as one straight line of operators, for physical batches of one size.

For small networks most of a private step is Python: the model's code, ``vmap``, the recorder, the rules. None of it
depends on records, so it can be done once. There is one line for all chunks, and nothing else serves a chunk: were
there several, made at different times, a record that moves a batch from one to another would change what all others
add. The line is made anew when the network has changed, at the beginning of a query, whatever the query draws.

Everything here is private. Proof: docs/derivations/per-record-engine.md, section 8.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten, map_tensors
from tacita.gradients.chunked import Chunk
from tacita.gradients.engine import Groups, Rule, Sums
from tacita.gradients.functional import IN_TURN, LossFn, ModuleTree, with_tensors
from tacita.gradients.ghost.engine import GhostEngine, Uses, row_weights
from tacita.gradients.ghost.rare_cases import rare_cases_left_out
from tacita.gradients.ghost.rule import RowWeights
from tacita.gradients.operators import SHARED
from tacita.gradients.reachable import reachable, references
from tacita.gradients.retention import same_objects, seen
from tacita.gradients.seeds import generator_states
from tacita.gradients.traced_step import Halfway, TracedStep, weights_come_in
from tacita.gradients.weighted_sums import full_precision, weight_arrays

_ATTEMPTS = 5  # at a trace in which no other thread draws
_OF_MODULE = frozenset(vars(nn.Module()))  # the attributes that every module has


class TracedEngine(GhostEngine):
    """The ghost engine on one straight line; rows that fill up a chunk are copies of its first, with weight 0.

    Attributes:
        lines: The lines of the network, kept by whoever makes engines.
    """

    lines: "Lines"
    _line: TracedStep

    def weighted_sums(self, rule: Rule, groups: Groups) -> Sums:
        arrays = len(weight_arrays(rule, self._no_norms(groups, 0)))
        self._line = self.lines.line(self, groups, arrays)  # before any record is read
        return super().weighted_sums(rule, groups)

    def norms(self, groups: Groups) -> Tensor:
        self._line = self.lines.line(self, groups, 1)
        return super().norms(groups)

    def _chunk_sums(self, chunk: Chunk, rule: Rule, groups: Groups) -> tuple[list[dict[str, Tensor]], Tensor]:
        with full_precision(self._device):
            begun = self._begun(chunk)
            norms = begun.norms[: chunk.size]
            filled = [filled_up(one, self.lines.size, zeros=True) for one in weight_arrays(rule, norms)]
            rows = [row for one in filled for row in row_weights(one, self.narrowest, begun.norms)]
            plain = all(row.plain for row in rows)  # those that were added, too
            sums = iter(begun.sums([row.values for row in rows], masked=not plain))
        names = [name for names in groups.values() for name in names]
        return [{name: next(sums) for name in names} for _ in filled], norms

    def _chunk_norms(self, chunk: Chunk, groups: Groups) -> Tensor:
        with full_precision(self._device):
            return self._begun(chunk).norms[: chunk.size]

    def _begun(self, chunk: Chunk) -> Halfway:
        """Run the line up to the norms."""
        tensors, _ = flatten(chunk.batch, chunk.size)
        fixed = fixed_tensors(ModuleTree(self.model), self.params).values()
        given = [*self.params.values(), *fixed, *(filled_up(one, self.lines.size) for one in tensors)]
        return self._line.begin(given, lent=chunk.lent)


@dataclass(frozen=True)
class _State:
    """What a network's code is, as far as it is compared."""

    modules: list[Any]
    places: tuple
    references: list[Any]
    outside: list[tuple[Tensor, int]]

    def same(self, other: "_State") -> bool:
        """Return whether nothing that is compared has changed."""
        return (
            self.places == other.places
            and _equal(self.modules, other.modules, same_objects)
            and _equal(self.references, other.references, is_)
            and _equal(self.outside, other.outside, lambda one, same: one[0] is same[0] and one[1] == same[1])
        )


def _equal(one: list[Any], other: list[Any], same: Callable[[Any, Any], bool]) -> bool:
    return len(one) == len(other) and all(map(same, one, other))


class Lines:
    """The lines of one network: one for each choice of groups and of how many sums.

    Args:
        model: The network.
        loss_fn: Its loss.
        like: A batch of at least one row, for its shapes.
        size: Rows of the chunks that the lines are for.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn, like: Any, size: int) -> None:
        self._model, self._loss_fn, self.size = model, loss_fn, size
        self._like = map_tensors(lambda one: one.new_zeros(2, *one.shape[1:]), like)
        self._lines: dict[tuple, TracedStep] = {}
        self._state: _State | None = None

    def line(self, engine: GhostEngine, groups: Groups, arrays: int) -> TracedStep:
        """Return the line; make it if it is not known, or if the network has changed. No record is looked at."""
        with IN_TURN:
            state = self._present(engine)
            if self._state is None or not state.same(self._state):
                self._lines.clear()
                self._state = state
            key = (tuple(groups.items()), arrays, engine.bare, engine.rounding_margin, _switches(engine._device))
            if key not in self._lines:
                self._lines[key] = trace(engine, self._like, self.size, groups, arrays)
            return self._lines[key]

    def _present(self, engine: GhostEngine) -> _State:
        tree = ModuleTree(self._model)
        index = {id(t): k for k, t in enumerate({id(t): t for t in tree.by_name.values()}.values())}
        tied = tuple((name, index[id(one)]) for name, one in tree.by_name.items())
        given = {**engine.params, **fixed_tensors(tree, engine.params)}
        kinds = tuple((n, one.shape, one.dtype, one.stride(), str(one.device)) for n, one in given.items())
        hooks = [kept for _, module in tree.modules for kept in _hooks(module)] + _hooks_of_all()
        counts = tuple(len(kept) for kept in hooks)
        found = [one for one in reachable(self._loss_fn, self._model).values() if isinstance(one, Tensor)]
        found += [one for _, module in tree.modules for one in vars(module).values() if isinstance(one, Tensor)]
        entries = [one for _, module in tree.modules for one in _entries(module)]
        own = {id(one) for one in tree.tensors}
        outside = [(t, t._version) for t in (*found, *entries) if isinstance(t, Tensor) and id(t) not in own]
        modules = [seen(module) for _, module in tree.modules]
        named = [*references(self._loss_fn), *entries, *(hook for kept in hooks for hook in kept.values())]
        return _State(modules, (tied, kinds, counts), named, outside)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_lines": {}, "_state": None}  # a line is made anew


def trace(engine: GhostEngine, like: Any, size: int, groups: Groups, arrays: int) -> TracedStep:
    """Return the line of a chunk.

    Args:
        engine: An engine of the network.
        like: A batch, for the shapes of its rows.
        size: The rows of the chunk.
        groups: The groups.
        arrays: How many weight arrays the sums are for.
    """
    tensors, rebuild = flatten(like, 2)
    fixed = fixed_tensors(ModuleTree(engine.model), engine.params)
    names, first = [*engine.params], len(engine.params)
    second = first + len(fixed)
    order = [name for of_group in groups.values() for name in of_group]

    def run(inputs: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        params = dict(zip(names, inputs[:first], strict=True))
        others = dict(zip(fixed, inputs[first:second], strict=True))
        plain = GhostEngine(engine.model, engine.loss_fn, params, [], torch.empty(0))
        plain.bare, plain.rounding_margin = engine.bare, engine.rounding_margin
        with with_tensors(ModuleTree(engine.model), others), rare_cases_left_out():
            uses = Uses(plain, Chunk(rebuild(inputs[second:]), size, 0), groups)
            with full_precision(engine._device):
                norms = uses.norms(groups)
                sums = []
                for plain_rows, some in ((True, uses.copy()), (False, uses)):
                    rows = [RowWeights(weights_come_in(one), plain=plain_rows) for one in weights]
                    sums += some.sums([rows[k : k + len(groups)] for k in range(0, len(rows), len(groups))], groups)
        return [norms, *(one[name] for one in sums for name in order)]

    given = [*engine.params.values(), *fixed.values(), *(one.new_zeros(size, *one.shape[1:]) for one in tensors)]
    weight = torch.empty(size, dtype=engine.narrowest, device=engine._device)
    with IN_TURN:  # PyTorch's tracer has switches that belong to the process
        return TracedStep(run, given, [weight.clone() for _ in range(arrays * len(groups))], arrays * len(order))


def check_traceable(engine: GhostEngine, like: Any, size: int) -> None:
    """Trace a chunk of ``size`` rows, and look whether the code draws numbers, which it would draw once for all steps.

    Python's, NumPy's or PyTorch's generator may be moved by another thread, too. It is, if it moves in as much time
    without a trace as well, and all lines are the same.

    Raises:
        UnsupportedModuleError: The code draws numbers.
        Exception: Whatever else stands in the way.
    """
    found: list[TracedStep] = []
    others_draw = False
    for _ in range(_ATTEMPTS if threading.active_count() > 1 else 1):
        with IN_TURN:
            before, begun = generator_states(engine._device), time.monotonic()
            lines = Lines(engine.model, engine.loss_fn, like, size)
            found.append(lines.line(engine, {"all": tuple(engine.params)}, 1))
            moved, seconds = generator_states(engine._device), time.monotonic() - begun
            if moved == before:
                return
            if threading.active_count() > 1:
                time.sleep(seconds)
            others_draw = others_draw or generator_states(engine._device) != moved
    if not (others_draw and all(found[0].same(one) for one in found)):
        raise UnsupportedModuleError(SHARED)


def fixed_tensors(tree: ModuleTree, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the buffers and frozen parameters of a model, each once, by name."""
    known = {id(tree.by_name[name]) for name in params}
    found: dict[str, Tensor] = {}
    for name, tensor in tree.by_name.items():
        if id(tensor) not in known:
            known.add(id(tensor))
            found[name] = tensor
    return found


def filled_up(tensor: Tensor, size: int, *, zeros: bool = False) -> Tensor:
    """Return a tensor with ``size`` rows: those that are added are copies of the first, or zeros."""
    missing = size - len(tensor)
    if missing == 0:
        return tensor.contiguous()
    row = torch.zeros_like(tensor[:1]) if zeros else tensor[:1]
    return torch.cat([tensor, row.expand(missing, *tensor.shape[1:])])


def _switches(device: torch.device) -> tuple:
    """Return what else decides what the model's code does: autocast and the default dtype."""
    kind = device.type
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), torch.get_default_dtype()


def _entries(module: nn.Module) -> Iterator[Any]:
    """Yield the entries of a module's own dictionaries, lists and tuples: PEFT keeps the scale of an adapter in one."""
    for name, one in vars(module).items():
        if name not in _OF_MODULE and isinstance(one, dict | list | tuple):
            yield from one
            yield from one.values() if isinstance(one, dict) else ()


def _hooks(module: nn.Module) -> tuple[Mapping[int, Any], ...]:
    return module._forward_hooks, module._forward_pre_hooks


def _hooks_of_all() -> list[Mapping[int, Any]]:
    """Return the hooks that are registered for all modules."""
    of_all = nn.modules.module
    forward = of_all._global_forward_hooks, of_all._global_forward_pre_hooks
    backward = of_all._global_backward_hooks, of_all._global_backward_pre_hooks
    return [*forward, *backward]
