"""What a query asks of a device, counted on the simulated one, beside the plain step of the same rows.

The budgets are what is asked for today. They are to go down, and never up. The aim is twice the plain step's launches.
A layer whose norm is taken from Gram matrices misses it by operators alone: to the four launches of its plain step
(the product, and backward two products and a sum) stand two products of the program, two Gram matrices, their copy in
float64, its products and traces, a sum and a norm for the bias, and three operators of weighted sums. The waits are one
for rows that have to be masked, one for rows whose Gram norm is loose, and one for the tag of what is released.
"""

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
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


CELLS = run_path(str(Path(__file__).parents[2] / "benchmarks" / "cells.py"))
OF_CELLS = {
    "a": Budget(plain=16, launches=49, float64=21, waits=2, copies=5),
    "b": Budget(plain=29, launches=78, float64=21, waits=2, copies=5),
    "c": Budget(plain=263, launches=956, float64=65, waits=3, copies=6),
    "d": Budget(plain=328, launches=775, float64=115, waits=3, copies=14),
    "e": Budget(plain=365, launches=1198, float64=124, waits=3, copies=24),
    "f": Budget(plain=329, launches=883, float64=122, waits=3, copies=24),
}


def asked_for(
    model: nn.Module, loss: Callable[..., Tensor], data: tuple[Tensor, Tensor], device: torch.device
) -> Budget:
    from tests.simulated_device import counted

    model, (x, y) = model.to(device), (part.to(device) for part in data)
    oracle = tacita.ClippedGradientOracle(
        model,
        loss,
        data,
        ledger=tacita.Ledger(neighboring_relation="zero_out_one", privacy_unit="one row"),
        sampler=tacita.FullBatchSampler(num_records=len(data[0])),
        clipper=tacita.FlatClipper(max_grad_norm=1.0),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
        planned_queries=3,
    )
    params = dict(model.named_parameters())
    oracle.query(params)  # what is done once only
    with counted() as query:
        oracle.query(params)
    with counted() as plain:
        loss(model, (x, y)).mean().backward()
    return Budget(plain.launches, query.launches, query.float64, query.waits, query.copies)


def assert_within(found: Budget, budget: Budget) -> None:
    over = {name: asked for name, asked, most in zip(found._fields, found, budget, strict=True) if asked > most}
    assert not over, f"asked for more than {budget}"


@pytest.mark.parametrize("make", BUDGETS, ids=lambda make: make.__name__)
def test_a_query_stays_within_its_budget(device, make):
    torch.manual_seed(0)
    assert_within(asked_for(make(), loss_fn, rows(), device), BUDGETS[make])


@pytest.mark.parametrize("name", OF_CELLS)
def test_a_query_of_a_benchmark_stays_within_its_budget(device, name):
    cell = CELLS["CELLS"][name]
    assert_within(asked_for(cell.model(), CELLS["losses"], cell.rows(2), device), OF_CELLS[name])


@pytest.mark.parametrize("most", [1, 40, 2**20])
def test_values_of_a_device_are_tagged_as_those_of_the_cpu(device, most, monkeypatch):
    """However many copies they take: a resumed run may stand on another device."""
    monkeypatch.setattr(gate, "JOINED", most)
    values = [torch.randn(3, 2), torch.zeros(0, 4), torch.tensor(2.5).double(), torch.randn(5).bfloat16()]
    found = gate._bytes_of(value.to(device) for value in values)
    assert [part.tobytes() for part in found] == [part.tobytes() for part in gate._bytes_of(values)]
    assert next(gate._bytes_of(values)).tobytes() == values[0].numpy().tobytes()
