"""A program that gathers its parameters yields what the program yields, and holds no more of them than it must."""

import copy
import weakref
from functools import partial

import pytest
import torch
from torch import nn

from tacita.distributed import gather_at_use
from tacita.distributed.gather_at_use import GatheringProgram
from tacita.errors import UnsupportedModuleError
from tacita.gradients.chunked import Chunk
from tacita.gradients.functional import trainable
from tacita.gradients.program import ProgramEngine, Programs
from tacita.gradients.program.run import build
from tacita.gradients.rules.registry import RULES

WIDTH, LAYERS, ROWS = 8, 6, 5
BYTES = 4 * (WIDTH * WIDTH + WIDTH)  # of a layer


class Whole:
    """Stands for the other ranks: gives copies of parameters, and counts those that are alive."""

    def __init__(self):
        self.alive = self.most = self.gathered = 0

    def __call__(self, parameter, dtype):
        found = parameter.to(dtype, copy=True)
        self._count(found.nbytes)
        self.most, self.gathered = max(self.most, self.alive), self.gathered + 1
        weakref.finalize(found.untyped_storage(), self._count, -found.nbytes)
        return found

    def _count(self, nbytes):
        self.alive += nbytes


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.sum(1)


class Transformer(nn.Module):
    """Its packed projection is read by views, and a bare parameter by copies."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.place = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x):
        return self.layer((x * self.place).unsqueeze(1).expand(-1, 3, -1)).sum((1, 2))


class Unrolled(nn.Module):
    """A weight that is used again and again, one that is computed from parameters, and a tied one."""

    def __init__(self):
        super().__init__()
        self.step, self.out = nn.LSTM(1, WIDTH, batch_first=True), nn.Linear(WIDTH, WIDTH)
        self.again, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(WIDTH, 1))
        self.again.weight = self.out.weight

    def forward(self, x):
        h = self.out(self.step(x.unsqueeze(2))[0][:, -1])
        return torch.nn.functional.linear(torch.tanh(self.again(h)), self.scale * self.out.weight).sum(1)


MODELS = {kind.__name__: kind for kind in (Tower, Transformer, Unrolled)}


def losses(model, batch):
    return model(batch[0]).square()


def sums(model, gather=None):
    """The sum of the clipped gradients, and their norms."""
    params, batch = trainable(model), (torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0)),)
    kind = partial(GatheringProgram, gather=gather, sharded={k: p.dtype for k, p in enumerate(params.values())})
    builds = None if gather is None else partial(build, kind=kind)
    engine = ProgramEngine(model, losses, params, [Chunk(batch, ROWS, 0)], torch.arange(ROWS))
    engine.programs = Programs(model, losses, batch, builds)
    found = engine.weighted_sums(lambda norms: (1 / norms).clamp(max=1.0), {"all": tuple(params)})
    return found.values[0], found.norms


@pytest.mark.parametrize("held", [0, 2**30])
@pytest.mark.parametrize("name", MODELS)
def test_a_program_yields_the_same_whatever_it_gathers(monkeypatch, name, held):
    monkeypatch.setattr(gather_at_use, "HELD", held)
    torch.manual_seed(0)
    model, gather = MODELS[name](), Whole()
    (own, norms), (found, found_norms) = sums(model), sums(model, gather)
    assert found.keys() == own.keys()
    assert all(torch.equal(found[key], own[key]) for key in own)
    assert torch.equal(found_norms, norms)
    assert gather.gathered >= len(own) - 1  # a bias that adds to nothing is read by nobody
    assert gather.alive == 0


def test_one_layer_is_whole_at_a_time(monkeypatch):
    monkeypatch.setattr(gather_at_use, "HELD", 0)
    gather = Whole()
    sums(Tower(), gather)
    assert gather.gathered == 2 * LAYERS + LAYERS - 2  # weights again on the way back, but for the first and the last
    assert gather.most == BYTES


def test_what_fits_is_gathered_once(monkeypatch):
    monkeypatch.setattr(gather_at_use, "HELD", LAYERS * BYTES)
    gather = Whole()
    sums(Tower(), gather)
    assert gather.gathered == 2 * LAYERS
    assert gather.most <= LAYERS * BYTES


def test_a_rule_that_is_not_ours_is_refused(monkeypatch):
    """On a whole model it is compared with the loop first, and shards are never whole."""
    linear = torch.nn.functional.linear
    own = copy.copy(RULES[linear])
    object.__setattr__(own, "__class__", type("Own", (type(own),), {}))
    monkeypatch.setitem(RULES, linear, own)
    sums(Tower())
    with pytest.raises(
        UnsupportedModuleError, match="layer rules that are not tacita's, here for linear, are compared"
    ):
        sums(Tower(), Whole())
