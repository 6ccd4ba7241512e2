"""Run a model and its loss on tensors that have shapes and no values, and write down every operator.

What is traced is the user's pass: the forward pass on one record that stands for all (``record_batch.py``), and the
backward pass to the outputs of recorded calls. Its inputs are the parameters, buffers and frozen weights of the model
and the tensors of the batch; its outputs are what the rules of layers need. No record is read.

Everything here is private. Proof: docs/derivations/program.md.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import Graph, Node

from tacita.gradients.batches import flatten, tensors_in
from tacita.gradients.chunked import Chunk
from tacita.gradients.functional import ModuleTree
from tacita.gradients.program.operators import recorded
from tacita.gradients.program.record import RecordedPass, record_once
from tacita.gradients.program.recorded_calls import RecordedCall
from tacita.gradients.program.tape import Tape
from tacita.gradients.rules.derived import Derived


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
        graph: The operators.
        calls: The recorded calls; their input and gradients are nodes of the graph.
        inputs: For each call, the node of its input.
        grads: For each call, the nodes of the gradients that came back.
        of_copies: Nodes of the per-sample gradients of bare parameters, by name; only those that losses depend on.
        pullbacks: Of the derived weights, each once.
        constants: Copies of the constants, by node, as they are after the pass.
    """

    rows: int
    graph: Graph
    calls: list[RecordedCall]
    inputs: list[Node]
    grads: list[list[Node | None]]
    of_copies: dict[str, Node]
    pullbacks: list[Pullback]
    constants: dict[Node, Tensor]


def trace(  # noqa: PLR0917
    tape: Tape, params: Mapping[str, Tensor], fixed: Mapping[str, Tensor], like: Any, rows: int, bare: Collection[str]
) -> TracedPass:
    """Trace one pass over ``rows`` records.

    Args:
        tape: What the model and the loss do for one record.
        params: The trainable parameters; their values are not read.
        fixed: The other weights, the same.
        like: A batch, for the shapes of its rows.
        rows: The number of rows, >= 2.
        bare: As of :func:`record_once`.

    Raises:
        BareParametersError: The pass must be traced again.
        UnsupportedModuleError: The code writes what it must not.
        Exception: What PyTorch raises where it has no batching rule.
    """
    tensors, rebuild = flatten(like, len(tensors_in(like)[0]))
    first, second = len(params), len(params) + len(fixed)
    notes: list[tuple[RecordedPass, list[tuple[Derived, int]]]] = []

    def run(inputs: list[Tensor]) -> list[Tensor]:
        values = dict(zip(params, inputs[:first], strict=True))
        others = dict(zip(fixed, inputs[first:second], strict=True))
        found = record_once(tape, values, others, Chunk(rebuild(inputs[second:]), rows, 0), bare)
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
    operators = recorded(run, [*params.values(), *fixed.values(), *shapes])
    ((found, pulled),) = notes
    nodes = iter(operators.outputs)
    inputs = [next(nodes) for _ in found.calls]
    grads = [[None if grad is None else next(nodes) for grad in one.grads] for one in found.calls]
    of_copies = {name: next(nodes) for name, grad in found.of_copies.items() if grad is not None}
    pullbacks = [Pullback(source, next(nodes), [next(nodes) for _ in range(count)]) for source, count in pulled]
    return TracedPass(rows, operators.graph, found.calls, inputs, grads, of_copies, pullbacks, operators.constants)


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
    return [*vmap(lambda one: torch.autograd.grad(source.tensor, leaves, one, retain_graph=True))(grads)]
