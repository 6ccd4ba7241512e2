"""The traced engine: the ghost engine's passes as straight lines, made once for each shape of a chunk.

For small networks most of a private step is Python: the model's code, ``vmap``, the recorder, the rules. None of it
depends on records, so it can be done once. A line is forgotten when the network has changed: its modules, their plain
attributes and hooks, or what the loss refers to.

Everything here is private. Proof: docs/derivations/per-record-engine.md, section 8.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from tacita.gradients.batches import flatten, map_tensors
from tacita.gradients.chunked import Chunk
from tacita.gradients.engine import Groups, Rule
from tacita.gradients.functional import LossFn, ModuleTree, with_tensors
from tacita.gradients.ghost.engine import GhostEngine, Uses, row_weights
from tacita.gradients.ghost.rare_cases import rare_cases_flagged
from tacita.gradients.ghost.rule import RowWeights
from tacita.gradients.reachable import reachable, references
from tacita.gradients.retention import same_objects, seen
from tacita.gradients.traced_step import TracedStep, weights_come_in
from tacita.gradients.weighted_sums import full_precision, weight_arrays

SHARES = 8  # chunks are filled up to a size of which there are so many between two powers of two
MOST_STEPS = 32  # that are remembered at once


class TracedEngine(GhostEngine):
    """The ghost engine on straight lines; rows beyond the grid of sizes are copies of the first, with weight 0.

    The engine takes a chunk in the ordinary way where a rare case is there: a row that is not finite, a weight above 1,
    a norm that its Gram matrix hides.

    Attributes:
        steps: The lines that are known, kept by whoever makes engines.
    """

    steps: "TracedSteps"
    _first_size = 0  # of the first chunk: those after it are as large, but for the last

    def _chunk_sums(self, chunk: Chunk, rule: Rule, groups: Groups) -> tuple[list[dict[str, Tensor]], Tensor]:
        arrays = len(weight_arrays(rule, self._no_norms(groups, 0)))
        step, given = self._step(chunk, groups, arrays)
        with full_precision(self._device):
            begun = step.begin(given)
            norms = begun.norms[: chunk.size]
            weights = () if begun.is_rare() else weight_arrays(rule, norms)
            filled = [filled_up(one, len(begun.norms), zeros=True) for one in weights]
            found = [row_weights(one, self.narrowest, begun.norms) for one in filled]
            rows = [row for one in found for row in one]
            if rows and all(row.plain for row in rows):  # those that were added, too
                sums = iter(begun.sums([row.values for row in rows]))
                names = [name for names in groups.values() for name in names]
                return [{name: next(sums) for name in names} for _ in found], norms
            del begun
        return super()._chunk_sums(chunk, rule, groups)

    def _chunk_norms(self, chunk: Chunk, groups: Groups) -> Tensor:
        step, given = self._step(chunk, groups, 1)
        with full_precision(self._device):
            begun = step.begin(given)
        return super()._chunk_norms(chunk, groups) if begun.is_rare() else begun.norms[: chunk.size]

    def _step(self, chunk: Chunk, groups: Groups, arrays: int) -> tuple[TracedStep, list[Tensor]]:
        """Return the line of a chunk, and what it takes."""
        self._first_size = self._first_size or chunk.size
        size = filled_size(chunk.size)
        if chunk.size < self._first_size:  # the last chunk may have any size: fewer lines serve it
            size = min(2 ** (chunk.size - 1).bit_length(), filled_size(self._first_size))
        return self.steps.step(self, chunk, size, groups, arrays)


class TracedSteps:
    """The lines of one network, by the shapes that they are for."""

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        self._model, self._loss_fn = model, loss_fn
        self._steps: dict[tuple, TracedStep] = {}
        self._modules, self._references = list[Any](), list[Any]()
        self._outside: list[tuple[Tensor, int]] = []  # tensors that the loss refers to, with their versions

    def step(
        self, engine: GhostEngine, chunk: Chunk, size: int, groups: Groups, arrays: int
    ) -> tuple[TracedStep, list[Tensor]]:
        """Return the line of a chunk that is filled up to ``size`` rows, and what it takes. Trace it if it is new."""
        tree = ModuleTree(self._model)
        if not self._is_as_it_was(tree):
            self._steps.clear()
        tensors, rebuild = flatten(chunk.batch, chunk.size)
        fixed = fixed_tensors(tree, engine.params)
        given = [*engine.params.values(), *fixed.values(), *(filled_up(one, size) for one in tensors)]
        kinds = tuple((one.shape, one.dtype) for one in given)
        key = (kinds, tuple(groups.items()), arrays, engine.bare, engine.rounding_margin, _switches(engine._device))
        step = self._steps.pop(key, None)
        if step is None:
            step = trace(engine, given, [*fixed], rebuild, groups, arrays)
        self._steps[key] = step  # the last one used stands last
        if len(self._steps) > MOST_STEPS:
            del self._steps[next(iter(self._steps))]
        return step, given

    def _is_as_it_was(self, tree: ModuleTree) -> bool:
        """Return whether the network's code would do what was traced; if not, remember what it is now."""
        modules, names = [seen(module) for _, module in tree.modules], references(self._loss_fn)
        same = len(modules) == len(self._modules) and all(map(same_objects, modules, self._modules))
        same = same and len(names) == len(self._references) and all(map(is_, names, self._references))
        if same and all(one._version == version for one, version in self._outside):
            return True
        self._modules, self._references = modules, names
        found = reachable(self._loss_fn, self._model).values()
        self._outside = [(one, one._version) for one in found if isinstance(one, Tensor)]
        return False


def trace(  # noqa: PLR0917
    engine: GhostEngine,
    given: Sequence[Tensor],
    fixed: Sequence[str],
    rebuild: Callable[[Sequence[Tensor]], Any],
    groups: Groups,
    arrays: int,
) -> TracedStep:
    """Return the line of a chunk.

    Args:
        engine: An engine of the network.
        given: The parameters, the other tensors of the model, and those of the batch, (size, ...): for their shapes.
        fixed: Names of the other tensors.
        rebuild: Makes a batch of its tensors.
        groups: The groups.
        arrays: How many weight arrays the sums are for.
    """
    names, first = [*engine.params], len(engine.params)
    second = first + len(fixed)
    size = len(given[second])
    order = [name for of_group in groups.values() for name in of_group]

    def run(inputs: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        params = dict(zip(names, inputs[:first], strict=True))
        others = dict(zip(fixed, inputs[first:second], strict=True))
        plain = GhostEngine(engine.model, engine.loss_fn, params, [], torch.empty(0))
        plain.bare, plain.rounding_margin = engine.bare, engine.rounding_margin
        with with_tensors(ModuleTree(engine.model), others), rare_cases_flagged() as flags:
            uses = Uses(plain, Chunk(rebuild(inputs[second:]), size, 0), groups)
            with full_precision(engine._device):
                norms = uses.norms(groups)
                rows = [RowWeights(weights_come_in(one), plain=True) for one in weights]
                sums = uses.sums([rows[k : k + len(groups)] for k in range(0, len(rows), len(groups))], groups)
        return [norms, *flags, *(one[name] for one in sums for name in order)]

    weight = torch.empty(size, dtype=engine.narrowest, device=engine._device)
    return TracedStep(run, given, [weight.clone() for _ in range(arrays * len(groups))], arrays * len(order))


def check_traceable(engine: GhostEngine, like: Any) -> None:
    """Trace a chunk of two rows like those of ``like``.

    Raises:
        Exception: Whatever stands in the way.
    """
    tensors, rebuild = flatten(map_tensors(lambda one: one.new_zeros(2, *one.shape[1:]), like), 2)
    fixed = fixed_tensors(ModuleTree(engine.model), engine.params)
    given = [*engine.params.values(), *fixed.values(), *tensors]
    trace(engine, given, [*fixed], rebuild, {"all": tuple(engine.params)}, 1)


def fixed_tensors(tree: ModuleTree, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the buffers and frozen parameters of a model, each once, by name."""
    known = {id(tree.by_name[name]) for name in params}
    found: dict[str, Tensor] = {}
    for name, tensor in tree.by_name.items():
        if id(tensor) not in known:
            known.add(id(tensor))
            found[name] = tensor
    return found


def filled_size(size: int) -> int:
    """Return the next size of the grid, at most an eighth more."""
    step = max(1, 2 ** (size.bit_length() - 1) // SHARES)
    return -(-size // step) * step


def filled_up(tensor: Tensor, size: int, *, zeros: bool = False) -> Tensor:
    """Return a tensor with ``size`` rows: those that are added are copies of the first, or zeros."""
    missing = size - len(tensor)
    if missing == 0:
        return tensor
    row = torch.zeros_like(tensor[:1]) if zeros else tensor[:1]
    return torch.cat([tensor, row.expand(missing, *tensor.shape[1:])])


def _switches(device: torch.device) -> tuple:
    """Return what else decides what the model's code does: autocast, the default dtype, hooks on all modules."""
    hooks = nn.modules.module
    kind = device.type
    return (
        torch.is_autocast_enabled(kind),
        torch.get_autocast_dtype(kind),
        torch.get_default_dtype(),
        len(hooks._global_forward_hooks) + len(hooks._global_forward_pre_hooks),
        len(hooks._global_backward_hooks) + len(hooks._global_backward_pre_hooks),
    )
