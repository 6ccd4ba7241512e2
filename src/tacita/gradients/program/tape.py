"""What a model and its loss call for one record, and the way to call it again, for all records.

A *tape* is a list of torch functions, each with plain arguments. It refers to no code of the user's (``writer.py``).

Everything here is private. Proof: docs/derivations/program.md, section 1.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import traceback
from torch.utils._pytree import tree_leaves, tree_map


@dataclass(frozen=True)
class Ref:
    """A tensor that an earlier call gave, or an input."""

    slot: int


@dataclass(frozen=True)
class Constant:
    """A constant, by its place in the tape's list."""

    number: int


@dataclass
class TapedCall:
    """One call of a torch function.

    Attributes:
        function: The function, or a :class:`TapedBackward`.
        args: Its arguments, with ``Ref`` and ``Constant`` in place of tensors.
        kwargs: Its named arguments.
        results: The slot of each tensor in the result; ``None`` for what is no tensor.
        grad: Whether autograd records it.
        autocast: The state of autocast on each device type.
        line: The user's line.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[int | None]
    grad: bool
    autocast: list[tuple[str, bool, torch.dtype]]
    line: str


@dataclass(frozen=True)
class TapedBackward:
    """What stands for an ``autograd.Function``: it gives outputs as they are, and gradients by calls.

    It is called with the arguments that are differentiated, the outputs, and what its calls read.

    Attributes:
        inputs: How many arguments are differentiated.
        given: The slots of the outputs' gradients.
        calls: What its backward calls.
        found: Where the gradients of the arguments are; ``None`` for none.
        reads: The slots of what the calls read.
    """

    inputs: int
    given: list[int]
    calls: list[TapedCall]
    found: list[Any]
    reads: list[int]


class Tape:
    """The torch functions that a model and its loss call for one record.

    Attributes:
        calls: The calls, in order.
        constants: Copies of the constants.
        apart: Slots of tensors that begin the same for all records, and are written for each.
        losses: Where the loss is.
        written: The names of the modules' attributes that the code sets.
        writes_record: It writes the record, of which it may get a copy.
    """

    def __init__(self) -> None:
        self.calls: list[TapedCall] = []
        self.constants: list[Tensor] = []
        self.apart: set[int] = set()
        self.losses: Any = None
        self.written: set[str] = set()
        self.writes_record = False

    def play(self, inputs: Sequence[Tensor], each_its_own: Callable[[Tensor], Tensor]) -> Tensor:
        """TapedCall the functions again.

        Args:
            inputs: Tensors in place of those of the tape: parameters, other weights, the record.
            each_its_own: Gives each record a copy of a tensor that is the same for all.

        Returns:
            The loss.
        """
        values: dict[int, Any] = dict(enumerate(inputs))
        self.run(self.calls, values, each_its_own)
        return self.filled(self.losses, values)

    def run(self, calls: Sequence[TapedCall], values: dict[int, Any], each_its_own: Callable[[Tensor], Tensor]) -> None:
        """Run calls on values by slot, which get their results."""
        for call in calls:
            traceback.current_meta["stack_trace"] = call.line
            function = call.function
            if isinstance(function, TapedBackward):
                function = partial(_Pulled.apply, (function, self, each_its_own))
            with ExitStack() as stack:
                if not call.grad:
                    stack.enter_context(torch.no_grad())
                for device, enabled, dtype in call.autocast:
                    if (enabled, dtype) != (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)):
                        stack.enter_context(torch.autocast(device, dtype, enabled=enabled))
                try:
                    found = function(*self.filled(call.args, values), **self.filled(call.kwargs, values))
                except Exception as error:
                    error.add_note(call.line)
                    raise
            for slot, one in zip(call.results, tree_leaves(found), strict=True):
                if slot is not None:
                    values[slot] = each_its_own(one) if slot in self.apart else one
        traceback.current_meta["stack_trace"] = ""

    def filled(self, given: Any, values: Mapping[int, Any]) -> Any:
        """Return arguments with tensors in place of what stands for them."""

        def put(one: Any) -> Any:
            if type(one) is Ref:
                return values[one.slot]
            return self.constants[one.number] if type(one) is Constant else one

        return tree_map(put, given)


def tensors_of(given: Any) -> list[Tensor]:
    """Return the tensors of arguments or results, in order."""
    return [one for one in tree_leaves(given) if isinstance(one, Tensor)]


class _Pulled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(how: tuple[TapedBackward, Tape, Callable], *tensors: Tensor) -> tuple[Tensor, ...]:
        first, number = how[0].inputs, len(how[0].given)
        return tuple(one.view_as(one) for one in tensors[first : first + number])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.how, *tensors = inputs
        ctx.save_for_backward(*tensors[ctx.how[0].inputs + len(output) :])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        pullback, tape, each_its_own = ctx.how
        values = dict(zip([*pullback.reads, *pullback.given], (*ctx.saved_tensors, *grads), strict=True))
        tape.run(pullback.calls, values, each_its_own)
        return (None, *tape.filled(pullback.found, values), *[None] * (len(grads) + len(pullback.reads)))
