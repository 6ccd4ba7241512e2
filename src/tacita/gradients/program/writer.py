"""Run a model and its loss on one record without values, and write down which torch functions they call.

The user's code runs here and nowhere else: on tensors that have the shapes of a single record and no values. It does
not know how many records there are, and no tensor of several records is there to be reached. A *tape* is the list of
the torch functions that it called, each with plain arguments; ``trace.py`` plays it for all records.

Constants are computed with their values, so that code may look at its own masks; a tape holds copies of them. What an
``autograd.Function`` gives backwards, and what runs within ``torch.func.grad`` and its kin, is written down too: a tape
refers to no code of the user's.

Everything here is private. Proof: docs/derivations/program.md, section 1.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from operator import index
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.function import FunctionCtx
from torch.overrides import (
    TorchFunctionMode,
)
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _push_mode,
)
from torch.utils._pytree import tree_leaves, tree_map

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten, memory_key, tensors_in
from tacita.gradients.functional import (
    IN_TURN,
    LossFn,
    ModuleTree,
    WrittenMemory,
    attributes_kept,
    losses_at,
    with_tensors,
)
from tacita.gradients.program.allowed import (
    HOOKED,
    check_backward_hooks,
    check_function,
    code_line,
    exact,
    known_functions,
)
from tacita.gradients.program.check import WRITES_GIVEN, is_of_pytorch, written
from tacita.gradients.program.surroundings import SEED_SET, compiling, mode_stacks, modes_kept, nothing_drawn, quiet
from tacita.gradients.program.tape import Constant, Ref, Tape, TapedBackward, TapedCall, tensors_of
from tacita.gradients.rules.registry import RULES
from tacita.gradients.seeds import is_global

_PLAIN = (Tensor, nn.Parameter, nn.Buffer, FakeTensor)
_FIRST = ("self", "input", "tensor")  # what torch calls the first argument of a function that writes it


def written_down(
    model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], fixed: Mapping[str, Tensor], like: Any
) -> Tape:
    """Run a model and its loss on one record without values, and write down what they call.

    Args:
        model: Not modified.
        loss_fn: ``(model, batch) -> losses``; sees a batch of one record.
        params: The trainable parameters; their values are not read.
        fixed: The buffers and frozen parameters, the same.
        like: A batch, for the shapes of its rows.

    Raises:
        UnsupportedModuleError: The code does what a query cannot do again.
        Exception: Whatever it raises where it depends on values.
    """
    tensors, rebuild = flatten(like, len(tensors_in(like)[0]))
    with IN_TURN, quiet(), nothing_drawn(), torch.enable_grad(), compiling():
        tree, fake = ModuleTree(model), FakeTensorMode(allow_non_fake_inputs=True)
        check_backward_hooks(tree)
        point = {name: fake.from_tensor(one.detach()).requires_grad_() for name, one in params.items()}
        others = {name: fake.from_tensor(one.detach()) for name, one in fixed.items()}
        record = [fake.from_tensor(one.new_zeros(1, *one.shape[1:])) for one in tensors]
        writer = _Writer(fake, [*point.values(), *others.values()], record)
        with attributes_kept(tree) as written, with_tensors(tree, others), writer.watching():
            writer.end(losses_at(tree, loss_fn, point, rebuild(record), 1))
        writer.tape.written = written
    return writer.tape


class _Writer(TorchFunctionMode):
    """Writes down the calls of torch functions.

    Args:
        fake: Makes tensors without values.
        weights: Such tensors, the same for all records.
        record: Those of the record.
    """

    def __init__(self, fake: FakeTensorMode, weights: Sequence[Tensor], record: Sequence[Tensor]) -> None:
        super().__init__()
        self._fake = fake
        self.tape = Tape()
        self.drawing = False  # a draw is made that is the same function of no record
        self.kept: set[int] | None = None  # memory that the function must not write which runs now; None if none runs
        self._slots: dict[int, tuple[int, int, Tensor]] = {}  # id -> slot, PyTorch's identity; kept, lest an id recurs
        self._constants: dict[tuple[int, int], tuple[int, Tensor]] = {}  # (id, version) -> place
        self._count = 0
        self._firsts: dict[int, int] = {}  # memory without values -> the slot that it began with
        self._made: dict[int, Tensor] = {}  # memory with values that was made here
        self._twins: dict[int, Tensor] = {}  # memory with values -> what stands for it, once a record is written to it
        for one in (*weights, *record):
            self._new(one)
        self._given = {*self._firsts}
        self._record = {memory_key(one) for one in record}
        self._of_records = {*self._record}
        self._devices = sorted({"cpu", *(one.device.type for one in (*weights, *record))})
        self._modes = self._lowering = 0
        self._unfinished: list[Callable[[], None]] = []  # backward passes that are still to be written down
        self._lent: set[int] = set()  # memory of gradients that a backward pass was given

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Write down what is called inside."""
        functions: Any = torch.autograd.function
        call, active = functions.custom_function_call, torch._C._are_functorch_transforms_active
        self._call_plainly, thread = call, threading.get_ident()

        def transforming() -> bool:
            return active() or (threading.get_ident() == thread and not self._lowering)

        try:  # autograd.Function.apply asks the latter, and then calls the former
            functions.custom_function_call, torch._C._are_functorch_transforms_active = self._function, transforming
            with modes_kept():
                _push_mode(_Below(self))
                self.__enter__()
                stacks = mode_stacks()
                self._modes = len(stacks[1])
                yield
                if mode_stacks() != stacks:
                    raise UnsupportedModuleError(
                        "the code leaves a mode of PyTorch on that it has entered, or ends one"
                    )
        finally:
            functions.custom_function_call, torch._C._are_functorch_transforms_active = call, active

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        inside = _functorch.maybe_current_level() is not None
        check_function(func, args, inside=inside)
        if len(_get_current_dispatch_mode_stack()) != self._modes:
            raise UnsupportedModuleError(
                f"{code_line()}: runs within a TorchDispatchMode of the model's own, which a query leaves out: leave "
                "it out, too"
            )
        if inside or func is torch.autograd.grad:  # the operators that it comes to are written down
            return func(*args, **kwargs)
        return self.call(func, args, kwargs)

    def call(self, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """TapedCall a function; write it down if it gives or writes tensors without values."""
        one = getattr(func, func.overloads()[0]) if isinstance(func, OpOverloadPacket) else func
        if isinstance(one, OpOverload) and not is_of_pytorch(one):
            raise UnsupportedModuleError(
                f"{code_line()}: the operator {one._schema.name} is not PyTorch's own: what it does with a record is "
                "not known, nor a rule that keeps records apart. Write it in PyTorch's operators"
            )
        if func is Tensor.__setitem__ and _is_mask(*args):  # the same without a shape that depends on values
            func = Tensor.masked_fill_
        args, kwargs = self._with_twins(args), self._with_twins(kwargs)
        given, targets = tensors_of((args, kwargs)), written_by(func, args, kwargs)
        with_values = {memory_key(one) for one in given if not isinstance(one, FakeTensor)}
        if any(memory_key(one) in with_values - {*self._made} for one in targets):
            raise UnsupportedModuleError(WRITES_GIVEN.format(f"{code_line()}: "))
        if not any(isinstance(one, FakeTensor) for one in given):
            known = with_values - {*self._made}
            try:
                with WrittenMemory():
                    found = self._run(func, args, kwargs, known)
            except _DrawsError:
                return self._draw(func, args, kwargs, targets)
            self._made |= {memory_key(one): one for one in tensors_of(found) if memory_key(one) not in known}
            return found
        if type(func) not in (OpOverload, OpOverloadPacket) and func not in RULES and func not in known_functions():
            name = getattr(func, "__name__", type(func).__name__)
            raise UnsupportedModuleError(
                f"{code_line()}: {name} is no function of PyTorch's: what it does with a record is not known"
            )
        if any(memory_key(one) in self._lent for one in targets):
            raise UnsupportedModuleError(
                f"{code_line()}: the backward of an autograd.Function writes the gradient that it is given, and that "
                "of other calls with it: let it return a new tensor (grad * 2, not grad.mul_(2))"
            )
        if any([self._begin_writing(one) for one in targets]):
            args, kwargs = self._with_twins(args), self._with_twins(kwargs)
            given, targets = tensors_of((args, kwargs)), written_by(func, args, kwargs)
        of_records = any(memory_key(one) in self._of_records for one in given)
        written, line = (self.plain(args), self.plain(kwargs)), code_line()
        for one in targets if of_records else ():
            self._hold_records(one)
        found = self._run(func, args, kwargs, with_values - {*self._twins})
        results = tensors_of(found)
        if of_records:
            self._of_records |= {memory_key(one) for one in results}
        if results or targets:
            self._append(func, *written, found, line)
        return found

    def _draw(self, func: Callable, args: tuple, kwargs: dict[str, Any], targets: list[Tensor]) -> Any:
        """Write down a draw that no tensor of the record enters: each record has coins of its own, as in the loop."""
        for one in targets:
            self._begin_writing(one)
            self._hold_records(self._with_twins(one))
        if targets:
            return self.call(func, args, kwargs)
        self.drawing = True
        try:
            with self._fake:
                found = self._run(func, args, kwargs, set())
        finally:
            self.drawing = False
        self._of_records |= {memory_key(one) for one in tensors_of(found)}
        self._append(func, self.plain(args), self.plain(kwargs), found, code_line())
        return found

    def check_written(self, tensor: Tensor) -> None:
        """Look at a tensor that an operator writes."""
        if isinstance(tensor, FakeTensor):
            self.tape.writes_record |= memory_key(tensor) in self._record
        elif memory_key(tensor) in (self.kept or ()):
            raise UnsupportedModuleError(WRITES_GIVEN.format(f"{code_line()}: "))

    def end(self, losses: Tensor) -> None:
        """Note where the loss is, and write the backward passes down."""
        with torch._C.DisableTorchFunction():
            self.tape.losses = self.plain(self._with_twins(losses))
            if any(one._backward_hooks or one._post_accumulate_grad_hooks for _, _, one in self._slots.values()):
                raise UnsupportedModuleError(HOOKED)
        while self._unfinished:
            self._unfinished.pop()()

    def _run(self, func: Callable, args: tuple, kwargs: dict[str, Any], kept: set[int]) -> Any:
        """TapedCall a function; what it comes to is not written down."""
        before, self.kept = self.kept, kept
        try:
            return func(*args, **kwargs)
        finally:
            self.kept = before

    def _append(self, func: Any, args: Any, kwargs: Any, found: Any, line: str) -> TapedCall:
        results = [self._new(one) if isinstance(one, Tensor) else None for one in tree_leaves(found)]
        autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in self._devices]
        self.tape.calls.append(call := TapedCall(func, args, kwargs, results, torch.is_grad_enabled(), autocast, line))
        return call

    def plain(self, given: Any) -> Any:
        """Return an argument as a tape holds it.

        Raises:
            UnsupportedModuleError: It may have code of its own, or a tensor did not come from a call.
        """
        if isinstance(given, Tensor):
            return self._tensor(given)
        if isinstance(given, np.ndarray):
            return self._tensor(torch.from_numpy(given.copy()))
        if isinstance(given, (list, tuple, range)):
            return (tuple if isinstance(given, tuple) else list)(self.plain(one) for one in given)
        if type(given) is dict:
            return {name: self.plain(one) for name, one in given.items()}
        if type(given) is slice:
            return slice(*(None if one is None else index(one) for one in (given.start, given.stop, given.step)))
        return given if given is ... else exact(given)

    def _tensor(self, tensor: Tensor) -> "Ref | Constant":
        if type(tensor) not in _PLAIN:
            raise UnsupportedModuleError("the code uses a tensor with code of its own: use a plain tensor")
        if not isinstance(tensor, FakeTensor):
            key = id(tensor), 0 if tensor.is_inference() else tensor._version
            copied = memory_key(tensor) in self._made  # nothing else is written in a pass
            place, _ = self._constants.get(key, (None, None))  # NumPy writes it without a new version
            if place is None or (copied and not torch.equal(self.tape.constants[place], tensor)):
                self.tape.constants.append(tensor.detach().clone() if copied else tensor.detach())
                self._constants[key] = len(self.tape.constants) - 1, tensor
            return Constant(self._constants[key][0])
        slot, identity, _ = self._slots.get(id(tensor), (0, 0, None))
        if identity != tensor._cdata:
            raise UnsupportedModuleError(
                f"{code_line()}: uses a tensor that came from no call of a torch function in this pass (kept by an "
                "earlier pass, swapped, made in another thread, by compiled code or by a private function): compute it "
                "in the pass"
            )
        return Ref(slot)

    def _new(self, tensor: Tensor) -> int:
        """Return the slot of a tensor that a call has given."""
        slot, self._count = self._count, self._count + 1
        self._slots[id(tensor)] = slot, tensor._cdata, tensor
        self._firsts.setdefault(memory_key(tensor), slot)
        return slot

    def _with_twins(self, given: Any) -> Any:
        """Return arguments with what stands for tensors with values that a record was written to."""
        if isinstance(given, Tensor):
            twin = self._twins.get(memory_key(given)) if self._twins and not isinstance(given, FakeTensor) else None
            if twin is None:
                return given
            alike = given.dtype == twin.dtype and not (given.is_conj() or given.is_neg())
            if not (alike and given.is_contiguous() and given.numel() == twin.numel()):
                raise UnsupportedModuleError(WRITES_A_PART.format(code_line()))
            return self.call(torch.Tensor.view, (twin, given.shape), {})
        if type(given) is dict:
            return {name: self._with_twins(one) for name, one in given.items()}
        return type(given)(map(self._with_twins, given)) if type(given) in (list, tuple) else given

    def _begin_writing(self, tensor: Tensor) -> bool:
        """Let something without values stand for a tensor with values that is written; return whether it has such."""
        if isinstance(tensor, FakeTensor):
            return False
        key = memory_key(tensor)
        length = tensor.untyped_storage().nbytes() // tensor.element_size()
        whole = self._tensor(tensor.detach().as_strided((length,), (1,), 0))
        self._twins[key] = twin = self._fake.from_tensor(tensor.new_zeros(length))
        self._append(torch.clone, (whole,), {}, twin, code_line())
        return True

    def _hold_records(self, tensor: Tensor) -> None:
        """Let each record have its own copy of a tensor that is the same for all until one is written to it."""
        key = memory_key(tensor)
        if key not in self._of_records and key not in self._given:
            self.tape.apart.add(self._firsts[key])
        self._of_records.add(key)

    def _function(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """TapedCall an ``autograd.Function``, and write down what it does forwards and backwards."""
        if _functorch.maybe_current_level() is not None:
            return self._lowered(function, args, kwargs)
        ctx = _Context()
        ctx.needs_input_grad = tuple(isinstance(one, Tensor) and one.requires_grad for one in args)
        with torch.no_grad():
            found = function.forward(*args, **kwargs)
            function.setup_context(ctx, args, found)
        results = found if isinstance(found, tuple) else (found,)
        constant = {id(one) for one in ctx.non_differentiable or ()}
        floats = [one for one in results if isinstance(one, Tensor) and one.is_floating_point()]
        outputs = [one for one in floats if id(one) not in constant]
        if len({id(one) for one in floats}) < len(floats):
            raise UnsupportedModuleError(f"{function.__name__} returns one tensor twice: return a clone of it")
        if not (any(ctx.needs_input_grad) and outputs and torch.is_grad_enabled()):
            return tree_map(lambda one: one.detach() if isinstance(one, Tensor) else one, found)
        if ctx.dirty_tensors or not ctx.materialize_grads:
            raise UnsupportedModuleError(
                f"{function.__name__} calls ctx.mark_dirty, or ctx.set_materialize_grads(False), which is not written "
                "down: give a new tensor; take gradients of zeros"
            )
        inputs = [one for one, needed in zip(args, ctx.needs_input_grad, strict=True) if needed]
        with torch._C.DisableTorchFunction():
            fresh = self._run(lambda: [torch.zeros_like(one, requires_grad=True) for one in outputs], (), {}, set())
            if any(memory_key(one) in self._of_records for one in (*inputs, *outputs)):
                self._of_records |= {memory_key(one) for one in fresh}
            call = self._append(None, self.plain((*inputs, *outputs)), {}, fresh, code_line())
        self._unfinished.append(partial(self._backward, call, function, ctx, results, outputs))
        new = dict(zip(map(id, outputs), fresh, strict=True))
        results = tuple(new.get(id(o), o.detach() if isinstance(o, Tensor) else o) for o in results)
        return results if isinstance(found, tuple) else results[0]

    def _backward(
        self, call: TapedCall, function: Any, ctx: Any, results: Sequence[Any], outputs: Sequence[Tensor]
    ) -> None:
        """Write down what an ``autograd.Function`` does backwards; the forward pass is over."""
        calls = self.tape.calls
        start = len(calls)
        grads = {id(one): torch.zeros_like(one) for one in outputs}
        given = [self._slots[id(one)][0] for one in grads.values()]
        del calls[start:]
        self._lent |= {memory_key(one) for one in grads.values()}
        zeros = {id(one): torch.zeros_like(one) for one in results if isinstance(one, Tensor)}
        back = function.backward(ctx, *((zeros | grads).get(id(one)) for one in results))
        with torch._C.DisableTorchFunction():
            back = zip(back if isinstance(back, tuple) else (back,), ctx.needs_input_grad, strict=False)
            at = [self.plain(one) for one, needed in back if needed]
            own, calls[start:] = calls[start:], []
            made = {*given, *(slot for one in own for slot in one.results)}
            refs = [one for one in tree_leaves([*((one.args, one.kwargs) for one in own), at]) if type(one) is Ref]
            reads = [*dict.fromkeys(one.slot for one in refs if one.slot not in made)]
            if any(slot > min(one for one in call.results if one is not None) for slot in reads):
                raise UnsupportedModuleError(
                    f"{call.line}: {function.__name__} uses in its backward pass what was computed after its call"
                )
            call.args = (*call.args, *map(Ref, reads))
            call.function = TapedBackward(len(call.args) - len(outputs) - len(reads), given, own, at, reads)

    def _lowered(self, function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """TapedCall an ``autograd.Function`` within a transform, which comes back here for what lies below it."""

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return self._function(function, *args, **kwargs)

        self._lowering += 1
        try:
            below = type(function.__name__, (function,), {"apply": classmethod(apply)})
            return self._call_plainly(below, *args, **kwargs)
        finally:
            self._lowering -= 1


class _Context(FunctionCtx):
    """What an ``autograd.Function`` of the user's gets as its ``ctx``."""

    non_differentiable: Any = None
    dirty_tensors: Any = None
    to_save: Any = ()
    materialize_grads = True
    needs_input_grad: tuple[bool, ...] = ()

    @property
    def saved_tensors(self) -> Any:
        return self.to_save


class _DrawsError(UnsupportedModuleError):
    """A function draws at random, and no tensor of the record enters."""


class _Below(TorchDispatchMode):
    """Looks at the operators that torch functions come to."""

    def __init__(self, writer: _Writer) -> None:
        super().__init__()
        self._writer = writer
        self._begun = torch.default_generator.get_state()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self._seen(func, args, kwargs or {})

    def _seen(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            if any(isinstance(one, torch.Generator) and not is_global(one) for one in (*args, *kwargs.values())):
                raise UnsupportedModuleError(
                    f"{code_line()}: draws from a generator of its own: draw it once, in __init__, and keep it in a "
                    "buffer (register_buffer), or leave generator= out, so that the query's stream is drawn from"
                )
            if not self._writer.drawing:
                if not torch.equal(torch.default_generator.get_state(), self._begun):
                    raise UnsupportedModuleError(SEED_SET)
                if not any(isinstance(one, FakeTensor) for one in tensors_of((args, kwargs))):
                    raise _DrawsError(f"{code_line()}: {SEED_SET}")
        given = _named(func, args, kwargs)
        for one in tensors_of([given[name] for _, name in written(func) if name in given]):
            self._writer.check_written(one)
        shapes_alone = any(one.device.type == "meta" for one in tensors_of((args, kwargs)))
        if self._writer.kept is not None or shapes_alone:
            return func(*args, **kwargs)
        return self._writer.call(func, args, kwargs)


def _named(func: OpOverload, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(zip([one.name for one in func._schema.arguments], args, strict=False)) | kwargs


def _is_mask(tensor: Tensor, mask: Any, value: Any) -> bool:
    """Return whether an assignment sets the elements of a mask to one number."""
    one = isinstance(value, (bool, int, float)) or (isinstance(value, Tensor) and value.ndim == 0)
    return isinstance(mask, FakeTensor) and mask.dtype is torch.bool and mask.shape == tensor.shape and one


@cache
def _writes_first(func: Any) -> bool:
    """Return whether a torch function writes its first argument in place: a tensor, or a list of tensors."""
    name = func._opname if isinstance(func, OpOverload) else getattr(func, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
    return in_place or (name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__index__"))


def written_by(func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that a torch function writes, as its name and ``out=`` tell."""
    given = kwargs.get("out", ())
    if "out" not in kwargs and _writes_first(func):
        given = args[0] if args else next((kwargs[name] for name in _FIRST if name in kwargs), ())
    return [one for one in (given if isinstance(given, (tuple, list)) else (given,)) if isinstance(one, Tensor)]


WRITES_A_PART = (
    "{}: it writes a record's values into a part of a tensor that is the same for all records (z = torch.zeros(...), "
    "z[0].copy_(x)): write z[0] = x, make z by x.new_zeros(...), or use torch.cat"
)
