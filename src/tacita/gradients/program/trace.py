"""Run a model and its loss on tensors that have shapes and no values, and write down every operator.

What is traced is the user's pass: the forward pass on one record that stands for all (``record_batch.py``), and the
backward pass to the outputs of recorded calls. Its inputs are the parameters, buffers and frozen weights of the model
and the tensors of the batch; its outputs are what the rules of layers need. No record is read.

This file alone uses PyTorch's tracer. Everything here is private. Proof: docs/derivations/program.md.
"""

import itertools
import logging
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.func import vmap
from torch.fx import Graph, GraphModule, Node, traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten, tensors_in
from tacita.gradients.chunked import Chunk
from tacita.gradients.functional import IN_TURN, LossFn, ModuleTree, with_tensors
from tacita.gradients.program.check import is_of_pytorch
from tacita.gradients.program.record import Needs, RecordedPass, record_once
from tacita.gradients.program.recorded_calls import RecordedCall
from tacita.gradients.record_batch import rules_guarded
from tacita.gradients.rules.derived import Derived
from tacita.gradients.seeds import is_global

_aten = torch.ops.aten
_SAME = {_aten.detach.default, _aten.alias.default}  # without autograd, names of the tensor that they are given
_RESHAPES = {_aten.view.default, _aten._unsafe_view.default, _aten.expand.default, _aten.reshape.default}
_TORCH, _HERE = str(Path(torch.__file__).parent), str(Path(__file__).parents[2])
_PROGRAM = str(Path(__file__).parent)


@dataclass(frozen=True)
class Pullback:
    """The traced way from the gradients of a derived weight to those of the parameters that it depends on.

    Attributes:
        source: The derived weight.
        given: Node that stands for the gradients, (rows, *weight).
        results: Nodes of the gradients of each parameter, (rows, *parameter), in the order of ``source.leaves``.
    """

    source: Derived
    given: Node
    results: list[Node]


@dataclass(frozen=True)
class TracedPass:
    """One pass at one number of rows.

    Attributes:
        rows: The number of rows.
        module: The operators.
        calls: The recorded calls; their input and gradients are nodes of the graph.
        inputs: For each call, the node of its input.
        grads: For each call, the nodes of the gradients that came back.
        of_copies: Nodes of the per-sample gradients of bare parameters, by name; only those that losses depend on.
        pullbacks: Of the derived weights, each once.
        constants: Copies of the constants, by node, as they are after the pass; a generator is none.
        written: The names of the modules' attributes that the code sets, as pruning sets a weight.
    """

    rows: int
    module: GraphModule
    calls: list[RecordedCall]
    inputs: list[Node]
    grads: list[list[Node | None]]
    of_copies: dict[str, Node]
    pullbacks: list[Pullback]
    constants: dict[Node, Tensor]
    written: frozenset[str] = frozenset()


def trace(  # noqa: PLR0917
    model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], like: Any, rows: int, needs: Needs
) -> TracedPass:
    """Trace one pass over ``rows`` records.

    Args:
        model: Not modified.
        loss_fn: ``(model, batch) -> losses``.
        params: The trainable parameters; their values are not read.
        like: A batch, for the shapes of its rows.
        rows: The number of rows, >= 2.
        needs: What is known of the model.

    Raises:
        NeedsMoreError: The pass must be traced again.
        UnsupportedModuleError: The code draws numbers while it is traced, or keeps or writes what it must not.
        Exception: Whatever the model's code raises where it depends on values.
    """
    tree = ModuleTree(model)
    fixed = fixed_tensors(tree, params)
    tensors, rebuild = flatten(like, len(tensors_in(like)[0]))
    first, second = len(params), len(params) + len(fixed)
    notes: list[tuple[RecordedPass, list[tuple[Derived, int]]]] = []

    def run(inputs: list[Tensor]) -> list[Tensor]:
        values = dict(zip(params, inputs[:first], strict=True))
        others = dict(zip(fixed, inputs[first:second], strict=True))
        with with_tensors(tree, others), TraceCheck():
            found = record_once(model, loss_fn, values, Chunk(rebuild(inputs[second:]), rows, 0), needs)
            outputs = [one.x for one in found.calls]
            outputs += [grad for one in found.calls for grad in one.grads if grad is not None]
            outputs += [grad for grad in found.of_copies.values() if grad is not None]
            pulled = []
            for source in _sources(found.calls):
                given = torch.zeros(rows, *source.tensor.shape, dtype=source.tensor.dtype, device=source.tensor.device)
                results = _pulled(source, given)
                outputs += [given, *results]
                pulled.append((source, len(results)))
        notes.append((found, pulled))
        return outputs

    shapes = [one.new_zeros(rows, *one.shape[1:]) for one in tensors]
    module, outputs, constants = traced(run, [*params.values(), *fixed.values(), *shapes])
    ((found, pulled),) = notes
    nodes = iter(outputs)
    inputs = [next(nodes) for _ in found.calls]
    grads = [[None if grad is None else next(nodes) for grad in one.grads] for one in found.calls]
    of_copies = {name: next(nodes) for name, grad in found.of_copies.items() if grad is not None}
    pullbacks = [Pullback(source, next(nodes), [next(nodes) for _ in range(count)]) for source, count in pulled]
    return TracedPass(
        rows, module, found.calls, inputs, grads, of_copies, pullbacks, constants, frozenset(found.written)
    )


def traced(
    run: Callable[[list[Tensor]], list[Tensor]], given: list[Tensor]
) -> tuple[GraphModule, Sequence[Node], dict[Node, Tensor]]:
    """Trace a function of tensors, on tensors without values.

    Returns:
        Its operators, the nodes of its outputs, and copies of its constants as they are afterwards, by node.

    Raises:
        UnsupportedModuleError: It draws numbers from a generator that a query does not seed.
    """
    with IN_TURN, _quiet(), _nothing_drawn(), traceback.preserve_node_meta():  # switches that belong to the process
        module = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(given)
    _simplify(module.graph)
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    held = {node: getattr(module, str(node.target)) for node in module.graph.nodes if node.op == "get_attr"}
    if any(isinstance(one, Tensor) and type(one) not in (Tensor, nn.Parameter) for one in held.values()):
        raise UnsupportedModuleError("the code uses a constant tensor with code of its own: use a plain tensor")
    constants = {node: Tensor.clone(Tensor.detach(one)) for node, one in held.items() if isinstance(one, Tensor)}
    return module, output.args[0], constants  # pyright: ignore[reportReturnType]


def fixed_tensors(tree: ModuleTree, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the buffers and frozen parameters of a model, each once, by name."""
    known = {id(tree.by_name[name]) for name in params}
    found: dict[str, Tensor] = {}
    for name, tensor in tree.by_name.items():
        if id(tensor) not in known:
            known.add(id(tensor))
            found[name] = tensor
    return found


def _sources(calls: Sequence[RecordedCall]) -> list[Derived]:
    """Return the derived weights whose gradients autograd pulls back, each once."""
    found = {
        id(one.tensor): one for call in calls if any(g is not None for g in call.grads) for one in call.derived.values()
    }
    return [one for one in found.values() if not one.view]


def _pulled(source: Derived, grads: Tensor) -> list[Tensor]:
    """Return the gradients of a derived weight's parameters, (rows, *parameter), for its own, (rows, *weight)."""
    leaves = [*source.leaves.values()]
    with rules_guarded():
        return [*vmap(lambda one: torch.autograd.grad(source.tensor, leaves, one, retain_graph=True))(grads)]


class TraceCheck(TorchDispatchMode):
    """Note the user's line at each operator; refuse a draw after a seed was set, which a query would not set."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = torch.default_generator.get_state()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        traceback.current_meta["stack_trace"] = _users_line()
        if isinstance(func, OpOverload) and not is_of_pytorch(func):
            raise UnsupportedModuleError(
                f"{_users_line()}: the operator {func._schema.name} is not PyTorch's own: what it does with a record "
                "is not known, nor a rule that keeps records apart. Write it in PyTorch's operators (declare_operator "
                'is for method="loop" alone)'
            )
        if any(frame.f_code.co_name == "__torch_dispatch__" for frame in _users_frames()):
            raise UnsupportedModuleError(
                f"{_users_line()}: runs within a TorchDispatchMode of the model's own, which gets the tensors of all "
                "records: leave it out"
            )
        trusting = "_backward" in func.name() or "lu_solve" in func.name()
        if trusting and torch.Tag.pointwise not in func.tags and _called_by_users():
            raise UnsupportedModuleError(
                f"{_users_line()}: calls {func.name()}, which trusts the sizes and indices that it is given: for a "
                "gradient call the function whose gradient it is, for linear equations torch.linalg.solve"
            )
        drawing = torch.Tag.nondeterministic_seeded in func.tags
        given = (*args, *(kwargs or {}).values())
        if drawing and any(isinstance(one, torch.Generator) and not is_global(one) for one in given):
            raise UnsupportedModuleError(
                f"{_users_line()}: draws from a generator of its own: draw it once, in __init__, and keep it in a "
                "buffer (register_buffer), or leave generator= out, so that the query's stream is drawn from"
            )
        if drawing and not torch.equal(torch.default_generator.get_state(), self._begun):
            raise UnsupportedModuleError(SEED_SET)
        return func(*args, **(kwargs or {}))


def _users_line() -> str:
    """Return ``file:line`` of the user's code that runs now, or of a library's; empty in a backward pass."""
    lines = [(frame.f_code.co_filename, frame.f_lineno) for frame in _users_frames()]
    own = [one for one in lines if "site-packages" not in one[0]] or lines
    return f"{Path(own[0][0]).name}:{own[0][1]}" if own else ""


def _users_frames() -> Iterator[FrameType]:
    """Yield the frames of code that is neither PyTorch's nor tacita's, up to what is traced, innermost first."""
    return (frame for frame in _frames() if not frame.f_code.co_filename.startswith((_TORCH, _HERE, "<")))


def _called_by_users() -> bool:
    """Return whether the user's code calls the operator that runs now, and not autograd in a backward pass."""
    frames = itertools.takewhile(lambda one: one.f_code.co_name != "_engine_run_backward", _frames())
    return any(not frame.f_code.co_filename.startswith((_TORCH, _HERE, "<")) for frame in frames)


def _frames() -> Iterator[FrameType]:
    """Yield the frames of all code that runs, up to what is traced, innermost first."""
    frame = sys._getframe(1)
    while frame is not None and not (
        frame.f_code.co_filename.startswith(_PROGRAM) and frame.f_code.co_name == "run"  # what is traced
    ):
        yield frame
        frame = frame.f_back


SEED_SET = (
    "the model or the loss sets a seed, or draws numbers that do not come from a tensor of the batch "
    "(torch.manual_seed(0), torch.rand(1), random.random()): draw them once, in __init__, and keep them in a buffer "
    "(register_buffer), or draw by torch.rand_like(x) of a record's tensor x"
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


def _simplify(graph: Graph) -> None:
    """Take out calls that give what they are given, and those whose result nobody uses."""
    alone = not any(torch.Tag.inplace_view in getattr(node.target, "tags", ()) for node in graph.nodes)  # y.t_()
    for node in [*graph.nodes] if alone else []:
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
