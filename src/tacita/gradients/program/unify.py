"""Make one program of three traces: the same operators, whose integers follow the number of rows.

A trace at one size cannot tell a 7 that is the number of rows from a 7 that is a width. Three traces can: an integer
that depends on the rows must be ``per_row * rows + fixed`` with the same two numbers in all three, and everything else
must be the same. Two of the three play one tape, so no number of the user's code can follow the rows. Whatever differs
from one run of that code to the next (a counter, a clock, a generator of its own) is refused with its line.

Everything here is private. Proof: docs/derivations/program.md.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from tacita.errors import UnsupportedModuleError
from tacita.gradients.program.check import users_line
from tacita.gradients.program.trace import TracedPass


class Slot(NamedTuple):
    """A place for a value while a program runs."""

    number: int


class RowCount(NamedTuple):
    """An integer that follows the number of rows: ``per_row * rows + fixed``."""

    per_row: int
    fixed: int


class OperatorCall(NamedTuple):
    """One operator's call, the same at every number of rows.

    Attributes:
        node: The call in the first trace.
        function: The operator.
        args: Its arguments; a ``Slot`` or ``RowCount`` stands for what is put in.
        kwargs: Its named arguments, the same.
        result: The number of the slot that takes the result.
    """

    node: Node
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: int


class Unified(NamedTuple):
    """The one list of operators of several traces.

    Attributes:
        trace: The first trace, whose nodes the slots are of.
        number: The slot of each node of it.
        inputs: How many inputs there are: they take the first slots.
        constants: The constants, copied; they take the next ones.
        calls: The operators, in order.
    """

    trace: TracedPass
    number: dict[Node, int]
    inputs: int
    constants: list[Tensor]
    calls: list[OperatorCall]


def unify(traces: Sequence[TracedPass]) -> Unified:
    """Return the one program of several traces of the same pass.

    Raises:
        UnsupportedModuleError: They differ in more than integers that follow the number of rows.
    """
    nodes = [[*one.graph.nodes] for one in traces]
    first = traces[0]
    for alike in zip(*nodes, strict=False):
        if any(one.op != alike[0].op or (one.op == "call_function" and one.target != alike[0].target) for one in alike):
            raise _refusal(alike[0], "calls other operators")
    if len({len(one) for one in nodes}) > 1:
        raise _refusal(nodes[0][-2], "calls more operators")
    _check_records(traces)
    ordered = [[n for n in of_one if n.op == kind] for kind in ("placeholder", "get_attr") for of_one in nodes[:1]]
    calls = [node for node in nodes[0] if node.op == "call_function"]
    number = {node: k for k, node in enumerate([*ordered[0], *ordered[1], *calls])}
    index = [{node: k for k, node in enumerate(of_one)} for of_one in nodes]
    rows = [one.rows for one in traces]

    def merged(node: Node, parts: Sequence[Any]) -> Any:
        one = parts[0]
        if any(type(other) is not type(one) for other in parts):
            raise _refusal(node, "is called with other arguments")
        if isinstance(one, Node):
            if len({of_one[part] for of_one, part in zip(index, parts, strict=True)}) > 1:
                raise _refusal(node, "is called with other tensors")
            return Slot(number[one])
        if isinstance(one, (list, tuple)):
            if len({len(part) for part in parts}) > 1:
                raise _refusal(node, "is called with more arguments")
            return [merged(node, part) for part in zip(*parts, strict=True)]
        if isinstance(one, int) and not isinstance(one, bool):
            return _row_count(node, parts, rows)
        if not _alike(parts):
            raise _refusal(node, "is called with other numbers")
        return one

    made: list[OperatorCall] = []
    for alike in zip(*nodes, strict=True):
        node = alike[0]
        if node.op == "get_attr":
            others = [one.constants.get(n) for one, n in zip(traces, alike, strict=True)]
            if not all(_same_values(other, others[0]) for other in others):
                raise _refusal(next(iter(node.users), node), "meets a constant that is another")
        elif node.op == "call_function":
            args = tuple(merged(node, part) for part in zip(*(n.args for n in alike), strict=True))
            if any(n.kwargs.keys() != node.kwargs.keys() for n in alike):
                raise _refusal(node, "is called with other arguments")
            kwargs = {key: merged(node, [n.kwargs[key] for n in alike]) for key in node.kwargs}
            made.append(OperatorCall(node, node.target, args, kwargs, number[node]))  # pyright: ignore[reportArgumentType]
    constants = [first.constants.get(node, torch.empty(0)) for node in ordered[1]]
    return Unified(first, number, len(ordered[0]), constants, made)


def _alike(parts: Sequence[Any]) -> bool:
    return all(other == parts[0] for other in parts) or (isinstance(parts[0], float) and all(map(math.isnan, parts)))


def _row_count(node: Node, values: Sequence[int], rows: Sequence[int]) -> int | RowCount:
    if len(set(values)) == 1:
        return values[0]
    per_row, rest = divmod(values[1] - values[0], rows[1] - rows[0])
    fixed = values[0] - per_row * rows[0]
    if rest or any(value != per_row * n + fixed for value, n in zip(values, rows, strict=True)):
        raise _refusal(node, "is called with integers that do not follow the number of rows")
    return RowCount(per_row, fixed)


def _check_records(traces: Sequence[TracedPass]) -> None:
    """Refuse traces whose recorded calls are not alike: other layers, settings or parameters."""
    facts = [
        [
            (c.function, id(c.rule), repr(c.settings), c.parameters, c.shapes, [*c.derived], [*c.copies])
            for c in one.calls
        ]
        for one in traces
    ]
    alike = all(other == facts[0] for other in facts)
    if not alike or any([*one.of_copies] != [*traces[0].of_copies] for one in traces):
        raise UnsupportedModuleError(
            "the model or the loss meets its parameters in another way when there are more rows, or when it runs again"
        )


def _refusal(node: Node, what: str) -> UnsupportedModuleError:
    line, name = users_line(node), str(node.target).removeprefix("aten.")
    return UnsupportedModuleError(
        f"{line}the operator {name} {what} when there are more rows, or when the code runs again: let model and loss "
        "depend on one record, the parameters and constants alone"
    )


def _same_values(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:  # a generator, which the static check refuses
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(bytes_of(one), bytes_of(other))  # NaN equals itself


def bytes_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor's elements, in order."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)
