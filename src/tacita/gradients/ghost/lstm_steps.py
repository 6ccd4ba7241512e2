r"""All steps of an LSTM in one node of autograd's graph, on the whole batch.

Step by step, autograd keeps a dozen nodes a position, which takes several times as long as PyTorch's own kernel. Here
the forward pass keeps the gates, and the backward pass is written out. With the gates i, f, g, o after their
activations, the memory :math:`c_t = f c_{t-1} + i g` and the output :math:`h_t = o \tanh c_t`, and with the gradients
:math:`\bar h_t` and :math:`\bar c_t`, the gradients before the activations are

.. math::
    \bar a_o = \bar h_t \tanh(c_t)\, o (1 - o), \quad \bar a_i = \bar c_t\, g\, i (1 - i), \quad
    \bar a_f = \bar c_t\, c_{t-1} f (1 - f), \quad \bar a_g = \bar c_t\, i\, (1 - g^2).

The product of the state with its weight W is a call of ``linear`` on all states that came before a step, so that its
rule serves W: the share of W is :math:`\sum_t \bar a_t h_{t-1}^\top`, and the call's output has the gradient
:math:`\bar a`. The states enter that call as constants. What reaches them from later steps is in :math:`\bar h_t`
already.

Everything here is private. Rows are kept apart: a step is a matrix product of rows, and otherwise works element by
element.
Source: the formulas in the documentation of ``torch.nn.LSTM``, differentiated.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from tacita.gradients.ghost.record_batch import RecordBatch, outside


@dataclass(frozen=True)
class _Kept:
    """What the forward pass keeps: (steps, rows, ...) each, the gates in the order i, f, g, o."""

    gates: Tensor
    memory: Tensor  # c_0 first: one step more than the others
    squashed: Tensor  # tanh(c_t)
    hidden: Tensor  # h_0 first: one step more
    weight: Tensor


def serves(batch: RecordBatch, from_input: Tensor, state: tuple[Tensor, ...], weights: tuple[Any, ...]) -> bool:
    """Return whether :func:`lstm_steps` serves: the weights are the same for all records, and all has one dtype."""
    given = [from_input, *state]
    alike = all(batch.understands(t) and t.dtype == from_input.dtype for t in given)
    fixed = all(w is None or (not batch.differs(w) and w.dtype == from_input.dtype) for w in weights)
    return alike and fixed and not torch.is_autocast_enabled(from_input.device.type) and len(from_input) > 0


def lstm_steps(
    batch: RecordBatch, from_input: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run the steps of one layer in one direction.

    Args:
        batch: The records.
        from_input: What the input adds to the gates, (steps, ..., 4 x width), as one record's code sees it.
        state: Output and memory before the first step, (..., width).
        weight: Of the state, (4 x width, width); the same for all records.
        bias: Of the state, (4 x width,), or ``None``.

    Returns:
        The outputs, (steps, ..., width), and output and memory after the last step.
    """
    with outside(), torch._C.DisableTorchFunction():  # physical tensors from here on: (batch, steps, ..., width)
        whole = batch.all(from_input)
        first = [batch.all(one) for one in state]
        kept = _forward(whole.detach(), [one.detach() for one in first], weight.detach(), bias)
        before = _to_records(kept.hidden[:-1], whole.shape)
    product = F.linear(batch.one(before), weight, bias)
    with outside(), torch._C.DisableTorchFunction():
        found, memory = _Steps.apply(whole, batch.all(product), *first, kept)
    outputs = batch.one(found)
    return outputs, (outputs[-1], batch.one(memory))


def _forward(whole: Tensor, first: list[Tensor], weight: Tensor, bias: Tensor | None) -> _Kept:
    """Run all steps without a graph."""
    gates = _to_steps(whole).clone(memory_format=torch.contiguous_format)
    if bias is not None:
        gates += bias.detach()
    steps, rows, width = *gates.shape[:2], weight.shape[1]
    memory, hidden = (gates.new_empty(steps + 1, rows, width) for _ in range(2))
    squashed = gates.new_empty(steps, rows, width)
    hidden[0], memory[0] = (one.reshape(rows, width) for one in first)
    turned = weight.t()
    h, c = hidden.unbind(0), memory.unbind(0)
    parts = [gates[..., k * width : (k + 1) * width].unbind(0) for k in range(4)]
    both = gates[..., : 2 * width].unbind(0)
    for t, (gate, squash) in enumerate(zip(gates.unbind(0), squashed.unbind(0), strict=True)):
        gate.addmm_(h[t], turned)
        both[t].sigmoid_()
        i, f, g, o = (part[t] for part in parts)
        g.tanh_()
        o.sigmoid_()
        torch.mul(f, c[t], out=c[t + 1]).addcmul_(i, g)
        torch.tanh(c[t + 1], out=squash)
        torch.mul(o, squash, out=h[t + 1])
    return _Kept(gates, memory, squashed, hidden, weight)


class _Steps(torch.autograd.Function):
    """Outputs and last memory of steps that were run: a function of both parts of the gates and of the first state."""

    @staticmethod
    def forward(  # noqa: PLR0917 - what autograd differentiates stands apart
        ctx: Any, whole: Tensor, product: Tensor, hidden: Tensor, memory: Tensor, kept: _Kept
    ) -> tuple[Tensor, Tensor]:
        ctx.kept, ctx.shape, ctx.state = kept, whole.shape, hidden.shape
        return _to_records(kept.hidden[1:], whole.shape), kept.memory[-1].reshape(memory.shape).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kept: _Kept = ctx.kept
        outputs = _to_steps(grads[0])
        rows, width = kept.hidden.shape[1:]
        later, of_memory = grads[0].new_zeros(rows, width), grads[1].reshape(rows, width).clone()
        i, f, g, o = kept.gates.view(*kept.gates.shape[:2], 4, width).unbind(2)
        slopes = torch.stack([g * i * (1 - i), kept.memory[:-1] * f * (1 - f), i * (1 - g * g)], dim=2)
        of_o, through = kept.squashed * o * (1 - o), o * (1 - kept.squashed.square())
        found = torch.empty_like(kept.gates)
        parts = found.view(*slopes.shape[:2], 4, width)
        for t in reversed(range(len(found))):
            later += outputs[t]
            of_memory.addcmul_(later, through[t])
            torch.mul(of_memory.unsqueeze(1), slopes[t], out=parts[t, :, :3])
            torch.mul(later, of_o[t], out=parts[t, :, 3])
            torch.mm(found[t], kept.weight, out=later)
            of_memory *= f[t]
        whole = _to_records(found, ctx.shape)
        product = whole.clone() if ctx.needs_input_grad[1] else None  # a rule may keep each of them, and write it
        return whole, product, later.view(ctx.state), of_memory.view(ctx.state), None


def _to_steps(records: Tensor) -> Tensor:
    """Return (batch, steps, ..., width) as (steps, rows, width)."""
    return records.movedim(1, 0).flatten(1, -2)


def _to_records(steps: Tensor, like: torch.Size) -> Tensor:
    """Return (steps, rows, width) as a new (batch, steps, ..., width), with the leading axes of ``like``."""
    apart = steps.view(like[1], like[0], *like[2:-1], steps.shape[-1])
    return apart.movedim(0, 1).clone(memory_format=torch.contiguous_format)
