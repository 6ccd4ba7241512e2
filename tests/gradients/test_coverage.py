"""What people build networks of: the ghost engine serves it, and agrees with the loop in float64."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tacita.gradients import NetworkSource

ROWS, T, D = 5, 6, 8
MASK = torch.triu(torch.full((T, T), float("-inf"), dtype=torch.float64), 1)


class Net(nn.Module):
    """Modules under a forward pass of the case's own."""

    def __init__(self, steps, **modules):
        super().__init__()
        self.steps = steps
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x):
        return self.steps(self, x)


def loss(model, batch):
    return model(batch[0]).flatten(1).square().mean(dim=1) - batch[1]


def first(m, x):
    return m.layer(x)[0]


def attend(**settings):
    def steps(m, x):
        return m.layer(x, x, x, **settings)[0]

    return steps


def padded(m, x):
    return m.layer(x, x, x, key_padding_mask=x[..., 0] > 1)[0].nan_to_num()


def all_experts(m, x):
    gates = m.gate(x).softmax(-1)
    return sum(gates[..., k : k + 1] * expert(x) for k, expert in enumerate(m.experts))


def masked_experts(m, x):
    value, chosen = m.gate(x).topk(1, dim=-1)
    return sum(torch.where(chosen == k, expert(x) * value, 0.0) for k, expert in enumerate(m.experts))


def stacked_experts(m, x):
    return torch.einsum("btd,edo,bte->bto", x, m.weight, m.gate(x).softmax(-1))


def written_by_parts(m, x):
    z = x.new_zeros(x.shape)
    z[:, :2] = x[:, :2]
    return m.layer(z)


def autocast(m, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return m.layer(x).double()


def indices(x):
    return (2 * x[..., 0].abs()).long().clamp(max=6)


def attention(**settings):
    return nn.MultiheadAttention(D, 2, batch_first=True, **settings)


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 16, 0.0, batch_first=True), 2)


def experts():
    return {"gate": nn.Linear(D, 3), "experts": nn.ModuleList(nn.Linear(D, D) for _ in range(3))}


NETWORKS = {
    "lstm": lambda: Net(first, layer=nn.LSTM(D, 4, batch_first=True)),
    "lstm_deep_both_ways": lambda: Net(first, layer=nn.LSTM(D, 4, 2, bidirectional=True, batch_first=True)),
    "lstm_projected": lambda: Net(first, layer=nn.LSTM(D, 4, proj_size=3, batch_first=True)),
    "lstm_time_first": lambda: Net(lambda m, x: m.layer(x.transpose(0, 1))[0].transpose(0, 1), layer=nn.LSTM(D, 4)),
    "lstm_cell": lambda: Net(lambda m, x: m.layer(x[:, 0])[0], layer=nn.LSTMCell(D, 4)),
    "gru": lambda: Net(first, layer=nn.GRU(D, 4, 2, bidirectional=True, batch_first=True)),
    "rnn": lambda: Net(first, layer=nn.RNN(D, 4, batch_first=True)),
    "attention": lambda: Net(attend(), layer=attention()),
    "attention_masked": lambda: Net(attend(attn_mask=MASK), layer=attention()),
    "attention_padded": lambda: Net(padded, layer=attention()),
    "attention_of_other_keys": lambda: Net(lambda m, x: m.layer(x[:, :2], x, x)[0], layer=attention()),
    "attention_of_other_widths": lambda: Net(
        lambda m, x: m.layer(x, x[..., :4], x[..., :5])[0], layer=attention(kdim=4, vdim=5)
    ),
    "encoder": encoder,
    "encoder_masked": lambda: Net(lambda m, x: m.layer(x, mask=MASK, is_causal=True), layer=encoder()),
    "encoder_padded": lambda: Net(
        lambda m, x: m.layer(x, src_key_padding_mask=x[..., 0] > 1).nan_to_num(), layer=encoder()
    ),
    "decoder": lambda: Net(
        lambda m, x: m.layer(x, x), layer=nn.TransformerDecoderLayer(D, 2, 16, 0.0, batch_first=True)
    ),
    "embedding_bag": lambda: Net(lambda m, x: m.layer(indices(x)), layer=nn.EmbeddingBag(7, 4)),
    "instance_norm": lambda: nn.InstanceNorm1d(T, affine=True),
    "batch_norm_frozen": lambda: nn.Sequential(nn.BatchNorm1d(T), nn.Linear(D, 3)).eval(),
    "checkpoint": lambda: Net(
        lambda m, x: checkpoint(m.layer, x, use_reentrant=False), layer=nn.Sequential(nn.Linear(D, 4), nn.Tanh())
    ),
    "experts": lambda: Net(all_experts, **experts()),
    "experts_masked": lambda: Net(masked_experts, **experts()),
    "experts_stacked": lambda: Net(stacked_experts, gate=nn.Linear(D, 3), weight=nn.Parameter(torch.randn(3, D, 4))),
    "bilinear": lambda: Net(lambda m, x: m.layer(x, x), layer=nn.Bilinear(D, D, 3)),
    "written_by_parts": lambda: Net(written_by_parts, layer=nn.Linear(D, 2)),
    "weight_norm": lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(D, 2)),
    "spectral_norm": lambda: torch.nn.utils.parametrizations.spectral_norm(nn.Linear(D, 2)).eval(),
    "prelu": lambda: nn.PReLU(T),
    "scalar": lambda: Net(
        lambda m, x: m.scale * m.layer(x), scale=nn.Parameter(torch.tensor(2.0)), layer=nn.Linear(D, 2)
    ),
    "images": lambda: nn.Sequential(
        nn.Unflatten(1, (1, T)), nn.Conv2d(1, 4, 3, padding=1), nn.PixelShuffle(2), nn.LocalResponseNorm(1),
        nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2), nn.Upsample(scale_factor=2),
    ),
    "scan": lambda: Net(lambda m, x: m.layer(x).cumsum(1).logsumexp(1), layer=nn.Linear(D, 4)),
    "dropout_off": lambda: nn.Sequential(nn.Linear(D, 4), nn.Dropout(0.0), nn.Softplus(), nn.Linear(4, 2)),
    "same_module_twice": lambda: Net(lambda m, x: m.b(m.a(x)), a=(one := nn.Linear(D, D)), b=one),
}  # fmt: skip


def sums(model, method, dtype=torch.float64):
    torch.manual_seed(1)
    data = torch.randn(ROWS, T, D, dtype=dtype), torch.randn(ROWS, dtype=dtype)
    source = NetworkSource(model, loss, data, method=method)
    engine = source.engine(dict(model.named_parameters()), torch.arange(ROWS).numpy(), seed=1)
    engine.rounding_margin = False  # type: ignore[attr-defined] # of the ghost engine
    return source.method, engine.weighted_sums(torch.ones_like, {name: (name,) for name in source.shapes})


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_the_ghost_engine_serves_it_and_equals_the_loop(make):
    torch.manual_seed(0)
    model = make().double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    method, found = sums(model, "auto")
    assert method == "ghost"
    _, expected = sums(model, "loop")
    torch.testing.assert_close(found.norms, expected.norms, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.values[0], dict(expected.values[0]), rtol=1e-10, atol=1e-10)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(type(p) is nn.Parameter for p in model.parameters())


def test_autocast_is_served_in_float32():
    torch.manual_seed(0)
    model = Net(autocast, layer=nn.Linear(D, 2))
    (method, found), (_, expected) = (sums(model, method, torch.float32) for method in ("auto", "loop"))
    assert method == "ghost"
    assert all(total.dtype == torch.float32 for total in found.values[0].values())
    torch.testing.assert_close(found.values[0], dict(expected.values[0]), rtol=0.02, atol=0.02)
