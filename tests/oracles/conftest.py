"""A small network problem, and oracles on it."""

import pytest
import torch

import tacita
from tests.devices import CPU, get_device


def squared_error(model, batch):
    x, y = batch
    return (model(x).squeeze(-1) - y).square()


@pytest.fixture
def device():
    """Where the model is; ``device = on_each_device`` in a module replaces it (tests.devices)."""
    return get_device(CPU)


@pytest.fixture
def problem(device):
    """(model, loss_fn, dataset) of a linear regression on 60 rows, float64; the model is on ``device``."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, dtype=torch.float64, generator=generator)
    model = torch.nn.Linear(4, 1).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, dtype=p.dtype, generator=generator))
    return model.to(device), squared_error, (x, x.sum(1))


@pytest.fixture
def make_oracle(problem):
    """``make(**changes)``: an oracle on the problem, with test streams."""

    def make(relation="add_or_remove_one", *, ledger=None, dataset=None, seed=0, kind=None, **changes):
        model, loss_fn, data = problem
        settings = dict(
            ledger=ledger or tacita.Ledger(neighboring_relation=relation, privacy_unit="one row"),
            sampler=tacita.PoissonSampler(sample_rate=0.3, num_records=60),
            clipper=tacita.FlatClipper(max_grad_norm=1.0),
            mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
            planned_queries=10,
            randomness=tacita.Randomness.insecure(seed),
        )
        rows = data if dataset is None else dataset
        return (kind or tacita.ClippedGradientOracle)(model, loss_fn, rows, **{**settings, **changes})

    return make


def trainable(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
