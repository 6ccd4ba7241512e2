"""A private step as a straight line of PyTorch's operators, which runs without the model's code.

The ghost engine's pass over a chunk (forward, backward, norms, weighted sums) is run once on tensors that have shapes
and no values, and each operator that it calls is written down. No value of a record can be seen meanwhile, so the line
is the same whatever the records hold. What values decide in the ordinary pass is decided otherwise: sums are written
down twice, with masks for rows that are not finite and without, and a norm's upper bound stays as it is where the
ordinary pass would compute a tighter one (``ghost/rare_cases.py``).

Everything here is private. Proof: docs/derivations/per-record-engine.md, section 8.
"""

import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import memory_address
from tacita.gradients.lent_memory import WRITTEN_AFTER_ALL, written

_aten = torch.ops.aten
_SAME = {_aten.detach.default, _aten.alias.default}  # without autograd, names of the tensor that they are given
_RESHAPES = {_aten.view.default, _aten._unsafe_view.default, _aten.expand.default, _aten.reshape.default}
_SHARING = {
    _aten._unsafe_view.default,
    _aten.lift.default,
    _aten.unsafe_split.Tensor,
    _aten.unsafe_split_with_sizes.default,
}  # share memory with what they are given, unannounced
_BOUNDARY = _aten.lift.default  # a name of its input that no model's code makes: here the weights come in


class _Register(NamedTuple):
    """A place for a value while a line runs."""

    number: int


class _Instruction(NamedTuple):
    """One operator's call.

    Attributes:
        function: The operator.
        args: Its arguments; a ``_Register`` stands for the value in it.
        nested: A list among them has registers in it.
        kwargs: Its named arguments, the same.
        result: The number of the register that takes the result.
        forgotten: Numbers of registers that nobody reads afterwards.
        writes: Numbers of registers whose tensors it writes in place.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    nested: bool
    kwargs: dict[str, Any]
    result: int
    forgotten: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass
class Halfway:
    """A traced step that waits for the weights of the rows.

    Attributes:
        norms: The norms by group, (rows, groups), float64.
    """

    norms: Tensor
    _line: "TracedStep"
    _values: list[Any]
    _lent: set[int]

    def sums(self, weights: Sequence[Tensor], *, masked: bool) -> list[Tensor]:
        """Return the weighted sums, in the order of the trace. Afterwards nothing is held.

        Args:
            weights: As many as were traced, each (rows,).
            masked: Rows of weight 0 may hold what is not finite.
        """
        return self._line.finish(self._values, weights, masked, self._lent)


class TracedStep:
    """A chunk's pass as a straight line: a part up to the norms, and two from the row weights to the sums.

    Args:
        function: ``(inputs, weights) -> [norms, *sums, *sums with masks]``. It passes all weights through
            :func:`weights_come_in` where the first sums begin, and again where those with masks do.
        inputs: Tensors of the shapes and dtypes that the step is for; their values are not read.
        weights: The same for the weights.
        num_sums: How many sums there are, of each kind.

    Raises:
        UnsupportedModuleError: The step cannot be written down so.
        Exception: Whatever the model's code raises where it depends on values.
    """

    def __init__(
        self,
        function: Callable[[list[Tensor], list[Tensor]], list[Tensor]],
        inputs: Sequence[Tensor],
        weights: Sequence[Tensor],
        num_sums: int,
    ) -> None:
        with _quiet():
            module = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)([*inputs], [*weights])
        _simplify(module.graph)
        _check(module)
        self._compile(module, len(inputs), num_sums)

    def begin(self, inputs: Sequence[Tensor], *, lent: bool = False) -> Halfway:
        """Run the part up to the norms.

        Args:
            inputs: Tensors like those of the trace.
            lent: Their memory belongs to others. No line writes it, as far as its trace tells; it is looked at again
                before each operator that writes.

        Raises:
            UnsupportedModuleError: An input has another shape or dtype than the step was traced for; or its memory
                would be written after all.
        """
        if tuple((one.shape, one.dtype) for one in inputs) != self._kinds:
            raise UnsupportedModuleError(
                'method="traced" serves records of one shape and dtype, but a batch has others. Pad them, or use '
                'method="ghost".'
            )
        values = [*inputs, *[None] * self._weights, *self._constants, *[None] * self._more]
        memory = {memory_address(one) for one in inputs} if lent else set()
        self._run(self._parts[0], values, memory)
        return Halfway(values[self._norms], self, values, memory)

    def finish(self, values: list[Any], weights: Sequence[Tensor], masked: bool, lent: set[int]) -> list[Tensor]:
        """Run a part from the weights to the sums."""
        values[self._inputs : self._inputs + self._weights] = weights
        self._run(self._parts[1 + masked], values, lent)
        found = [values[k] for k in self._sums[masked]]
        values.clear()
        return found

    def same(self, other: "TracedStep") -> bool:
        """Return whether another line has the same operators and constants."""
        alike = repr(self._parts) == repr(other._parts)  # where NaN equals itself
        return alike and all(map(_same_values, self._constants, other._constants))

    @staticmethod
    def _run(instructions: Sequence[_Instruction], values: list[Any], lent: set[int]) -> None:
        with torch.no_grad():
            for function, args, nested, kwargs, result, forgotten, writes in instructions:
                if lent and any(memory_address(values[number]) in lent for number in writes):
                    raise UnsupportedModuleError(WRITTEN_AFTER_ALL)
                if nested:
                    values[result] = function(*_filled(args, values), **_filled(kwargs, values))
                else:
                    given = [values[a.number] if type(a) is _Register else a for a in args]
                    values[result] = function(*given, **kwargs)
                for number in forgotten:
                    values[number] = None

    def _compile(self, module: GraphModule, inputs: int, num_sums: int) -> None:
        """Turn a graph into instructions. Inputs take the first registers, then weights, then constants."""
        nodes = [*module.graph.nodes]
        places = [node for node in nodes if node.op == "placeholder"]
        held = [node for node in nodes if node.op == "get_attr"]
        calls = [node for node in nodes if node.op == "call_function"]
        (output,) = (node for node in nodes if node.op == "output")
        number = {node: k for k, node in enumerate([*places, *held, *calls])}
        norms, *sums = (number[node] for node in output.args[0])  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable]
        self._inputs, self._weights, self._more = inputs, len(places) - inputs, len(calls)
        self._constants = [getattr(module, str(node.target)) for node in held]
        self._kinds = tuple((node.meta["val"].shape, node.meta["val"].dtype) for node in places[:inputs])
        self._norms, self._sums = norms, (sums[:num_sums], sums[num_sums:])
        first, second = _begins(calls, places[inputs:])
        parts = calls[:first], calls[first:second], calls[second:]
        reads = [{number[given] for node in part for given in node.all_input_nodes} for part in parts]
        if reads[2] & {number[node] for node in parts[1]}:
            raise UnsupportedModuleError("its sums with masks read what those without have computed")
        always = {norms, *sums, *range(len(places) + len(held))}
        kept = always | reads[1] | reads[2], always, always
        self._parts = [_instructions(part, number, keep) for part, keep in zip(parts, kept, strict=True)]


def weights_come_in(weight: Tensor) -> Tensor:
    """Mark, while a step is traced, where its second part begins."""
    return _BOUNDARY(weight)


def _begins(calls: Sequence[Node], weights: Sequence[Node]) -> list[int]:
    """Return where the weights come in for the first time and for the second; the end, where no sum reads them."""
    found = [k for k, node in enumerate(calls) if node.target is _BOUNDARY and node.args[0] in weights]
    kinds = [calls[k].args[0] for k in found]
    again = [k for k, place in enumerate(kinds) if place in kinds[:k]]
    return [found[0], found[again[0]]] if again else [len(calls)] * 2


def _instructions(calls: Sequence[Node], number: dict[Node, int], kept: set[int]) -> list[_Instruction]:
    """Return the instructions of calls; what no later one reads is forgotten, unless it is ``kept``."""
    last = {given: node for node in calls for given in node.all_input_nodes}
    forgotten: dict[Node, list[int]] = {node: [] for node in calls}
    for given, node in last.items():
        if number[given] not in kept:
            forgotten[node].append(number[given])
    return [_instruction(node, number, tuple(forgotten[node])) for node in calls]


def _instruction(node: Node, number: dict[Node, int], forgotten: tuple[int, ...]) -> _Instruction:
    def read(given: Any) -> Any:
        if isinstance(given, Node):
            return _Register(number[given])
        return [read(one) for one in given] if isinstance(given, (list, tuple)) else given

    args, kwargs = tuple(read(one) for one in node.args), {name: read(one) for name, one in node.kwargs.items()}
    lists = [one for one in (*args, *kwargs.values()) if type(one) is list]
    nested = any(type(one) is _Register for part in lists for one in part)
    nested = nested or any(type(one) is _Register for one in kwargs.values())
    function: Any = node.target
    writes = tuple(number[one] for one in _written_by(node))
    return _Instruction(function, args, nested, kwargs, number[node], forgotten, writes)


def _written_by(node: Node) -> list[Node]:
    """Return the tensors that a call writes in place."""
    if not isinstance(node.target, OpOverload):
        return []
    given = [node.args[k] if k < len(node.args) else node.kwargs.get(name) for k, name in written(node.target)]
    parts = (part if isinstance(part, (list, tuple)) else [part] for part in given)
    return [one for part in parts for one in part if isinstance(one, Node)]


def _filled(given: Any, values: list[Any]) -> Any:
    """Return arguments with the values of registers, those in lists, too."""
    if type(given) is _Register:
        return values[given.number]
    if type(given) is dict:
        return {name: _filled(one, values) for name, one in given.items()}
    return type(given)(_filled(one, values) for one in given) if type(given) in (list, tuple) else given


def _simplify(graph: Graph) -> None:
    """Take out calls that give what they are given, and those whose result nobody uses."""
    for node in [*graph.nodes]:
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
            continue
        given = node.args[0]
        same = node.target in _SAME
        if node.target in _RESHAPES:
            before, after = given.meta["val"], node.meta["val"]
            same = before.shape == after.shape and before.stride() == after.stride()
        if same:
            node.replace_all_uses_with(given)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _check(module: GraphModule) -> None:
    """Refuse operators that are not PyTorch's own, and those that write what the step was given.

    Raises:
        UnsupportedModuleError: There is one.
    """
    given = {_memory(node.meta["val"]) for node in module.graph.nodes if node.op == "placeholder"}
    owner: dict[Any, Any] = {}  # of a view: the tensor that it may share memory with
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is operator.getitem:
            owner[node] = owner.get(node.args[0], node.args[0])
            continue
        if not isinstance(node.target, OpOverload) or node.target.namespace not in ("aten", "prims"):
            raise UnsupportedModuleError(f"{node.target} is no operator of PyTorch that a traced step knows")
        for one in _written_by(node):
            if owner.get(one, one).op in ("placeholder", "get_attr") or _memory(one.meta.get("val")) in given:
                raise UnsupportedModuleError(
                    "the model or the loss writes in place a tensor that it was given, or a constant"
                )
        arguments = [*node.args, *(node.kwargs.get(a.name) for a in node.target._schema.arguments[len(node.args) :])]
        shared = [a for a, spec in zip(arguments, node.target._schema.arguments, strict=True) if spec.alias_info]
        shared = node.args[:1] if node.target in _SHARING else shared
        if shared and isinstance(shared[0], Node):
            owner[node] = owner.get(shared[0], shared[0])


def _same_values(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _memory(value: Any) -> int:
    """Return what two tensors without values have in common if they share memory; some operators do not say so."""
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else 0


@contextmanager
def _quiet() -> Iterator[None]:
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
