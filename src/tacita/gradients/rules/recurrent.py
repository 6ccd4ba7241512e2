"""Recurrent layers, written out step by step, so that the rule of ``linear`` serves their weights.

PyTorch's kernels give one gradient for all records and have no rule for ``vmap``. Here the inputs of all positions meet
their weight in one call. The state meets its weight once a position, and the rule merges these calls; an LSTM's states
meet it in one call too (``lstm_steps.py``).
Source: the formulas in the documentation of ``torch.nn.RNN``, ``LSTM`` and ``GRU``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tacita.gradients.record_batch import RecordBatch
from tacita.gradients.rules import lstm_steps

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, State, Callable[[Tensor], Tensor]], State]  # (input's part, state, state's part) -> state


def _lstm_cell(from_input: Tensor, state: State, weigh: Callable[[Tensor], Tensor]) -> State:
    hidden, memory = state
    gates = (from_input + weigh(hidden)).chunk(4, dim=-1)
    memory = gates[1].sigmoid() * memory + gates[0].sigmoid() * gates[2].tanh()
    return gates[3].sigmoid() * memory.tanh(), memory


def _gru_cell(from_input: Tensor, state: State, weigh: Callable[[Tensor], Tensor]) -> State:
    (hidden,) = state
    mine, theirs = from_input.chunk(3, dim=-1), weigh(hidden).chunk(3, dim=-1)
    reset, update = (mine[0] + theirs[0]).sigmoid(), (mine[1] + theirs[1]).sigmoid()
    new = (mine[2] + reset * theirs[2]).tanh()
    return (new + update * (hidden - new),)


def _plain_cell(activation: Callable[[Tensor], Tensor]) -> Cell:
    return lambda from_input, state, weigh: (activation(from_input + weigh(state[0])),)


def _layers(cell: Cell, with_memory: bool) -> Callable[..., Any]:
    """Replace ``torch.lstm`` and its kin: layers in one or both directions, over sequences that are not packed."""

    def run(  # noqa: PLR0917 - the arguments of the torch function
        batch: RecordBatch,
        input: Tensor,
        hx: Any,
        params: Any,
        has_biases: Any = None,
        num_layers: int = 0,
        dropout: float = 0.0,
        train: bool = False,
        bidirectional: bool = False,
        batch_first: bool = False,
    ) -> Any:
        if isinstance(has_biases, (list, tuple)) or not isinstance(params, (list, tuple)):
            return NotImplemented  # packed sequences
        states = hx if with_memory else (hx,)
        directions = 2 if bidirectional else 1
        each = len(params) // (num_layers * directions)
        x = input.transpose(0, 1) if batch_first and input.ndim == 3 else input
        last: list[State] = []
        for layer in range(num_layers):
            ways = []
            for way in range(directions):
                k = layer * directions + way
                start = tuple(s[k] for s in states)
                mine = params[k * each : (k + 1) * each]
                found, end = _one_way(batch, cell, x, start, mine, has_biases=has_biases, backward=bool(way))
                ways.append(found)
                last.append(end)
            x = torch.cat(ways, dim=-1) if directions == 2 else ways[0]
            if dropout and train and layer + 1 < num_layers:
                x = F.dropout(x, dropout)
        ends = tuple(torch.stack([state[i] for state in last]) for i in range(len(states)))
        output = x.transpose(0, 1) if batch_first and input.ndim == 3 else x
        return (output, *ends)

    return run


def _one_way(
    batch: RecordBatch,
    cell: Cell,
    x: Tensor,
    state: State,
    weights: Sequence[Tensor],
    *,
    has_biases: bool,
    backward: bool,
) -> tuple[Tensor, State]:
    """Run one layer in one direction; return the outputs (positions, ...) and the state at the end."""
    input_weight, state_weight, *rest = weights
    input_bias, state_bias = rest[:2] if has_biases else (None, None)
    projection = rest[2 if has_biases else 0] if len(rest) > (2 if has_biases else 0) else None

    def weigh(hidden: Tensor) -> Tensor:
        return F.linear(hidden, state_weight, state_bias)

    outputs, from_input = [], F.linear(x, input_weight, input_bias)
    whole = cell is _lstm_cell and projection is None
    if whole and lstm_steps.serves(batch, from_input, state, (state_weight, state_bias)):
        from_input = from_input.flip(0) if backward else from_input
        found, state = lstm_steps.lstm_steps(batch, from_input, state, state_weight, state_bias)
        return (found.flip(0) if backward else found), state
    parts = from_input.unbind(0)
    for part in reversed(parts) if backward else parts:
        state = cell(part, state, weigh)
        if projection is not None:
            state = (F.linear(state[0], projection), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backward else outputs), state


def _cells(cell: Cell, with_memory: bool) -> Callable[..., Any]:
    """Replace ``torch.lstm_cell`` and its kin."""

    def run(  # noqa: PLR0917 - the arguments of the torch function
        batch: RecordBatch,
        input: Tensor,
        hx: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        state = tuple(hx) if with_memory else (hx,)
        found = cell(F.linear(input, w_ih, b_ih), state, lambda hidden: F.linear(hidden, w_hh, b_hh))
        return found if with_memory else found[0]

    return run


RECURRENT: dict[Any, Callable[..., Any]] = {
    torch.lstm: _layers(_lstm_cell, with_memory=True),
    torch.gru: _layers(_gru_cell, with_memory=False),
    torch.rnn_tanh: _layers(_plain_cell(torch.tanh), with_memory=False),
    torch.rnn_relu: _layers(_plain_cell(torch.relu), with_memory=False),
    torch.lstm_cell: _cells(_lstm_cell, with_memory=True),
    torch.gru_cell: _cells(_gru_cell, with_memory=False),
    torch.rnn_tanh_cell: _cells(_plain_cell(torch.tanh), with_memory=False),
    torch.rnn_relu_cell: _cells(_plain_cell(torch.relu), with_memory=False),
}
