"""The engine of programs: the rules of layers run on what a program yields, and the model's code does not run.

Everything here is private. Proof: docs/derivations/program.md.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten, map_tensors, memory_address, tensors_in
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.engine import Groups, Rule
from tacita.gradients.functional import IN_TURN, PLAIN, LossFn, ModuleTree
from tacita.gradients.processes import is_dtensor
from tacita.gradients.program.recorded_calls import RecordedCall
from tacita.gradients.program.run import Program, plain_tensors_only
from tacita.gradients.program.run import build as of_gradients
from tacita.gradients.program.surroundings import plain_autograd
from tacita.gradients.program.trace import fixed_tensors
from tacita.gradients.references import references
from tacita.gradients.rules.derived import Derivations
from tacita.gradients.rules.rule import NamedUse, named_autograd_use
from tacita.gradients.rules.uses import Uses, norms_taken, row_weights
from tacita.gradients.weighted_sums import full_precision, weight_arrays, wide

TakeNorms = Callable[[NamedUse], list[NamedUse]]  # takes the norms of a use, and returns what remains of it
WATCHED_FROM = 2**20  # bytes of input and output: for fewer, early norms cost more time than the memory is worth

Build = Callable[[nn.Module, LossFn, Mapping[str, Tensor], Any], Program]  # as of build()


class ProgramEngine(ChunkedEngine):
    """The engine that runs a program on records: the operators of the model's pass, then the rules of layers.

    Norms are upper bounds, of the gradient's norm and of what a row of weight 1 adds to the sums as computed.

    Attributes:
        programs: The programs of the network, kept by whoever makes engines; by default traced for the first chunk.
        rounding_margin: Set to ``False`` on one engine to compare it with another.
    """

    rounding_margin = True
    programs: "Programs | None" = None
    _program: Program | None = None
    _inputs: list[Tensor]

    def prepare(self) -> None:
        """Get the program for the network's present state, whatever the batch holds; no record is read.

        Raises:
            UnsupportedModuleError: As :meth:`Programs.program`.
        """
        if self.programs is not None:
            self._program, self._inputs = self.programs.program(self.params)

    def _ready(self, chunk: Chunk) -> None:
        if self.programs is None:
            self.programs = Programs(self.model, self.loss_fn, chunk.batch)
        if self._program is None:
            self.prepare()

    def uses(self, chunk: Chunk, groups: Groups | None = None) -> Uses:
        """Run the program on ``chunk`` and return the uses of parameters.

        Args:
            chunk: At least one record.
            groups: The groups that norms and sums will be asked for; none if gradients will.
        """
        self._ready(chunk)
        chosen = {name for names in (groups or {}).values() for name in names}
        take = partial(norms_taken, chosen=chosen) if groups is not None else None
        return Uses(self._found(chunk, take), chunk.size, self.params, margin=self.rounding_margin)

    def _chunk_sums(self, chunk: Chunk, rule: Rule, groups: Groups) -> tuple[list[dict[str, Tensor]], Tensor]:
        uses = self.uses(chunk, groups)
        with full_precision(self._device):
            norms = uses.norms(groups)
            weights = [row_weights(one, self._narrowest, norms) for one in weight_arrays(rule, norms)]
            return uses.sums(weights, groups, partial(self.ranks.reduced, self.params)), norms

    def _chunk_norms(self, chunk: Chunk, groups: Groups) -> Tensor:
        uses = self.uses(chunk, groups)
        with full_precision(self._device):
            return uses.norms(groups)

    def _chunk_grads(self, chunk: Chunk) -> dict[str, Tensor]:
        uses = self.uses(chunk)
        with full_precision(self._device):
            grads = {name: uses.grads(name) for name in self.params}
        own = {memory_address(one) for one in tensors_in(chunk.batch)}  # a gradient may be a part of the batch
        return {name: grad.clone() if memory_address(grad) in own else grad for name, grad in grads.items()}

    def _found(self, chunk: Chunk, take_norms: TakeNorms | None) -> list[NamedUse]:
        """Run the program; return the uses, or what ``take_norms`` left of them."""
        program = self._program
        assert program is not None
        through = Derivations() if any(call.derived for call in program.calls) else None
        remains: dict[int, list[NamedUse]] = {}

        def take(position: int, call: RecordedCall) -> None:
            uses = call.uses(through)
            alone = all(program.met[name] == 1 for name in call.parameters.values())
            if take_norms is not None and alone and not (call.derived or call.copies):
                uses = [left for use in uses for left in (take_norms(use) if _watched(use) else [use])]
            remains[position] = uses

        tensors, _ = flatten(chunk.batch, chunk.size)
        of_copies = program.run([*self._inputs, *tensors], chunk.size, take)
        found = [use for position in sorted(remains) for use in remains[position]]
        found += through.pulled_uses() if through is not None else []
        return found + [named_autograd_use(name, grads) for name, grads in of_copies.items()]

    @property
    def _narrowest(self) -> torch.dtype:
        """The narrowest dtype in which a parameter's gradients are summed; weights are rounded down to it."""
        dtypes = {wide(p.dtype) for p in self.params.values()} or {torch.float32}
        return min(dtypes, key=lambda dtype: dtype.itemsize)

    @contextmanager
    def _seeded(self, chunk: Chunk) -> Iterator[None]:
        self._ready(chunk)  # before anything is switched off
        assert self._program is not None
        with plain_tensors_only(), super()._seeded(chunk) if self._program.draws else nullcontext():
            yield


def _watched(use: NamedUse) -> bool:
    """Return whether per-sample gradients are smaller than a large call's input and output gradient."""
    x, grad = use.use.x, use.use.grad
    small = sum(shape.numel() for shape in use.use.shapes.values()) <= x[0].numel() + grad[0].numel()
    return small and x.nbytes + grad.nbytes >= WATCHED_FROM


class Programs:
    """The programs of one network: one for each state of its modules.

    Args:
        model: The network.
        loss_fn: Its loss.
        like: A batch of at least one row, for its shapes.
        build: Traces and makes a program; that of gradients of a whole model by default.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn, like: Any, build: Build | None = None) -> None:
        self._model, self._loss_fn, self._build = model, loss_fn, build or of_gradients
        self._like = map_tensors(lambda one: one.new_zeros(1, *one.shape[1:]), like)
        self._programs: dict[Any, tuple[Program, dict[str, Any], list[Any]]] = {}  # the last: what ids are of, alive

    def program(self, params: Mapping[str, Tensor]) -> tuple[Program, list[Tensor]]:
        """Return the program for the network's present state, and its first inputs: parameters, then other weights.

        It is traced if the state is new. No record is looked at.

        Raises:
            UnsupportedModuleError: The network cannot be written down; or an attribute of a module has changed since
                the program of this state was traced.
        """
        with IN_TURN, plain_autograd():
            tree = ModuleTree(self._model)
            fixed = fixed_tensors(tree, params)
            inputs = [*params.values(), *fixed.values()]
            for name, one in zip([*params, *fixed], inputs, strict=True):
                if type(one) not in (Tensor, nn.Parameter, nn.Buffer) and not is_dtensor(one):
                    _refuse_subclass(name, one)
            key = self._key(tree, {**params, **fixed})
            held = _attributes(tree) | self._around()
            own = {id(one) for one in tree.tensors}  # a module may list its weights in an attribute, too
            attributes = {name: _as_compared(value, own) for name, value in held.items()}
            if key not in self._programs:
                program = self._build(self._model, self._loss_fn, params, self._like)
                _refuse_counters(program.written, held, tree)
                self._programs[key] = program, attributes, [*held.values(), *_hooks(tree)]
            program, before, _ = self._programs[key]
            if changed := {name for name, _ in before.items() ^ attributes.items()} - program.written:
                _refuse_change(min(changed))
            return program, [Tensor.detach(one) for one in inputs]

    @property
    def only_reads(self) -> bool:
        """Whether nothing writes a batch."""
        return all(program.only_reads for program, _, _ in self._programs.values())

    def retrace(self) -> None:
        """Forget all programs: the next query traces the model and the loss as they are then."""
        with IN_TURN:
            self._programs.clear()

    def _around(self) -> dict[str, Any]:
        """Return what the loss refers to, and what modules among it hold: a criterion, a teacher."""
        found: dict[str, Any] = {}
        for k, one in enumerate(references(self._loss_fn)):
            found[f"loss_fn ({k})"] = one
            if isinstance(one, nn.Module) and one is not self._model:
                tree = ModuleTree(one)
                found |= {f"loss_fn ({k}).{name}": part for name, part in (_attributes(tree) | tree.by_name).items()}
        return found

    def _key(self, tree: ModuleTree, given: Mapping[str, Tensor]) -> tuple:
        index = {id(t): k for k, t in enumerate({id(t): t for t in tree.by_name.values()}.values())}
        tied = tuple((name, index[id(one)]) for name, one in tree.by_name.items())
        kinds = tuple((n, t.shape, t.dtype, t.stride(), t.device) for n, t in given.items())
        modules = tuple((name, type(one), one.training) for name, one in tree.modules)
        hooks = tuple(map(id, _hooks(tree)))
        device = next(iter(given.values())).device.type
        switches = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device), torch.get_default_dtype()
        return tied, kinds, modules, hooks, switches

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_programs": {}}  # a program is traced anew


MOST_ENTRIES = 1000  # of an attribute, nested ones too, that are compared one by one
_OF_MODULE = frozenset({*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"})  # every module has these, or an LSTM


def _hooks(tree: ModuleTree) -> list[Any]:
    of_all = nn.modules.module
    found = [of_all._global_forward_hooks, of_all._global_forward_pre_hooks]
    found += [of_all._global_backward_hooks, of_all._global_backward_pre_hooks]
    for _, m in tree.modules:
        found += [m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks]
    return [hook for kept in found for hook in kept.values()]


def _attributes(tree: ModuleTree) -> dict[str, Any]:
    """Return the attributes of all modules that are no parameters, buffers or modules, by name."""
    return {
        f"{prefix}.{name}" if prefix else name: value
        for prefix, module in tree.modules
        for name, value in vars(module).items()
        if name not in _OF_MODULE
    }


def _as_compared(value: Any, own: set[int], left: list[int] | None = None, around: tuple[int, ...] = ()) -> Any:
    """Return what is compared of an attribute: a value's text, or which object it is; of a container all that it holds.

    Args:
        value: The attribute, or what it holds.
        own: The identities of the model's own tensors, which are read at each query.
        left: How many more entries are compared one by one.
        around: The identities of the containers that hold it.
    """
    parts = _plain_parts(value)
    if parts is None or id(value) in around:
        return _entry(value, own)
    left = left or [MOST_ENTRIES]
    left[0] -= len(parts)
    if left[0] < 0:
        return id(value), len(parts)
    return tuple((name, _as_compared(part, own, left, (*around, id(value)))) for name, part in parts)


def _plain_parts(value: Any) -> list[tuple[str, Any]] | None:
    """Return what a plain container, a dataclass or a namespace holds, by name; ``None`` for any other object."""
    if value is None or isinstance(value, (*PLAIN, Tensor)):
        return None
    if isinstance(value, dict):
        return [(repr(key), part) for key, part in value.items()] if len(value) <= MOST_ENTRIES else None
    if isinstance(value, list | tuple):
        return [("", part) for part in value] if len(value) <= MOST_ENTRIES else None
    if isinstance(value, SimpleNamespace):
        return [*vars(value).items()]
    if is_dataclass(value) and not isinstance(value, type | nn.Module):
        return [(one.name, getattr(value, one.name, None)) for one in fields(value)]
    return None


def _entry(value: Any, own: set[int]) -> Any:
    if value is None or isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, Tensor):
        return "own" if id(value) in own else (id(value), value._version)
    return (id(value), len(value)) if isinstance(value, dict | list | tuple) else id(value)


def _refuse_counters(written: frozenset[str], held: Mapping[str, Any], tree: ModuleTree) -> None:
    modules = dict(tree.modules)
    for name in sorted(written):
        prefix, _, own = name.rpartition(".")
        if isinstance(held.get(name, getattr(type(modules.get(prefix)), own, None)), PLAIN):  # maybe its class's
            raise UnsupportedModuleError(
                f"the forward pass changes {name!r} of the model, and a query does not run it: count outside of it"
            )


def _refuse_change(name: str) -> None:
    raise UnsupportedModuleError(
        f"{name!r}, which the model or the loss refers to, has changed since the program was traced, and the "
        "program still has the value of then. Call oracle.retrace() after a change that is meant, or change it back."
    )


def _refuse_subclass(name: str, tensor: Tensor) -> None:
    raise UnsupportedModuleError(
        f"{name!r} is a {type(tensor).__name__}, a tensor with code of its own, which a program does not run. Use a "
        "plain tensor."
    )
