"""A device without float64 (Apple's): it runs the model, and the CPU bounds, adds up, pays and adds the noise."""

from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import tacita
from tacita.error_feedback import BoundedFeedback, ReleasedFeedback
from tests.devices import CPU, SIMULATED, get_device
from tests.oracles.conftest import trainable
from tests.second_order.test_hessian import hessian

ROWS = 40
FLAT = tacita.FlatClipper(max_grad_norm=1.0)
FEEDBACK = dict(max_feedback_norm=0.5, max_residual_norm=2.0)
BY = {
    "flat": dict(clipper=FLAT),
    "per layer": dict(clipper=tacita.PerLayerClipper(max_grad_norm={"": 0.5, "head": 0.7})),
    "hardened": dict(clipper=FLAT, mechanism=tacita.RoundedGaussian(noise_multiplier=1.0)),
    "bounded": dict(clipper=FLAT, feedback=BoundedFeedback(**FEEDBACK)),
    "released": dict(clipper=FLAT, feedback=ReleasedFeedback(**FEEDBACK)),
}


@pytest.fixture
def lacking():
    """The simulated device, which has no float64 within the test."""
    device = get_device(SIMULATED)
    with import_module("tests.simulated_device").without_float64():
        yield device


class Network(nn.Module):
    """Rules of all kinds: tokens, convolutions, a scale, a weight that is computed from others, a bare parameter."""

    def __init__(self):
        super().__init__()
        self.words, self.mix, self.scale = nn.Embedding(7, 6), nn.Conv1d(6, 6, 3), nn.LayerNorm(6)
        self.head, self.shift = weight_norm(nn.Linear(6, 1)), nn.Parameter(torch.ones(6))

    def forward(self, tokens):
        return self.head(self.scale(self.mix(self.words(tokens).mT).mean(2)) + self.shift).squeeze(1)


def make_oracle(device, by, method, seed=0):
    torch.manual_seed(0)
    model, tokens = Network().to(device), torch.randint(0, 7, (ROWS, 9))
    settings = dict(mechanism=tacita.GaussianMechanism(noise_multiplier=1.0)) | BY[by]
    kind = tacita.ErrorFeedbackOracle if "feedback" in settings else tacita.ClippedGradientOracle
    return kind(
        model,
        lambda model, batch: (model(batch[0]) - batch[1]).square(),
        (tokens, tokens.float().mean(1)),
        ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row"),
        sampler=tacita.PoissonSampler(sample_rate=0.3, num_records=ROWS),
        planned_queries=6,
        method=method,
        max_physical_batch_size=5,
        randomness=tacita.Randomness.insecure(seed),
        **settings,
    )


def train(oracle, queries):
    optimizer = torch.optim.SGD(oracle.source.model.parameters(), lr=0.1)
    for _ in range(queries):
        oracle.backward()
        optimizer.step()
    return [p.detach().cpu() for p in oracle.source.model.parameters()]


@pytest.mark.parametrize("method", ["program", "loop"])
@pytest.mark.parametrize("by", [*BY])
def test_releases_and_steps_are_those_of_the_cpu(lacking, by, method):
    oracle = make_oracle(lacking, by, method)
    found, wanted = train(oracle, 3), train(make_oracle(torch.device(CPU), by, method), 3)
    assert {p.grad.device.type for p in oracle.source.model.parameters()} == {SIMULATED}
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("by", [*BY])
def test_resumed_is_uninterrupted_bit_for_bit(lacking, by):
    whole, first = make_oracle(lacking, by, "program"), make_oracle(lacking, by, "program")
    wanted = train(whole, 4)
    train(first, 2)
    state, weights = first.state_dict(), first.source.model.state_dict()
    rest = make_oracle(lacking, by, "program")
    rest.source.model.load_state_dict(weights)
    rest.load_state_dict({**state, "session": rest.session.id, "identity": rest.gate.identity})
    assert all(map(torch.equal, wanted, train(rest, 2)))


@pytest.mark.parametrize("value", [0.0, 1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("method", ["program", "loop"])
def test_a_hostile_row_adds_at_most_the_threshold(lacking, method, value):
    model = nn.Linear(4, 1).to(lacking)
    rows = torch.linspace(-1, 1, 20).reshape(5, 4)
    hostile = torch.cat([rows, torch.full((1, 4), value)])

    def total(data):
        batch = (data,)
        found = tacita.clipped_gradient_sum(model, lambda m, b: m(b[0]).squeeze(1).square(), batch, FLAT, method=method)
        return torch.cat([x.flatten() for x in found.sum.values()])

    moved = (total(hostile).double() - total(rows).double()).norm()
    assert moved <= 1.0 + 1e-6


def test_fit_with_a_public_loss(lacking):
    x = torch.linspace(-1, 1, 4 * ROWS).reshape(ROWS, 4)
    model = nn.Linear(4, 1).to(lacking)
    run = tacita.fit(
        model,
        lambda model, batch: model(batch[0]).squeeze(1).square(),
        (x,),
        target_epsilon=3.0,
        target_delta=1e-5,
        epochs=1,
        num_records=ROWS,
        expected_batch_size=10,
        progress=False,
    )
    assert run.model.weight.device.type == SIMULATED


def test_what_is_queried_at_a_point_comes_back_beside_it(lacking):
    oracle = make_oracle(lacking, "hardened", "loop")
    release = oracle.query(trainable(oracle.source.model))
    assert {g.device.type for g in release.gradient.values()} == {SIMULATED}
    assert {x.device.type for block in release.released.values() for x in block.values()} == {CPU}


@pytest.mark.parametrize("way", ["program", "loop"])
def test_products_with_the_hessian_are_those_of_the_cpu(lacking, way):
    found, wanted = (hessian("mlp", way=way, device=at, dtype=torch.float32) for at in (lacking, torch.device(CPU)))
    torch.testing.assert_close(found.dense(), wanted.dense(), rtol=1e-4, atol=1e-5)
