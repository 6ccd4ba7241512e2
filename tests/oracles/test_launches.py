"""What a query asks of a device, counted on the simulated one, beside the plain step of the same rows.

The budgets are what is asked for today. They are to go down, and never up.
"""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import tacita
from tacita.oracles import gate
from tests.devices import SIMULATED, get_device

ROWS = 16


@pytest.fixture
def device():
    return get_device(SIMULATED)


class Attention(nn.Module):
    """A block of a transformer on 6 tokens of 16 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x.view(-1, 6, 16)).mean(1))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 12)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(96, 3),
    )


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(96, 32), nn.Tanh(), nn.Linear(32, 3))


class Budget(NamedTuple):
    """The most of each that a query may ask for; ``plain`` is what a plain step launches."""

    plain: int
    launches: int
    float64: int
    waits: int
    copies: int


BUDGETS = {
    layers: Budget(plain=16, launches=48, float64=21, waits=2, copies=5),
    convolutions: Budget(plain=25, launches=87, float64=21, waits=2, copies=5),
    Attention: Budget(plain=71, launches=178, float64=55, waits=3, copies=5),
}


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def rows() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, 96), torch.randint(0, 3, (ROWS,))


@pytest.mark.parametrize("make", BUDGETS, ids=lambda make: make.__name__)
def test_a_query_stays_within_its_budget(device, make):
    from tests.simulated_device import counted

    torch.manual_seed(0)
    model, data = make().to(device), rows()
    oracle = tacita.ClippedGradientOracle(
        model,
        loss_fn,
        data,
        ledger=tacita.Ledger(neighboring_relation="zero_out_one", privacy_unit="one row"),
        sampler=tacita.FullBatchSampler(num_records=ROWS),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=3,
    )
    params = dict(model.named_parameters())
    oracle.query(params)  # what is done once only
    with counted() as query:
        oracle.query(params)
    x, y = (part.to(device) for part in data)
    with counted() as plain:
        loss_fn(model, (x, y)).mean().backward()
    found = Budget(plain.launches, query.launches, query.float64, query.waits, query.copies)
    over = {name: asked for name, asked, most in zip(found._fields, found, BUDGETS[make], strict=True) if asked > most}
    assert not over, f"asked for more than {BUDGETS[make]}"


@pytest.mark.parametrize("most", [1, 40, 2**20])
def test_values_of_a_device_are_tagged_as_those_of_the_cpu(device, most, monkeypatch):
    """However many copies they take: a resumed run may stand on another device."""
    monkeypatch.setattr(gate, "JOINED", most)
    values = [torch.randn(3, 2), torch.zeros(0, 4), torch.tensor(2.5).double(), torch.randn(5).bfloat16()]
    found = gate._bytes_of(value.to(device) for value in values)
    assert [part.tobytes() for part in found] == [part.tobytes() for part in gate._bytes_of(values)]
    assert next(gate._bytes_of(values)).tobytes() == values[0].numpy().tobytes()
