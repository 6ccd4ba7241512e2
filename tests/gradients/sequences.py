"""Recurrent layers, attention, mixtures of experts, and programs around layers: small networks, as in ``layers.py``."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.gradients.layers import Net, Size, first, of, tokens, weight

# --- recurrence ------------------------------------------------------------------------------------------------------


def recurrent(kind: Any, **settings: Any) -> Any:
    return lambda s: Net(first, layer=kind(s.width, s.width // 2, batch_first=True, **settings))


def cell_by_cell(m: Any, x: Tensor) -> Tensor:
    hidden = memory = torch.zeros(len(x), m.cell.hidden_size, dtype=x.dtype)
    out = []
    for t in range(x.shape[1]):
        hidden, memory = m.cell(x[:, t], (hidden, memory))
        out.append(hidden)
    return torch.stack(out, dim=1)


def learned_start(m: Any, x: Tensor) -> Tensor:
    return m.layer(x, m.start.expand(-1, len(x), -1).contiguous())[0]


def packed(m: Any, x: Tensor) -> Tensor:
    lengths = (x[:, :, 0] > -0.5).sum(1).clamp(min=1).cpu()
    given = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return m.layer(given)[1].transpose(0, 1)


RECURRENT = {
    "LSTM": recurrent(nn.LSTM),
    "LSTM, stacked, both ways": recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "LSTM, projected": recurrent(nn.LSTM, proj_size=2),
    "LSTM, time first": lambda s: Net(
        lambda m, x: m.layer(x.transpose(0, 1))[0].transpose(0, 1), layer=nn.LSTM(s.width, s.width // 2)
    ),
    "LSTM cell by cell": lambda s: Net(cell_by_cell, cell=nn.LSTMCell(s.width, s.width // 2)),
    "GRU, stacked, both ways": recurrent(nn.GRU, num_layers=2, bidirectional=True),
    "GRU, learned start": lambda s: Net(
        learned_start, layer=nn.GRU(s.width, s.width // 2, batch_first=True), start=weight(1, 1, s.width // 2)
    ),
    "RNN, tanh": recurrent(nn.RNN),
    "RNN, ReLU, stacked, both ways": recurrent(nn.RNN, nonlinearity="relu", num_layers=2, bidirectional=True),
}

# --- attention -------------------------------------------------------------------------------------------------------


def attention(size: Size, steps: Any, **settings: Any) -> Net:
    return Net(steps, layer=nn.MultiheadAttention(size.width, 2, batch_first=True, **settings))


def attend(m: Any, x: Tensor) -> Tensor:
    return m.layer(x, x, x)[0]


def causal(x: Tensor) -> Tensor:
    return torch.full((x.shape[1], x.shape[1]), float("-inf"), dtype=x.dtype).triu(1)


def padding(x: Tensor) -> Tensor:
    return x[..., 0] > 1


def encoder(size: Size, **settings: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(size.width, 2, 2 * size.width, 0.0, batch_first=True, **settings)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def by_hand(m: Any, x: Tensor) -> Tensor:
    q, k, v = m.layer(x).chunk(3, dim=-1)
    scores = torch.einsum("bqd,bkd->bqk", q, k) / q.shape[-1] ** 0.5
    mask = torch.ones(x.shape[1], x.shape[1]).tril() == 0
    return torch.einsum("bqk,bkd->bqd", scores.masked_fill(mask, float("-inf")).softmax(-1), v)


def decoder(size: Size) -> nn.TransformerDecoderLayer:
    return nn.TransformerDecoderLayer(size.width, 2, 2 * size.width, 0.0, batch_first=True)


def transformer(size: Size) -> Net:
    layer = nn.Transformer(size.width, 2, 1, 1, 2 * size.width, 0.0, batch_first=True)
    return Net(lambda m, x: m.layer(x, x, tgt_mask=causal(x)), layer=layer)


ATTENTION = {
    "MultiheadAttention": lambda s: attention(s, attend),
    "MultiheadAttention, causal mask": lambda s: attention(
        s, lambda m, x: m.layer(x, x, x, attn_mask=causal(x), need_weights=False)[0]
    ),
    "MultiheadAttention, padding mask": lambda s: attention(
        s, lambda m, x: m.layer(x, x, x, key_padding_mask=padding(x))[0].nan_to_num()
    ),
    "MultiheadAttention, own mask of each head": lambda s: attention(
        s, lambda m, x: m.layer(x, x, x, attn_mask=(x @ x.mT).repeat_interleave(2, 0))[0]
    ),
    "MultiheadAttention, other keys": lambda s: attention(s, lambda m, x: m.layer(x[:, :2], x, x)[0]),
    "MultiheadAttention, other widths": lambda s: attention(
        s, lambda m, x: m.layer(x, x[..., :4], x[..., :5])[0], kdim=4, vdim=5
    ),
    "MultiheadAttention, learned keys": lambda s: attention(s, attend, add_bias_kv=True, add_zero_attn=True),
    "attention by hand": lambda s: Net(by_hand, layer=nn.Linear(s.width, 3 * s.width)),
    "TransformerEncoder": encoder,
    "TransformerEncoder, norm first, GELU": lambda s: encoder(s, norm_first=True, activation="gelu"),
    "TransformerEncoder, causal mask": lambda s: Net(lambda m, x: m.layer(x, mask=causal(x)), layer=encoder(s)),
    "TransformerEncoder, padding mask": lambda s: Net(
        lambda m, x: m.layer(x, src_key_padding_mask=padding(x)).nan_to_num(), layer=encoder(s)
    ),
    "TransformerEncoder, frozen, eval": lambda s: Net(
        lambda m, x: m.head(m.layer(x)), layer=encoder(s).requires_grad_(False), head=nn.Linear(s.width, 3)
    ).eval(),
    "TransformerDecoderLayer": lambda s: Net(lambda m, x: m.layer(x, x), layer=decoder(s)),
    "Transformer, target mask": transformer,
}

# --- mixtures of experts ---------------------------------------------------------------------------------------------


def dense_experts(m: Any, x: Tensor) -> Tensor:
    gates = m.gate(x).softmax(-1)
    return sum((gates[..., k : k + 1] * expert(x) for k, expert in enumerate(m.experts)), torch.zeros(()))


def masked_experts(m: Any, x: Tensor) -> Tensor:
    value, chosen = m.gate(x).topk(1, dim=-1)
    parts = (torch.where(chosen == k, expert(x) * value, 0.0) for k, expert in enumerate(m.experts))
    return sum(parts, torch.zeros(()))


def sorted_experts(m: Any, x: Tensor) -> Tensor:
    flat = x.reshape(-1, x.shape[-1])
    chosen = m.gate(flat).argmax(-1)
    order = chosen.argsort()
    by_expert, out = flat[order], torch.zeros_like(flat)
    for k, expert in enumerate(m.experts):
        out = torch.where((chosen[order] == k).unsqueeze(1), expert(by_expert), out)
    return torch.zeros_like(out).index_copy(0, order, out).view(x.shape)


def gathered_experts(m: Any, x: Tensor) -> Tensor:
    value, chosen = m.gate(x).topk(2, dim=-1)
    parts = torch.einsum("btd,btkdo->btko", x, m.weight[chosen])
    return (parts * value.softmax(-1).unsqueeze(-1)).sum(2)


def selected_experts(m: Any, x: Tensor) -> Tensor:
    gates = m.gate(x).softmax(-1)
    return sum((gates[..., k : k + 1] * F.linear(x, m.weight[k]) for k in range(3)), torch.zeros(()))


def routed_by_nonzero(m: Any, x: Tensor) -> Tensor:
    flat = x.reshape(-1, x.shape[-1])
    chosen, out = m.gate(flat).argmax(-1), torch.zeros_like(flat)
    for k, expert in enumerate(m.experts):
        rows = (chosen == k).nonzero().flatten()
        out = out.index_add(0, rows, expert(flat[rows]))
    return out.view(x.shape)


def experts(steps: Any) -> Any:
    return lambda s: Net(
        steps, gate=nn.Linear(s.width, 3), experts=nn.ModuleList(nn.Linear(s.width, s.width) for _ in range(3))
    )


def stacked(steps: Any) -> Any:
    return lambda s: Net(steps, gate=nn.Linear(s.width, 3), weight=weight(3, s.width, s.width))


MIXTURES = {
    "dense": experts(dense_experts),
    "masked": experts(masked_experts),
    "sorted": experts(sorted_experts),
    "stack of weights, gathered": stacked(gathered_experts),
    "stack of weights, one by one": stacked(selected_experts),
}

# --- programs around layers ------------------------------------------------------------------------------------------


def written_by_parts(m: Any, x: Tensor) -> Tensor:
    z = torch.zeros(x.shape, dtype=x.dtype)
    z[:, :2] = x[:, :2]
    z[:, 2:4] += m.layer(x)[:, 2:4]
    return m.layer(z)


def scattered(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros(len(x), 7, x.shape[-1], dtype=x.dtype)
    out.scatter_add_(1, tokens(x).unsqueeze(-1).expand(x.shape), m.layer(x))
    return out


def autocast(dtype: torch.dtype) -> Any:
    def steps(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return m.layer(x).to(x.dtype)

    return steps


def block(size: Size) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(size.width, size.width), nn.LayerNorm(size.width), nn.GELU(), nn.Linear(size.width, 4)
    )


PROGRAMS = {
    "checkpoint": lambda s: Net(lambda m, x: checkpoint(m.layer, x, use_reentrant=False), layer=block(s)),
    "checkpoint, reentrant": lambda s: Net(
        lambda m, x: checkpoint(m.layer, x.requires_grad_(), use_reentrant=True), layer=block(s)
    ),
    "checkpoint_sequential": lambda s: Net(
        lambda m, x: checkpoint_sequential(m.layer, 2, x, use_reentrant=False), layer=block(s)
    ),
    "zeros written by parts": lambda s: Net(written_by_parts, layer=nn.Linear(s.width, s.width)),
    "zeros scattered into": lambda s: Net(scattered, layer=nn.Linear(s.width, s.width)),
    "scan": lambda s: Net(lambda m, x: m.layer(x).cumsum(1).logsumexp(1), layer=nn.Linear(s.width, s.width)),
    "sorted": lambda s: Net(lambda m, x: m.layer(x.sort(dim=1).values), layer=nn.Linear(s.width, s.width)),
    "roll and crop": lambda s: Net(lambda m, x: m.layer(x.roll(1, 1)[:, :4]), layer=nn.Linear(s.width, s.width)),
    "frozen part": lambda s: nn.Sequential(nn.Linear(s.width, s.width).requires_grad_(False), nn.GELU(), block(s)),
    "dropout, eval": lambda s: nn.Sequential(
        nn.Linear(s.width, s.width), nn.Dropout(0.5), nn.Linear(s.width, 4)
    ).eval(),
    "weight penalty": lambda s: of(lambda m, x: x @ m.weight + m.weight.square().sum(), weight=(s.width, s.width)),
}

HALVES = {
    "autocast to bfloat16": lambda s: Net(autocast(torch.bfloat16), layer=block(s)),
    "autocast to float16": lambda s: Net(autocast(torch.float16), layer=block(s)),
}

ONE_BY_ONE = {  # what a vectorised pass cannot run: shapes or branches that depend on values
    "routed by nonzero": experts(routed_by_nonzero),
    "packed sequences": lambda s: Net(packed, layer=nn.GRU(s.width, s.width // 2, batch_first=True)),
}
