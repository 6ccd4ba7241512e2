"""Run a model and its loss on one record without values, and write down which torch functions they call.

The user's code runs here and nowhere else: on tensors that have the shapes of a single record and no values. It does not
know how many records there are, and no tensor of several records is there to be reached. A *tape* is the list of the
torch functions that it called, each with plain arguments; ``trace.py`` plays it for all records.

Constants are computed with their values, so that code may look at its own masks; a tape holds copies of them. What an
``autograd.Function`` gives backwards, and what runs within ``torch.func.grad`` and its kin, is written down too, so that
a tape refers to no code of the user's.

Everything here is private. Proof: docs/derivations/program.md, section 1.
"""

import logging
import math
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.function import FunctionCtx
from torch.fx import traceback
from torch.overrides import TorchFunctionMode, get_ignored_functions, get_overridable_functions
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten, memory_key, tensors_in
from tacita.gradients.functional import (
    IN_TURN,
    LossFn,
    ModuleTree,
    attributes_kept,
    losses_at,
    real_values,
    with_tensors,
)
from tacita.gradients.program.check import is_of_pytorch, written
from tacita.gradients.program.recorded_calls import exact
from tacita.gradients.record_batch import compiling
from tacita.gradients.rules.registry import RULES
from tacita.gradients.seeds import is_global

_TORCH, _HERE = str(Path(torch.__file__).parent), str(Path(__file__).parents[2])
_PLAIN = (Tensor, nn.Parameter, nn.Buffer, FakeTensor)
_HOOKING = {  # gives hooks to a tensor, or the node of the graph that takes them
    torch.Tensor.register_hook,
    torch.Tensor.register_post_accumulate_grad_hook,
    torch.Tensor.backward,
    getattr(torch.Tensor, "grad_fn").__get__,  # noqa: B009 - its type is that of a tensor's attribute
}
_FIRST = ("self", "input", "tensor")  # what torch calls the first argument of a function that writes it


class Ref(NamedTuple):
    """A tensor that an earlier call gave, or an input."""

    slot: int


class Constant(NamedTuple):
    """A constant, by its place in the tape's list."""

    number: int


class Call(NamedTuple):
    """One call of a torch function.

    Attributes:
        function: The function, or a :class:`Pullback`.
        args: Its arguments, with ``Ref`` and ``Constant`` in place of tensors.
        kwargs: Its named arguments.
        results: For each tensor of the result, its slot and the way to it.
        grad: Whether autograd records it.
        autocast: The state of autocast on each device type.
        line: The user's line.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[tuple[int, tuple[int, ...]]]
    grad: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    line: str


class Pullback(NamedTuple):
    """What stands for an ``autograd.Function``: its outputs as they are, with gradients by calls that were written down.

    Attributes:
        inputs: How many of its arguments it differentiates; its outputs follow, then what its calls read.
        outputs: How many outputs it has.
        reads: The slots of what its calls read.
        given: The slots of the outputs' gradients.
        calls: The calls.
        found: Where the gradients of the inputs are; ``None`` for none.
    """

    inputs: int
    outputs: int
    reads: tuple[int, ...]
    given: tuple[int, ...]
    calls: tuple[Call, ...]
    found: tuple[Any, ...]


class Tape:
    """The torch functions that a model and its loss call for one record.

    Attributes:
        calls: The calls, in order.
        constants: Copies of the constants.
        apart: Slots of tensors that begin the same for all records, and are written for each.
        losses: Where the loss is.
        written: The names of the modules' attributes that the code sets.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.constants: list[Tensor] = []
        self.apart: set[int] = set()
        self.losses: Any = None
        self.written: set[str] = set()

    def play(self, inputs: Sequence[Tensor], each_its_own: Callable[[Tensor], Tensor]) -> Tensor:
        """Call the functions again.

        Args:
            inputs: Tensors in place of those of the tape: parameters, other weights, the record.
            each_its_own: Gives each record a copy of a tensor that is the same for all.

        Returns:
            The loss.
        """
        values: dict[int, Any] = dict(enumerate(inputs))
        _play(self.calls, values, self.constants, {slot: each_its_own for slot in self.apart})
        return _filled(self.losses, values, self.constants)


def _play(calls: Sequence[Call], values: dict[int, Any], constants: Sequence[Tensor], then: Mapping[int, Any]) -> None:
    for call in calls:
        traceback.current_meta["stack_trace"] = call.line
        function = call.function
        if isinstance(function, Pullback):
            function = _Pulled(function, constants, then)
        with ExitStack() as stack:
            if not call.grad:
                stack.enter_context(torch.no_grad())
            for device, enabled, dtype in call.autocast:
                if (enabled, dtype) != (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)):
                    stack.enter_context(torch.autocast(device, dtype, enabled=enabled))
            found = function(*_filled(call.args, values, constants), **_filled(call.kwargs, values, constants))
        for slot, way in call.results:
            one = found
            for step in way:
                one = one[step]
            values[slot] = then[slot](one) if slot in then else one
    traceback.current_meta["stack_trace"] = ""


def _filled(given: Any, values: Mapping[int, Any], constants: Sequence[Tensor]) -> Any:
    """Return arguments with tensors in place of what stands for them."""
    if type(given) is Ref:
        return values[given.slot]
    if type(given) is Constant:
        return constants[given.number]
    if type(given) is dict:
        return {name: _filled(one, values, constants) for name, one in given.items()}
    if type(given) in (list, tuple):
        return type(given)(_filled(one, values, constants) for one in given)
    if type(given) is slice:
        return slice(*(_filled(one, values, constants) for one in (given.start, given.stop, given.step)))
    return given


class _Pulled:
    """A call of an ``autograd.Function`` that gives its outputs as they are, and gradients by a pullback."""

    def __init__(self, pullback: Pullback, constants: Sequence[Tensor], then: Mapping[int, Any]) -> None:
        self.pullback, self.constants, self.then = pullback, constants, then

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _ByTape.apply(self, *tensors)  # pyright: ignore[reportReturnType]


class _ByTape(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(pulled: _Pulled, *tensors: Tensor) -> tuple[Tensor, ...]:
        first = pulled.pullback.inputs
        return tuple(one.view_as(one) for one in tensors[first : first + pulled.pullback.outputs])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pulled, *tensors = inputs
        ctx.pulled = pulled
        ctx.save_for_backward(*tensors[pulled.pullback.inputs + pulled.pullback.outputs :])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        pulled: _Pulled = ctx.pulled
        one = pulled.pullback
        values = dict(zip((*one.reads, *one.given), (*ctx.saved_tensors, *grads), strict=True))
        _play(one.calls, values, pulled.constants, pulled.then)
        found = [_filled(place, values, pulled.constants) for place in one.found]
        return (None, *found, *[None] * (one.outputs + len(one.reads)))


def written_down(
    model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], fixed: Mapping[str, Tensor], like: Any
) -> Tape:
    """Run a model and its loss on one record without values, twice, and write down what they call.

    Args:
        model: Not modified.
        loss_fn: ``(model, batch) -> losses``; sees a batch of one record.
        params: The trainable parameters; their values are not read.
        fixed: The buffers and frozen parameters, the same.
        like: A batch, for the shapes of its rows.

    Raises:
        UnsupportedModuleError: The code does what a query cannot do again, or something else the second time.
        Exception: Whatever it raises where it depends on values.
    """
    first, second = (_once(model, loss_fn, params, fixed, like) for _ in range(2))
    _compare(first, second)
    return first


def _once(
    model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], fixed: Mapping[str, Tensor], like: Any
) -> Tape:
    tensors, rebuild = flatten(like, len(tensors_in(like)[0]))
    with IN_TURN, quiet(), _nothing_drawn(), torch.enable_grad(), compiling():
        tree, fake = ModuleTree(model), FakeTensorMode(allow_non_fake_inputs=True)
        check_backward_hooks(tree)
        point = {name: fake.from_tensor(one.detach()).requires_grad_() for name, one in params.items()}
        others = {name: fake.from_tensor(one.detach()) for name, one in fixed.items()}
        record = [fake.from_tensor(one.new_zeros(1, *one.shape[1:])) for one in tensors]
        writer = _Writer([*point.values(), *others.values()], record)
        with attributes_kept(tree) as written, with_tensors(tree, others), writer.watching():
            writer.end(losses_at(tree, loss_fn, point, rebuild(record), 1))
        writer.tape.written = written
    return writer.tape


class _Writer(TorchFunctionMode):
    """Writes down the calls of torch functions.

    Args:
        weights: Tensors without values, the same for all records.
        record: Those of the record.
    """

    def __init__(self, weights: Sequence[Tensor], record: Sequence[Tensor]) -> None:
        super().__init__()
        self.tape = Tape()
        self.detaching = False
        self.kept: set[int] = set()  # memory that the function that runs now must not write
        self._slots: dict[int, tuple[int, int, Tensor]] = {}  # id -> slot, PyTorch's identity; kept, lest an id recurs
        self._constants: dict[tuple[int, int], tuple[int, Tensor]] = {}  # (id, version) -> place
        self._count = 0
        self._firsts: dict[int, int] = {}  # memory without values -> the slot that it began with
        self._made: dict[int, Tensor] = {}  # memory with values that was made here
        self._twins: dict[int, Tensor] = {}  # memory with values -> what stands for it, once a record is written to it
        for one in (*weights, *record):
            self._new(one)
        self._given = {*self._firsts}
        self._of_records = {memory_key(one) for one in record}
        self._modes = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Write down what is called inside."""
        functions: Any = torch.autograd.function
        call, active = functions.custom_function_call, torch._C._are_functorch_transforms_active
        self._call_plainly = call
        try:
            functions.custom_function_call = self._function
            torch._C._are_functorch_transforms_active = lambda: True  # so that autograd.Function.apply calls the former
            with _Below(self), self:
                self._modes = len(_get_current_dispatch_mode_stack())
                yield
        finally:
            functions.custom_function_call, torch._C._are_functorch_transforms_active = call, active

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        _check_function(func, args)
        if len(_get_current_dispatch_mode_stack()) != self._modes:
            raise UnsupportedModuleError(
                f"{_users_line()}: runs within a TorchDispatchMode of the model's own, which a query leaves out: leave "
                "it out, too"
            )
        if _functorch.maybe_current_level() is None:
            return self.call(func, args, kwargs)
        before, self.detaching = self.detaching, getattr(func, "__name__", "") in ("detach", "detach_")
        try:  # in torch.func.grad or the like: the operators that it comes to are written down
            return func(*args, **kwargs)
        finally:
            self.detaching = before

    def call(self, func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call a function; write it down if it gives or writes tensors without values."""
        args, kwargs = self._with_twins(args), self._with_twins(kwargs)
        given, targets = [*_tensors((args, kwargs))], written_by(func, args, kwargs)
        with_values = {memory_key(one) for one in given if not isinstance(one, FakeTensor)}
        if any(memory_key(one) in with_values - {*self._made} for one in targets):
            raise UnsupportedModuleError(WRITES_GIVEN.format(_users_line()))
        if not any(isinstance(one, FakeTensor) for one in given):
            known = with_values - {*self._made}
            with real_values():
                found = self._run(func, args, kwargs, known)
            self._made |= {memory_key(one): one for one, _ in _ways(found) if memory_key(one) not in known}
            return found
        if any([self._begin_writing(one) for one in targets]):
            args, kwargs = self._with_twins(args), self._with_twins(kwargs)
            given, targets = [*_tensors((args, kwargs))], written_by(func, args, kwargs)
        of_records = any(memory_key(one) in self._of_records for one in given)
        written, line = (self.plain(args), self.plain(kwargs)), _users_line()
        for one in targets if of_records else ():
            self._hold_records(one)
        found = self._run(func, args, kwargs, with_values - {*self._twins})
        results = [*_ways(found)]
        if of_records:
            self._of_records |= {memory_key(one) for one, _ in results}
        if results or targets:
            self._append(func, *written, [(self._new(one), way) for one, way in results], line)
        return found

    def end(self, losses: Tensor) -> None:
        """Note where the loss is."""
        self.tape.losses = self.plain(self._with_twins(losses))

    def _run(self, func: Callable, args: tuple, kwargs: dict[str, Any], kept: set[int]) -> Any:
        before, self.kept = self.kept, kept
        try:
            return func(*args, **kwargs)
        finally:
            self.kept = before

    def _append(self, func: Any, args: Any, kwargs: Any, results: list[tuple[int, tuple[int, ...]]], line: str) -> None:
        devices = {"cpu", *(one.device.type for _, _, one in self._slots.values())}
        autocast = tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in sorted(devices))
        self.tape.calls.append(Call(func, args, kwargs, results, torch.is_grad_enabled(), autocast, line))

    def plain(self, given: Any) -> Any:
        """Return an argument as a tape holds it.

        Raises:
            UnsupportedModuleError: It may have code of its own, or a tensor did not come from a call.
        """
        if isinstance(given, Tensor):
            return self._tensor(given)
        if isinstance(given, np.ndarray):
            return self._tensor(torch.from_numpy(given.copy()))
        if isinstance(given, (list, tuple)):
            return (list if isinstance(given, list) else tuple)(self.plain(one) for one in given)
        if type(given) is dict:
            return {name: self.plain(one) for name, one in given.items()}
        if type(given) is slice:
            return slice(*(self.plain(one) for one in (given.start, given.stop, given.step)))
        return given if given is ... else exact(given)

    def _tensor(self, tensor: Tensor) -> "Ref | Constant":
        if type(tensor) not in _PLAIN:
            raise UnsupportedModuleError("the code uses a tensor with code of its own: use a plain tensor")
        if not isinstance(tensor, FakeTensor):
            key = id(tensor), 0 if tensor.is_inference() else tensor._version
            if key not in self._constants:
                self.tape.constants.append(tensor.detach().clone())
                self._constants[key] = len(self.tape.constants) - 1, tensor
            return Constant(self._constants[key][0])
        slot, identity, _ = self._slots.get(id(tensor), (0, 0, None))
        if identity != tensor._cdata:
            raise UnsupportedModuleError(
                f"{_users_line()}: uses a tensor that came from no call of a torch function in this pass (kept by an "
                "earlier pass, swapped, made in another thread, by compiled code, by torch.autograd.grad or by a "
                "private function): compute it in the pass, and for a gradient call torch.func.grad"
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
            return given if twin is None else self._part(twin, given)
        if type(given) is dict:
            return {name: self._with_twins(one) for name, one in given.items()}
        return type(given)(map(self._with_twins, given)) if type(given) in (list, tuple) else given

    def _part(self, twin: Tensor, tensor: Tensor) -> Tensor:
        """Return the part of memory that a tensor is."""
        if tensor.is_contiguous() and tensor.numel() == twin.numel():
            return self.call(torch.Tensor.view, (twin, tensor.shape), {})
        return self.call(torch.as_strided, (twin, tensor.shape, tensor.stride(), tensor.storage_offset()), {})

    def _begin_writing(self, tensor: Tensor) -> bool:
        """Let something without values stand for a tensor with values that is written; return whether it has such."""
        if isinstance(tensor, FakeTensor):
            return False
        key = memory_key(tensor)
        length = tensor.untyped_storage().nbytes() // tensor.element_size()
        whole = self._tensor(tensor.detach().as_strided((length,), (1,), 0))
        fake = next(one for _, _, one in self._slots.values()).fake_mode  # pyright: ignore[reportAttributeAccessIssue]
        self._twins[key] = twin = fake.from_tensor(tensor.new_zeros(length))
        self._append(torch.clone, (whole,), {}, [(self._new(twin), ())], _users_line())
        return True

    def _hold_records(self, tensor: Tensor) -> None:
        """Let each record have its own copy of a tensor that is the same for all until one is written to it."""
        key = memory_key(tensor)
        if key not in self._of_records and key not in self._given:
            self.tape.apart.add(self._firsts[key])
        self._of_records.add(key)

    def _function(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call an ``autograd.Function``, and write down what it does forwards and backwards."""
        if _functorch.maybe_current_level() is not None:
            return self._call_plainly(function, *args, **kwargs)
        inputs = [one for one in args if isinstance(one, Tensor) and one.requires_grad]
        ctx = _Context()
        ctx.needs_input_grad = tuple(isinstance(one, Tensor) and one.requires_grad for one in args)
        with torch.no_grad():
            found = function.forward(*args, **kwargs)
            function.setup_context(ctx, args, found)
        outside = {id(one) for one in ctx.non_differentiable or ()}
        outputs = [one for one, _ in _ways(found)]
        marked = [one for one in outputs if one.is_floating_point() and id(one) not in outside]
        if not (inputs and marked and torch.is_grad_enabled()):
            return found
        if ctx.dirty_tensors:
            raise UnsupportedModuleError(f"{function.__name__} writes what it is given (mark_dirty): give a new tensor")
        before, given, grads = len(self.tape.calls), [], []
        for one in outputs:
            if any(one is other for other in marked):
                with torch._C.DisableTorchFunction():
                    grads.append(torch.zeros_like(one))
                given.append(self._new(grads[-1]))
                self._of_records.add(memory_key(grads[-1]))
            else:
                grads.append(torch.zeros_like(one))
        back = function.backward(ctx, *grads)
        wanted = [
            one
            for one, need in zip(back if isinstance(back, tuple) else (back,), ctx.needs_input_grad, strict=False)
            if need
        ]
        places, calls = tuple(map(self.plain, wanted)), tuple(self.tape.calls[before:])
        del self.tape.calls[before:]
        made = {*given, *(slot for one in calls for slot, _ in one.results)}
        read = [r.slot for r in _refs([*((one.args, one.kwargs) for one in calls), places]) if r.slot not in made]
        pullback = Pullback(len(inputs), len(marked), (*dict.fromkeys(read),), (*given,), calls, places)
        refs = (*map(self.plain, inputs), *map(self.plain, marked), *map(Ref, pullback.reads))
        with torch._C.DisableTorchFunction():
            fresh = [one.detach().clone().requires_grad_() for one in marked]
        if any(memory_key(one) in self._of_records for one in (*inputs, *marked)):
            self._of_records |= {memory_key(one) for one in fresh}
        self._append(pullback, refs, {}, [(self._new(one), (k,)) for k, one in enumerate(fresh)], _users_line())
        others = {id(one): new for one, new in zip(marked, fresh, strict=True)}
        results = [others.get(id(one), one) for one in (found if isinstance(found, tuple) else (found,))]
        return tuple(results) if isinstance(found, tuple) else results[0]


class _Context(FunctionCtx):
    """What an ``autograd.Function`` of the user's gets as its ``ctx``."""

    non_differentiable: Any = None
    dirty_tensors: Any = None
    to_save: Any = ()
    needs_input_grad: tuple[bool, ...] = ()

    @property
    def saved_tensors(self) -> Any:
        return self.to_save


class _Below(TorchDispatchMode):
    """Looks at the operators that torch functions come to."""

    def __init__(self, writer: _Writer) -> None:
        super().__init__()
        self._writer = writer
        self._begun = torch.default_generator.get_state()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, OpOverload) and not is_of_pytorch(func):
            raise UnsupportedModuleError(NOT_OF_PYTORCH.format(_users_line(), func._schema.name))
        if torch.Tag.nondeterministic_seeded in func.tags:
            if any(isinstance(one, torch.Generator) and not is_global(one) for one in (*args, *kwargs.values())):
                raise UnsupportedModuleError(
                    f"{_users_line()}: draws from a generator of its own: draw it once, in __init__, and keep it in a "
                    "buffer (register_buffer), or leave generator= out, so that the query's stream is drawn from"
                )
            if not torch.equal(torch.default_generator.get_state(), self._begun):
                raise UnsupportedModuleError(SEED_SET)
        given = _named(func, args, kwargs)
        for one in _tensors([given[name] for _, name in written(func) if name in given]):
            if not isinstance(one, FakeTensor) and memory_key(one) in self._writer.kept:
                raise UnsupportedModuleError(WRITES_GIVEN.format(_users_line()))
        if _functorch.maybe_current_level() is None:
            return func(*args, **kwargs)
        if func is torch.ops.aten.detach.default and not self._writer.detaching:  # autograd's own, of what it saved
            func = torch.ops.aten.alias.default
        with torch._C.DisableTorchFunction():
            return self._writer.call(func, args, kwargs)


def _named(func: OpOverload, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(zip([one.name for one in func._schema.arguments], args, strict=False)) | kwargs


def _check_function(func: Any, args: tuple) -> None:
    """Refuse a function that is not PyTorch's, or whose effect is not written down."""
    name = getattr(func, "__name__", "")
    if isinstance(func, (OpOverload, OpOverloadPacket)):
        first = func if isinstance(func, OpOverload) else getattr(func, func.overloads()[0])
        if not is_of_pytorch(first):
            raise UnsupportedModuleError(NOT_OF_PYTORCH.format(_users_line(), first._schema.name))
        name = first._opname
        pointwise = isinstance(func, OpOverload) and torch.Tag.pointwise in func.tags
    elif func not in RULES and isinstance(func, types.FunctionType) and func not in _known():
        raise UnsupportedModuleError(f"{_users_line()}: {name} is no function of PyTorch's: what it does is not known")
    else:
        pointwise = False
    if ("_backward" in name and not pointwise) or "lu_solve" in name:
        raise UnsupportedModuleError(
            f"{_users_line()}: calls {name}, which trusts the sizes and indices that it is given: for a gradient call "
            "the function whose gradient it is, for linear equations torch.linalg.solve"
        )
    if name == "__set__" and func.__self__.__name__ in ("data", "real", "imag"):
        raise UnsupportedModuleError(f"{_users_line()}: assigns to .{func.__self__.__name__}: make a new tensor")
    if func in _HOOKING and args[0].requires_grad:
        raise UnsupportedModuleError(
            "a hook is put on a parameter, or on what was computed from parameters or records (grad_fn gives "
            "the node that takes one), which only the loop calls: leave it out"
        )


@cache
def _known() -> set[Any]:
    """Return PyTorch's functions that are written in Python."""
    return {one for found in get_overridable_functions().values() for one in found} | get_ignored_functions()


def check_backward_hooks(tree: ModuleTree) -> None:
    """Refuse backward hooks of modules, which may change a gradient."""
    of_all = torch.nn.modules.module
    if of_all._global_backward_hooks or of_all._global_backward_pre_hooks:
        raise UnsupportedModuleError(
            "a backward hook is registered for all modules (register_module_full_backward_hook or one like it), which "
            "only the loop calls: remove the hook"
        )
    for name, module in tree.modules:
        if module._backward_hooks or module._backward_pre_hooks:
            raise UnsupportedModuleError(
                f"the module {name!r} has a backward hook, which only the loop calls: remove the hook"
            )


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


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for one in given:
            yield from _tensors(one)
    elif isinstance(given, dict):
        yield from _tensors([*given.values()])


def _ways(found: Any, way: tuple[int, ...] = ()) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    """Yield the tensors of a result, and the way to each."""
    if isinstance(found, Tensor):
        yield found, way
    elif isinstance(found, (list, tuple)):
        for k, one in enumerate(found):
            yield from _ways(one, (*way, k))


def _refs(given: Any) -> Iterator[Ref]:
    if type(given) is Ref:
        yield given
    elif isinstance(given, (list, tuple)) and type(given) is not Constant:
        for one in given:
            yield from _refs(one)
    elif type(given) is dict:
        yield from _refs([*given.values()])
    elif type(given) is slice:
        yield from _refs([given.start, given.stop, given.step])


def _compare(first: Tape, second: Tape) -> None:
    """Refuse code that does something else when it runs again: a counter, a clock, a generator of its own."""
    for one, other in zip(first.calls, second.calls, strict=False):
        if one.function != other.function or not _alike(one[1:-1], other[1:-1], first, second):
            name = getattr(one.function, "__name__", type(one.function).__name__)
            raise UnsupportedModuleError(
                f"{one.line}: the code calls {name} otherwise when it runs again (a counter, a clock, a generator of its "
                "own): let model and loss depend on a record, the parameters and constants alone"
            )
    if len(first.calls) != len(second.calls) or not _alike(first.losses, second.losses, first, second):
        raise UnsupportedModuleError(
            "the code calls more functions when it runs again: let model and loss depend on a record, the parameters and "
            "constants alone"
        )


def _alike(one: Any, other: Any, first: Tape, second: Tape) -> bool:
    if type(one) is not type(other):
        return False
    if type(one) is Constant:
        return _same_values(first.constants[one.number], second.constants[other.number])
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_alike(a, b, first, second) for a, b in zip(one, other, strict=True))
    if type(one) is dict:
        return [*one] == [*other] and _alike([*one.values()], [*other.values()], first, second)
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def _same_values(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    first, second = (t.cpu().contiguous().flatten().view(torch.uint8) for t in (one, other))  # NaN equals itself
    return torch.equal(first, second)


def _users_line() -> str:
    """Return ``file:line`` of the user's code that runs now, or of a library's."""
    lines = [(frame.f_code.co_filename, frame.f_lineno) for frame in _users_frames()]
    own = [one for one in lines if "site-packages" not in one[0]] or lines
    return f"{Path(own[0][0]).name}:{own[0][1]}" if own else ""


def _users_frames() -> Iterator[FrameType]:
    """Yield the frames of code that is neither PyTorch's nor tacita's, innermost first."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _once.__code__:
        if not frame.f_code.co_filename.startswith((_TORCH, _HERE, "<")):
            yield frame
        frame = frame.f_back


SEED_SET = (
    "the model or the loss sets a seed, or draws numbers that do not come from a tensor of the batch "
    "(torch.manual_seed(0), torch.rand(1), random.random()): draw them once, in __init__, and keep them in a buffer "
    "(register_buffer), or draw by torch.rand_like(x) of a record's tensor x"
)
NOT_OF_PYTORCH = (
    "{}: the operator {} is not PyTorch's own: what it does with a record is not known, nor a rule that keeps records "
    'apart. Write it in PyTorch\'s operators (declare_operator is for method="loop" alone)'
)
WRITES_GIVEN = (
    "{}: writes in place a tensor that it was given (the batch, a parameter, a buffer) or a constant: copy it first "
    "(x = x.clone())"
)


@contextmanager
def _nothing_drawn() -> Iterator[None]:
    """Refuse code that moves Python's, NumPy's or PyTorch's generator; put them back.

    Raises:
        UnsupportedModuleError: It does.
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
        now = random.getstate(), np.random.get_state(), torch.get_rng_state()
        if before[0] != now[0] or repr(before[1]) != repr(now[1]) or not torch.equal(before[2], now[2]):
            raise UnsupportedModuleError(SEED_SET)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PyTorch from logging a failure that the exception tells already."""
    loggers = [logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "torch.fx.experimental")]
    before = [one.disabled for one in loggers]
    try:
        for one in loggers:
            one.disabled = True
        yield
    finally:
        for one, was in zip(loggers, before, strict=True):
            one.disabled = was
