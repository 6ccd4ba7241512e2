"""The program of a model and its loss: operators that run on records without the model's code.

A program serves any number of rows: that number is put into its integers. It yields each recorded call's input and the
gradient of its output as soon as both are there, so that what nobody reads any more is freed while it runs.

Everything here is private. Proof: docs/derivations/program.md.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes

from tacita.errors import UnsupportedModuleError
from tacita.gradients.functional import LossFn, ModuleTree
from tacita.gradients.program.check import REPLACED, check, users_line
from tacita.gradients.program.record import BareParametersError
from tacita.gradients.program.recorded_calls import RecordedCall
from tacita.gradients.program.rows import check_rows
from tacita.gradients.program.tape import Tape
from tacita.gradients.program.trace import Pullback, TracedPass, fixed_tensors, trace
from tacita.gradients.program.unify import OperatorCall, RowCount, Slot, Unified, bytes_of, unify
from tacita.gradients.program.writer import written_down
from tacita.gradients.record_batch import outside
from tacita.gradients.rules.derived import Derived
from tacita.gradients.rules.uses import is_ours

SIZES = (7, 11, 300)  # at which a pass is traced: no counter goes up in proportion to them
KEPT = 32  # numbers of rows whose operators are kept with their integers
Take = Callable[[int, RecordedCall], None]  # (position of a call, the call with input and gradients)


class Step(NamedTuple):
    """One operator's call at one number of rows.

    Attributes:
        function: The operator.
        args: Its arguments; a ``Slot`` stands for the value in it.
        nested: Slots stand in lists or among the named arguments, too.
        kwargs: Its named arguments.
        result: The number of the slot that takes the result.
        forgotten: Numbers of slots that nobody reads afterwards.
        ready: Positions of the recorded calls whose input and gradients are there now.
    """

    function: Callable[..., Any]
    args: Any
    nested: bool
    kwargs: dict[str, Any]
    result: int
    forgotten: tuple[int, ...]
    ready: tuple[int, ...]


class Program:
    """The operators of one pass, for any number of rows.

    Args:
        traces: The pass at several numbers of rows.
        written: The names of the modules' attributes that the code sets, as pruning sets a weight.

    Attributes:
        calls: The recorded calls, without tensors.
        met: How often each parameter is met.
        written: The names of the modules' attributes that the code sets: what they hold between queries is not read.
        draws: Whether an operator draws at random.
        only_reads: Whether nothing writes a batch: a checked program never does, and a rule of a user's might.
        digest: SHA-256 of operators, integers and constants, in hexadecimal.

    Raises:
        UnsupportedModuleError: The traces are no program, or an operator may not stand in one.
    """

    def __init__(self, traces: Sequence[TracedPass], written: Collection[str] = ()) -> None:
        made = unify(traces)
        self._trace, number = made.trace, made.number
        following = _following(traces)
        batch = {node for node in number if node.op == "placeholder" and node in following}
        check([*number], following)
        nodes = [[*one.graph.nodes] for one in traces]
        check_rows(nodes, [one.rows for one in traces], batch, {p.given for p in made.trace.pullbacks})
        self._inputs, self._constants = made.inputs, made.constants
        self.calls = self._trace.calls
        self._follows = [node in following for node in [*number][: made.inputs]]
        places = zip([*number][: made.inputs], self._follows, strict=True)
        self._kinds = [(node.meta["val"].shape[follows:], node.meta["val"].dtype) for node, follows in places]
        self._slots = len(number)
        self._places = [
            (number[x], [None if one is None else number[one] for one in grads])
            for x, grads in zip(self._trace.inputs, self._trace.grads, strict=True)
        ]
        self.of_copies = {name: number[node] for name, node in self._trace.of_copies.items()}
        at = {call.node: k for k, call in enumerate(made.calls)}  # pull-backs were traced last, one after the other
        ends = [*(at[one.given] for one in self._trace.pullbacks), len(made.calls)]
        self._main = self._steps(made.calls[: ends[0]], made, made.calls[ends[0] :])
        parts = zip(self._trace.pullbacks, pairwise(ends), strict=True)
        self._pullbacks = [
            _pullback(one, made.calls[start + 1 : end], number, following) for one, (start, end) in parts
        ]
        self._filled: dict[int, list[Step]] = {}
        self.written = frozenset(written)
        self.only_reads = all(is_ours(call.rule) for call in self.calls)
        self.met = Counter(name for call in self._trace.calls for name in call.names())
        self.draws = any(torch.Tag.nondeterministic_seeded in getattr(one.function, "tags", ()) for one in made.calls)
        pulled = [(one.given, one.results) for one in self._pullbacks]
        self.digest = _digest(made, [self._places, self.of_copies, pulled])

    def run(self, inputs: Sequence[Tensor], rows: int, take: Take) -> dict[str, Tensor]:
        """Run the program; hand over each recorded call as soon as its input and gradients are there.

        Args:
            inputs: Parameters, buffers and frozen weights, and the tensors of the batch, as they were traced.
            rows: The number of rows, >= 1. A single row runs twice, because kernels and strides of one row are others;
                what is handed over is the first.
            take: Takes a call.

        Returns:
            The per-sample gradients of bare parameters, by name.

        Raises:
            UnsupportedModuleError: An input has another shape or dtype than the program was traced for.
        """
        if [
            (one.shape[follows:], one.dtype) for one, follows in zip(inputs, self._follows, strict=True)
        ] != self._kinds:
            raise UnsupportedModuleError(
                "a program serves records of one shape and dtype, but a batch has others: pad records to a public "
                'length (tacita.pad_to), or use method="loop"'
            )
        size = max(rows, 2)
        given = [
            _twice(one) if rows == 1 and follows else one for one, follows in zip(inputs, self._follows, strict=True)
        ]
        values: list[Any] = [*given, *self._constants, *[None] * (self._slots - len(given) - len(self._constants))]
        pulls = {id(one.source.tensor): partial(one.pull, values) for one in self._pullbacks}

        def hand_over(position: int) -> None:
            call, (x, grads) = self._trace.calls[position], self._places[position]
            found = [None if k is None else values[k][:rows] for k in grads]
            derived = {n: d if d.view else pulled_by(d, pulls[id(d.tensor)]) for n, d in call.derived.items()}
            take(position, replace(call, x=values[x][:rows], grads=found, derived=derived))

        if size not in self._filled:
            if len(self._filled) >= KEPT:
                self._filled.clear()
            self._filled[size] = [_filled(step, size) for step in self._main]
        _run(self._filled[size], values, hand_over)
        return {name: values[k][:rows] for name, k in self.of_copies.items()}

    def _steps(self, calls: list[OperatorCall], made: Unified, later: Sequence[OperatorCall]) -> list[Step]:
        """Return the steps of the pass: what nobody reads any more, nor one of the ``later`` calls, is forgotten."""
        at = {call.node: k for k, call in enumerate(calls)}
        last = at | {given: k for k, call in enumerate(calls) for given in call.node.all_input_nodes}
        ready: list[list[int]] = [[] for _ in calls]
        for position, (x, grads) in enumerate(zip(self._trace.inputs, self._trace.grads, strict=True)):
            nodes = [x, *(grad for grad in grads if grad is not None)]
            if len(nodes) > 1:
                there = max(0, *(at.get(node, 0) for node in nodes))
                ready[there].append(position)
                last |= {node: max(there, last.get(node, 0)) for node in nodes}
        kept = {*self._trace.of_copies.values()}
        kept |= {given for call in later for given in call.node.all_input_nodes}
        forgotten: list[list[int]] = [[] for _ in calls]
        for node, k in last.items():
            if node in at and node not in kept:
                forgotten[k].append(made.number[node])
        return [_step(call, forgotten[k], ready[k]) for k, call in enumerate(calls)]


@dataclass(frozen=True)
class _Pullback:
    """The operators from the gradients of a derived weight to those of its parameters, for any number of rows."""

    source: Derived
    given: int
    results: list[int]
    steps: list[Step]

    def pull(self, values: list[Any], grads: Tensor) -> list[Tensor]:
        """Return the gradients of each parameter, (rows, *parameter), for those of the weight, (rows, *weight)."""
        own = [*values]
        own[self.given] = _twice(grads) if len(grads) == 1 else grads
        size = len(own[self.given])
        with plain_tensors_only():
            _run([_filled(step, size) for step in self.steps], own, None)
        return [own[k][: len(grads)] for k in self.results]


def _pullback(
    one: Pullback, calls: Sequence[OperatorCall], number: Mapping[Node, int], following: set[Node]
) -> _Pullback:
    """Return the pull-back of its calls, which run on rows of their own: on a part of those of the pass, say.

    Raises:
        UnsupportedModuleError: They read a tensor of the pass's rows.
    """
    own = {one.given, *(call.node for call in calls)}
    for call in calls:
        if any(given in following for given in call.node.all_input_nodes if given not in own):
            raise UnsupportedModuleError(
                f"{users_line(call.node)}the backward pass of a weight that the code computes from parameters reads a "
                "tensor of records: let it depend on parameters and constants alone"
            )
    steps = [_step(call, (), ()) for call in calls]
    return _Pullback(one.source, number[one.given], [number[node] for node in one.results], steps)


@dataclass(frozen=True)
class _PulledByProgram(Derived):
    """A derived weight whose gradients a program pulls back."""

    pull: Callable[[Tensor], list[Tensor]] = lambda grads: []

    def _pulled_at_once(self, grads: Tensor) -> list[Tensor]:
        return self.pull(grads)


def pulled_by(source: Derived, pull: Callable[[Tensor], list[Tensor]]) -> Derived:
    """Return a derived weight whose gradients are pulled back by ``pull``."""
    return _PulledByProgram(source.tensor, source.leaves, source.rearranged, source.view, source.version, pull)


def build(model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], like: Any, kind: Any = Program) -> Program:
    """Write down a model and its loss, trace them at three numbers of rows and make the program; no record is read.

    Args:
        model: Not modified.
        loss_fn: ``(model, batch) -> losses``.
        params: The trainable parameters; their values are not read.
        like: A batch, for the shapes of its rows.
        kind: Makes the program of its traces.

    Raises:
        UnsupportedModuleError: They cannot be written down as one program; the message names the user's line.
        Exception: Whatever the model's code raises where it depends on values.
    """
    fixed = fixed_tensors(ModuleTree(model), params)
    tapes = tapes_of(model, loss_fn, params, fixed, like)
    bare: frozenset[str] = frozenset()
    torch.empty(2**25 - 2**13, dtype=torch.uint8, device="cpu")  # once freed, glibc keeps twice as much between queries
    while True:
        try:
            traces = [trace(tape, params, fixed, like, rows, bare) for tape, rows in zip(tapes, SIZES, strict=True)]
            return kind(traces, tapes[0].written)
        except BareParametersError as more:
            bare |= more.names


def tapes_of(
    model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], fixed: Mapping[str, Tensor], like: Any
) -> list[Tape]:
    """Return the tape for each size. Two share one, and the code runs twice: no number of its own follows the rows."""
    first, second = (written_down(model, loss_fn, params, fixed, like) for _ in range(2))
    return [first, second, second]


@contextmanager
def plain_tensors_only() -> Iterator[None]:
    """Run PyTorch's operators as they are: no gradients, no autocast, no mode or transform of whoever calls."""
    with (
        outside(),
        _disable_current_modes(),  # and not tensors that dispatch themselves, such as shards
        torch._C.DisableTorchFunction(),
        torch._C._DisableAutocast(),
        torch.inference_mode(mode=False),
        torch.no_grad(),
    ):
        yield


def _run(steps: Sequence[Step], values: list[Any], hand_over: Callable[[int], None] | None) -> None:
    """Run the steps.

    Raises:
        ValueError: An operator does not take what a record holds. PyTorch's own words would quote it.
    """
    function, refused = None, False
    try:
        for function, args, nested, kwargs, result, forgotten, ready in steps:
            if nested:
                values[result] = function(*_put_in(args, values), **_put_in(kwargs, values))
            else:
                values[result] = function(*[values[a.number] if type(a) is Slot else a for a in args], **kwargs)
            for position in ready:
                assert hand_over is not None
                hand_over(position)
            for number in forgotten:
                values[number] = None
    except (IndexError, RuntimeError) as error:
        if isinstance(error, UnsupportedModuleError | torch.OutOfMemoryError) or "alloc" in str(error):
            raise
        refused = True
    if refused:  # after the other error is gone, which this one would carry along
        values.clear()
        raise ValueError(
            f"the operator {function} does not take what some record holds (a class or an index out of range, a "
            "singular matrix). Which record, and what it holds, is not said here: look through the records before a "
            "training, or let the model bound what it reads (clamp)."
        )


def _put_in(given: Any, values: list[Any]) -> Any:
    """Return arguments with the values of slots, those in lists, too."""
    if type(given) is Slot:
        return values[given.number]
    if type(given) is dict:
        return {name: _put_in(one, values) for name, one in given.items()}
    return [_put_in(one, values) for one in given] if type(given) in (list, tuple) else given


def _step(call: OperatorCall, forgotten: Sequence[int], ready: Sequence[int]) -> Step:
    lists = [one for one in (*call.args, *call.kwargs.values()) if type(one) is list]
    nested = any(type(one) is Slot for part in lists for one in part)
    nested = nested or any(type(one) is Slot for one in call.kwargs.values())
    function = REPLACED.get(call.function, call.function)
    return Step(function, call.args, nested, call.kwargs, call.result, tuple(forgotten), tuple(ready))


def _filled(step: Step, rows: int) -> Step:
    """Return a step with the number of rows put into its integers."""
    args, kwargs = _with_rows(step.args, rows), _with_rows(step.kwargs, rows)
    return step if args is step.args and kwargs is step.kwargs else step._replace(args=args, kwargs=kwargs)


def _with_rows(given: Any, rows: int) -> Any:
    if type(given) is RowCount:
        return given.per_row * rows + given.fixed
    if type(given) is dict:
        filled = {name: _with_rows(one, rows) for name, one in given.items()}
        return filled if any(filled[name] is not given[name] for name in given) else given
    if type(given) in (list, tuple):
        parts = [_with_rows(one, rows) for one in given]
        return type(given)(parts) if any(a is not b for a, b in zip(parts, given, strict=True)) else given
    return given


def _twice(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor])


def _following(traces: Sequence[TracedPass]) -> set[Node]:
    """Return the nodes of the first trace whose results have a size that follows the number of rows."""
    pairs = zip(*(one.graph.nodes for one in traces[:2]), strict=True)
    return {one for one, other in pairs if _sizes(one.meta.get("val")) != _sizes(other.meta.get("val"))}


def _sizes(value: Any) -> Any:
    return [_sizes(one) for one in value] if isinstance(value, list) else getattr(value, "shape", None)


def _digest(made: Unified, places: Any) -> str:
    """Return SHA-256 of a program, in hexadecimal: its operators, integers and constants, and what is handed over.

    Ranks, each on a device of its own, have the same.
    """
    found = hashlib.sha256()
    for call in made.calls:
        said = repr((str(call.function), call.args, call.kwargs, call.result))
        found.update(re.sub(r"(device\(type='\w+'), index=\d+\)", r"\1)", said).encode())
    for one in made.constants:
        found.update(repr((one.dtype, tuple(one.shape))).encode())
        found.update(bytes_of(one).numpy().tobytes())
    found.update(repr(places).encode())
    return found.hexdigest()
