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

from tacita.gradients.record_batch import RecordBatch, outside


@dataclass(frozen=True)
class _Kept:
    """What the forward pass keeps: (rows, steps, ...) each, the gates in the order i, f, g, o."""

    gates: Tensor
    memory: Tensor  # c_0 first: one step more than the others
    squashed: Tensor  # tanh(c_t)
    hidden: Tensor  # h_0 first: one step more
    weight: Tensor


def serves(batch: RecordBatch, from_input: Tensor, state: tuple[Tensor, ...], weights: tuple[Any, ...]) -> bool:
    """Return whether :func:`lstm_steps` serves: the weights are the same for all records, and all has one dtype."""
    alike = all(t.dtype == from_input.dtype for t in state)
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
        before = _to_records(kept.hidden[:, :-1], whole.shape)
    product = F.linear(batch.one(before), weight, bias)
    with outside(), torch._C.DisableTorchFunction():
        found, memory = _Steps.apply(whole, batch.all(product), *first, kept)
    outputs = batch.one(found)
    return outputs, (outputs[-1], batch.one(memory))


def _forward(whole: Tensor, first: list[Tensor], weight: Tensor, bias: Tensor | None) -> _Kept:
    """Run all steps without a graph."""
    given = _to_rows(whole)
    gates = torch.empty(given.shape, dtype=given.dtype, device=given.device)
    torch.add(given, 0.0 if bias is None else bias.detach(), out=gates)
    rows, steps, width = *gates.shape[:2], weight.shape[1]
    memory, hidden = (gates.new_empty(rows, steps + 1, width) for _ in range(2))
    squashed = gates.new_empty(rows, steps, width)
    hidden[:, 0], memory[:, 0] = (one.reshape(rows, width) for one in first)
    turned = weight.t()
    h, c = hidden.unbind(1), memory.unbind(1)
    by_kind = zip(*(part.unbind(1) for part in gates.split(width, dim=2)), strict=True)
    both = gates[..., : 2 * width].unbind(1)
    whole_steps = zip(gates.unbind(1), squashed.unbind(1), by_kind, strict=True)
    for t, (gate, squash, (i, f, g, o)) in enumerate(whole_steps):
        gate.addmm_(h[t], turned)
        both[t].sigmoid_()
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
        return _to_records(kept.hidden[:, 1:], whole.shape), kept.memory[:, -1].reshape(memory.shape).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kept: _Kept = ctx.kept
        rows, _, width = kept.hidden.shape
        later, of_memory = grads[0].new_zeros(rows, width), grads[1].reshape(rows, width).clone()
        found, through = _slopes(kept)  # becomes the gradients before the activations
        of_three = found[..., : 3 * width].unflatten(2, (3, width)).unbind(1)
        of_o, forget = found[..., 3 * width :].unbind(1), kept.gates[..., width : 2 * width].unbind(1)
        outputs, whole_steps, through_steps = _to_rows(grads[0]).unbind(1), found.unbind(1), through.unbind(1)
        for t in reversed(range(len(outputs))):
            later += outputs[t]
            of_memory.addcmul_(later, through_steps[t])
            of_three[t].mul_(of_memory.unsqueeze(1))
            of_o[t].mul_(later)
            torch.mm(whole_steps[t], kept.weight, out=later)
            of_memory *= forget[t]
        whole = _to_records(found, ctx.shape, copy=False)
        product = whole.clone() if ctx.needs_input_grad[1] else None  # a rule may keep each of them, and write it
        return whole, product, later.view(ctx.state), of_memory.view(ctx.state), None


def _slopes(kept: _Kept) -> tuple[Tensor, Tensor]:
    """Return the factors of memory's gradient (i, f, g) and of the output's (o), and the output's share in memory's."""
    i, _, g, o = kept.gates.chunk(4, dim=2)
    found = torch.addcmul(kept.gates, kept.gates, kept.gates, value=-1)  # s (1 - s)
    of_i, of_f, of_g, of_o = found.chunk(4, dim=2)
    of_i.mul_(g)
    of_f.mul_(kept.memory[:, :-1])
    torch.mul(g, g, out=of_g).neg_().add_(1).mul_(i)
    of_o.mul_(kept.squashed)
    return found, kept.squashed.square().neg_().add_(1).mul_(o)


def _to_rows(records: Tensor) -> Tensor:
    """Return (batch, steps, ..., width) as (rows, steps, width); a copy only if a record has several rows."""
    return records.movedim(1, -2).flatten(0, -3)


def _to_records(rows: Tensor, like: torch.Size, *, copy: bool = True) -> Tensor:
    """Return (rows, steps, width) as (batch, steps, ..., width), with the leading axes of ``like``."""
    apart = rows.unflatten(0, (like[0], *like[2:-1])).movedim(-2, 1)
    return apart.clone(memory_format=torch.contiguous_format) if copy else apart.contiguous()
