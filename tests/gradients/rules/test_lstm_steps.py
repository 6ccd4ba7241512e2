"""An LSTM whose steps are one node of the graph gives the loop's gradients, wherever they come from and go to."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tacita.errors import UnsupportedModuleError
from tacita.gradients import NetworkSource
from tacita.gradients.rules import lstm_steps

ROWS, STEPS, WIDTH, HIDDEN = 5, 6, 3, 4


class Net(nn.Module):
    """An LSTM under a reading of its result of the case's own."""

    def __init__(self, read, start=None, **settings):
        super().__init__()
        self.layer, self.read = nn.LSTM(WIDTH, HIDDEN, **{"batch_first": True, **settings}), read
        self.start = start

    def forward(self, x):
        return self.read(*self.layer(x, *(() if self.start is None else (self.start(self, x),))))


class Learned(Net):
    """Its first state is a parameter, or a parameter and the record."""

    def __init__(self, start):
        super().__init__(last, start)
        self.first = nn.Parameter(torch.randn(1, 1, HIDDEN))


def last(out, state):
    return state[0].sum(dim=(0, 2)) * out[:, -1].sum(dim=1) + out.square().mean(dim=(1, 2))


def memory(out, state):
    return state[1].square().sum(dim=(0, 2))


def in_place(out, state):
    return out.mul_(2).square().mean(dim=(1, 2))


def frozen(model, *names):
    for name in names:
        getattr(model.layer, name).requires_grad_(False)
    return model


def normalised(name):
    model = Net(last)
    parametrizations.weight_norm(model.layer, name)
    return model


def start_of_parameter(model, x):
    return model.first.expand(1, len(x), HIDDEN), 2 * model.first.expand(1, len(x), HIDDEN)


def start_of_record(model, x):
    first = x.mean(dim=1).sum(dim=1).view(1, -1, 1) * model.first
    return first.sin(), first.expand(1, len(x), HIDDEN)


CASES = {
    "last output": lambda: Net(last),
    "last memory alone": lambda: Net(memory),
    "output written in place": lambda: Net(in_place),
    "both ways, two layers": lambda: Net(
        lambda out, _: out.square().mean(dim=(1, 2)), bidirectional=True, num_layers=2
    ),
    "no bias": lambda: Net(last, bias=False),
    "state weight frozen": lambda: frozen(Net(last), "weight_hh_l0"),
    "state frozen": lambda: frozen(Net(last), "weight_hh_l0", "bias_hh_l0"),
    "input frozen": lambda: frozen(Net(last), "weight_ih_l0", "bias_ih_l0"),
    "state weight alone": lambda: frozen(Net(last), "weight_ih_l0", "bias_ih_l0", "bias_hh_l0"),
    "state weight derived": lambda: normalised("weight_hh_l0"),
    "learned start": lambda: Learned(start_of_parameter),
    "start of the record": lambda: Learned(start_of_record),
    "several rows a record": lambda: Net(lambda out, _: out.square().mean(dim=(1, 2))),
}


def losses(model, batch):
    x = batch[0]
    if x.ndim == 4:  # several rows a record
        return model(x.flatten(0, 1)).view(x.shape[:2]).mean(dim=1)
    return model(x)


def sums(model, data, method):
    source = NetworkSource(model, losses, (data,), method=method)
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    engine = source.engine(params, torch.arange(len(data)).numpy(), seed=1)
    engine.rounding_margin = False
    return source.method, engine.weighted_sums(torch.ones_like, {name: (name,) for name in params})


@pytest.mark.parametrize("name", CASES)
def test_the_gradients_are_those_of_the_loop(name):
    model = CASES[name]().double()
    lead = (ROWS, 2) if name == "several rows a record" else (ROWS,)
    data = torch.randn(*lead, STEPS, WIDTH, dtype=torch.float64)
    (method, found), (_, expected) = (sums(model, data, method) for method in ("auto", "loop"))
    assert method == "program"
    torch.testing.assert_close(found.norms, expected.norms, rtol=1e-10, atol=1e-12)
    for key, value in expected.values[0].items():
        torch.testing.assert_close(found.values[0][key], value, rtol=1e-10, atol=1e-12)


def test_a_record_is_alone_among_hostile_companions():
    model = Net(last)
    data = torch.randn(ROWS, STEPS, WIDTH)
    hostile = data.clone()
    hostile[1], hostile[2] = 1e20, float("nan")

    def of_first(rows):
        source = NetworkSource(model, losses, (rows,))
        engine = source.engine(dict(model.named_parameters()), torch.arange(len(rows)).numpy(), seed=1)
        return engine.weighted_sums(lambda n: torch.zeros_like(n).index_fill_(0, torch.tensor([0]), 1.0),
                                    {"all": tuple(source.shapes)})  # fmt: skip

    alone, among = of_first(data[:1]), of_first(hostile)
    rounding = dict(rtol=1e-5, atol=1e-6)  # computed in float32, and one row is another kernel than three
    torch.testing.assert_close(among.norms[:1], alone.norms, **rounding)
    for name, value in alone.values[0].items():
        torch.testing.assert_close(among.values[0][name], value, **rounding)


def test_a_loss_that_differentiates_through_the_steps_is_served_by_the_loop():
    def penalised(model, batch):
        x = batch[0].requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return slope.square().mean(dim=(1, 2))

    data = torch.randn(ROWS, STEPS, WIDTH)
    with pytest.raises(UnsupportedModuleError, match='or pass method="loop"'):
        NetworkSource(Net(last), penalised, (data,))
    assert NetworkSource(Net(last), penalised, (data,), method="loop").method == "loop"


def test_what_the_steps_do_not_serve():
    """A weight of each record's own, another dtype, autocast, and no steps at all go step by step."""
    own = torch.zeros(4 * HIDDEN, HIDDEN)
    batch = SimpleNamespace(differs=lambda tensor: tensor is own)
    given, state = torch.zeros(STEPS, 4 * HIDDEN), (torch.zeros(HIDDEN), torch.zeros(HIDDEN))
    shared, bias = torch.zeros_like(own), torch.zeros(4 * HIDDEN)
    assert lstm_steps.serves(batch, given, state, (shared, bias))
    assert lstm_steps.serves(batch, given, state, (shared, None))
    assert not lstm_steps.serves(batch, given, state, (own, bias))
    assert not lstm_steps.serves(batch, given, state, (shared.double(), bias))
    assert not lstm_steps.serves(batch, given, (state[0], state[1].double()), (shared, bias))
    assert not lstm_steps.serves(batch, given[:0], state, (shared, bias))
    with torch.autocast("cpu"):
        assert not lstm_steps.serves(batch, given, state, (shared, bias))


def test_input_and_product_get_gradients_in_memory_of_their_own():
    """Their rules may write what they are given."""
    whole, product = (torch.randn(ROWS, STEPS, 4 * HIDDEN, requires_grad=True) for _ in range(2))
    first = [torch.zeros(ROWS, HIDDEN) for _ in range(2)]
    kept = lstm_steps._forward(whole.detach(), first, torch.randn(4 * HIDDEN, HIDDEN), None)
    outputs, _ = lstm_steps._Steps.apply(whole, product, *first, kept)
    one, other = torch.autograd.grad(outputs.square().sum(), [whole, product])
    assert torch.equal(one, other)
    assert one.abs().max() > 0
    assert one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()
