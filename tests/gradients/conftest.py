"""Small networks in float64, their losses and batches, for every test of engines."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F


def classify(model, batch):
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets, reduction="none")


def regress(model, batch):
    inputs, targets = batch
    return (model(inputs).squeeze(-1) - targets) ** 2


class TiedAutoencoder(nn.Module):
    """An embedding that is the output layer too: a parameter used twice, under two names."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens).mean(dim=1))


class Branching(nn.Module):
    """A branch on a value, which vmap refuses, and a layer that some samples never reach."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return torch.stack([self.first(row) if row.sum() > 1.5 else self.second(row) for row in x])


def case(model, loss_fn, *tensors):
    return SimpleNamespace(model=model.double(), loss_fn=loss_fn, data=tensors)


def mlp():
    return case(
        nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)),
        classify,
        torch.randn(6, 5).double(),
        torch.arange(6) % 3,
    )


def convolution():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 25, 3)
    )
    return case(model, classify, torch.randn(4, 2, 5, 5).double(), torch.arange(4) % 3)


def attention():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(9, 4), layer, nn.Flatten(), nn.Linear(12, 2))
    return case(model, classify, torch.randint(0, 9, (5, 3)), torch.arange(5) % 2)


def tied():
    return case(TiedAutoencoder(), classify, torch.randint(0, 7, (5, 3)), torch.arange(5) % 7)


CASES = {"mlp": mlp, "convolution": convolution, "attention": attention, "tied": tied}


@pytest.fixture(params=CASES)
def network(request):
    """A model with its loss and data, in float64."""
    torch.manual_seed(0)
    return CASES[request.param]()


@pytest.fixture
def small():
    """The multilayer perceptron alone."""
    torch.manual_seed(0)
    return mlp()


@pytest.fixture
def branching():
    """A model that vmap cannot serve."""
    torch.manual_seed(0)
    return case(
        Branching(), lambda model, batch: model(batch[0]).square().sum(dim=1), torch.rand(5, 3).double(), torch.zeros(5)
    )


@pytest.fixture
def tied_network():
    """A model with one parameter under two names."""
    torch.manual_seed(0)
    return tied()


@pytest.fixture
def with_dropout():
    """A model that draws at random."""
    torch.manual_seed(0)
    found = mlp()
    found.model.insert(1, nn.Dropout(0.5))
    return found


@pytest.fixture
def engine_of():
    """``engine_of(kind, case)``: the engine of all rows of a case, in chunks of at most ``chunk_size``."""
    from tacita.gradients.chunked import Chunk

    def build(kind, found, *, chunk_size=None, seed=None, params=None):
        rows = len(found.data[0])
        size = chunk_size or rows
        chunks = (
            [
                Chunk(tuple(t[i : i + size] for t in found.data), min(size, rows - i), i // size)
                for i in range(0, rows, size)
            ]
            if rows
            else []
        )
        params = params or {n: p for n, p in found.model.named_parameters() if p.requires_grad}
        return kind(found.model, found.loss_fn, params, chunks, torch.arange(rows), seed=seed)

    return build


@pytest.fixture
def everything():
    """``everything(engine)``: one group of all parameters; ``everything(engine, per_layer=True)``: one each."""

    def build(engine, per_layer=False):
        return {n: (n,) for n in engine.shapes} if per_layer else {"all": tuple(engine.shapes)}

    return build
