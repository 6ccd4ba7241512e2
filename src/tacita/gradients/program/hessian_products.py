r"""Products of each record's Hessian with a vector, by a program: the model's code runs before any record is read.

What is traced is :math:`v \mapsto \nabla\langle\nabla\ell_i(\theta), v\rangle`, by two backward passes through one copy
of the parameters a record. How three traces become a program, and how its operators and rows are checked, is the same
as for gradients, and so is the proof: docs/derivations/program.md, section 8.

Everything here is private.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacita.gradients.batches import flatten, tensors_in
from tacita.gradients.chunked import Chunk
from tacita.gradients.functional import LossFn, ModuleTree
from tacita.gradients.program.engine import Programs
from tacita.gradients.program.operators import recorded
from tacita.gradients.program.record import forward
from tacita.gradients.program.run import SIZES, Program, plain_tensors_only, tapes_of
from tacita.gradients.program.tape import Tape
from tacita.gradients.program.trace import TracedPass, fixed_tensors


class HessianProducts:
    """Products with the Hessian of each record's loss, for any point and batch.

    Args:
        model: Not modified.
        loss_fn: ``(model, batch) -> losses``.
        params: A point, by parameter name; its values are not read.
        like: A batch of at least one row, for its shapes.

    Raises:
        UnsupportedModuleError: They cannot be written down as a program; the message names the user's line.
        Exception: Whatever the model's code raises where it depends on values.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], like: Any) -> None:
        self._programs = Programs(model, loss_fn, like, build=_build)
        self._programs.program(params)

    def at(self, params: Mapping[str, Tensor]) -> "HessianProductsAt":
        """Return the products at one point, for the model's present state.

        Raises:
            UnsupportedModuleError: As for the programs of gradients: an attribute of a module has changed, say.
        """
        return HessianProductsAt(params, *self._programs.program(params))


class HessianProductsAt:
    """Products with the Hessian of each record's loss, at one point."""

    def __init__(self, params: Mapping[str, Tensor], program: Program, inputs: list[Tensor]) -> None:
        self._params, self._program, self._inputs = params, program, inputs

    def __call__(self, batch: Any, rows: int, vector: Sequence[Tensor]) -> list[Tensor]:
        """Return each record's product with ``vector``, (rows, *parameter), in the order of the parameters.

        Args:
            batch: The records.
            rows: Their number, >= 1.
            vector: One tensor a parameter, of its shape.
        """
        tensors, _ = flatten(batch, rows)
        with plain_tensors_only():
            found = self._program.run([*self._inputs, *vector, *tensors], rows, lambda position, call: None)
        return [found[n] if n in found else p.new_zeros(()).expand(rows, *p.shape) for n, p in self._params.items()]


def _build(model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], like: Any) -> Program:
    fixed = fixed_tensors(ModuleTree(model), params)
    with sdpa_kernel(SDPBackend.MATH):  # fused kernels can be differentiated only once
        tapes = tapes_of(model, loss_fn, params, fixed, like)
        traces = [_trace(tape, params, fixed, like, rows) for tape, rows in zip(tapes, SIZES, strict=True)]
        return Program(traces, tapes[0].written)


def _trace(tape: Tape, params: Mapping[str, Tensor], fixed: Mapping[str, Tensor], like: Any, rows: int) -> TracedPass:
    tensors, rebuild = flatten(like, len(tensors_in(like)[0]))
    met: list[str] = []

    def run(inputs: list[Tensor]) -> list[Tensor]:
        rest = iter(inputs)
        point = [next(rest) for _ in params]
        others, vector = [next(rest) for _ in fixed], [next(rest) for _ in params]
        chunk = Chunk(rebuild([*rest]), rows, 0)
        with torch.enable_grad():
            copies = {n: p.detach().expand(rows, *p.shape).requires_grad_() for n, p in zip(params, point, strict=True)}
            losses, _ = forward(tape, [*params], {}, copies, others, chunk)
            found = _two_backward_passes(losses, copies, vector)
        met[:] = found
        return [*found.values()]

    shapes = [one.new_zeros(rows, *one.shape[1:]) for one in tensors]
    vector = [torch.zeros_like(p) for p in params.values()]
    operators = recorded(run, [*params.values(), *fixed.values(), *vector, *shapes])
    of_copies = dict(zip(met, operators.outputs, strict=True))
    return TracedPass(rows, operators.graph, [], [], [], of_copies, [], operators.constants)


def _two_backward_passes(losses: Tensor, copies: Mapping[str, Tensor], vector: Sequence[Tensor]) -> dict[str, Tensor]:
    if not losses.requires_grad:
        return {}
    leaves = [*copies.values()]
    grads = torch.autograd.grad(losses, leaves, torch.ones_like(losses), create_graph=True, allow_unused=True)
    curved = [(g, v.expand_as(g)) for g, v in zip(grads, vector, strict=True) if g is not None and g.requires_grad]
    if not curved:  # linear: the gradient is a constant
        return {}
    outputs, weights = zip(*curved, strict=True)
    products = torch.autograd.grad(outputs, leaves, weights, allow_unused=True)
    return {name: one for name, one in zip(copies, products, strict=True) if one is not None}
