"""Norms taken while a program runs equal those taken after it, and nothing that they replace stays in memory."""

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tacita.clipping import FlatClipper, PerLayerClipper
from tacita.errors import UnsupportedModuleError
from tacita.gradients import LoopEngine, NetworkSource, ProgramEngine
from tacita.gradients.chunked import Chunk
from tacita.gradients.functional import trainable
from tacita.gradients.program import engine as engine_of_programs
from tacita.gradients.rules import registry
from tacita.gradients.rules.linear import LinearRule


class Net(nn.Module):
    """Convolutions and normalisations, by the steps of a test's own."""

    def __init__(self, steps):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.other, self.head = nn.GroupNorm(2, 4), nn.LayerNorm(5), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(5))
        self.steps = steps

    def forward(self, x):
        return self.head(self.steps(self, x).tanh().mean(dim=(2, 3)))


def dropped(m, x):
    m.norm(m.second(m.first(x)))
    return m.norm(m.first(x))


STEPS = {
    "chain": lambda m, x: m.other(m.second(m.norm(m.first(x)).relu())),
    "residual": lambda m, x: m.first(x) + m.other(m.second(m.norm(m.first(x)).relu_())),
    "one_use_of_two_dropped": dropped,
    "layer_without_effect": lambda m, x: m.norm(m.first(x)) + 0 * m.second(m.first(x)).detach(),
    "input_that_needs_no_gradient": lambda m, x: m.other(x).mean(1, keepdim=True) + m.norm(m.first(x)),
    "used_bare_too": lambda m, x: m.other(m.first(x)) * m.other.weight,
    "bare_alone": lambda m, x: m.scale * m.norm(m.first(x)),
    "derived_weight": lambda m, x: F.layer_norm(m.first(x), (5,), m.other.weight * 2, m.scale[:5]),
    "output_changed_in_place": lambda m, x: m.norm(m.first(x)).mul_(2.0).sigmoid_(),
    "no_watched_call_upstream": lambda m, x: m.second(x.repeat(1, 2, 1, 1)),
}


def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def engine(kind, steps, dtype=torch.float64, height=6):
    torch.manual_seed(2)
    model = Net(steps).to(dtype)
    batch = torch.randn(6, 2, 5, 5, dtype=dtype), torch.arange(6) % 3
    parts = zip(*(t.split(height) for t in batch), strict=True)
    chunks = [Chunk(part, len(part[0]), k) for k, part in enumerate(parts)]
    return kind(model, losses, trainable(model), chunks, torch.arange(6), seed=1)


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(engine_of_programs, "WATCHED_FROM", 0)


@pytest.fixture
def taken(monkeypatch):
    """The uses whose norms were taken while the program ran."""
    left, plain = [], engine_of_programs.norms_taken

    def noted(named, **settings):
        found = plain(named, **settings)
        left.extend(one for one in found if one.squares)
        return found

    monkeypatch.setattr(engine_of_programs, "norms_taken", noted)
    return left


def outcome(made, clipper):
    groups = clipper.groups(made.shapes)
    return made.weighted_sums(lambda norms: (clipper.weights(norms), torch.ones_like(norms)), groups)


@pytest.mark.parametrize("clipper", [FlatClipper(max_grad_norm=0.3), PerLayerClipper(max_grad_norm=0.3)], ids=repr)
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_norms_and_sums_equal_the_loops(watched, steps, clipper):
    mine = engine(ProgramEngine, steps, height=4)
    mine.rounding_margin = False
    found, expected = outcome(mine, clipper), outcome(engine(LoopEngine, steps), clipper)
    torch.testing.assert_close(found.norms, expected.norms, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(mine.norms(clipper.groups(mine.shapes)), expected.norms, rtol=1e-10, atol=1e-12)
    for a, b in zip(found.values, expected.values, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_no_bit_depends_on_when_norms_are_taken(monkeypatch, taken, steps):
    clipper = FlatClipper(max_grad_norm=0.3)
    late = outcome(engine(ProgramEngine, steps, torch.float32), clipper)
    assert not taken
    monkeypatch.setattr(engine_of_programs, "WATCHED_FROM", 0)
    early = outcome(engine(ProgramEngine, steps, torch.float32), clipper)
    met_twice = steps in (STEPS["one_use_of_two_dropped"], STEPS["layer_without_effect"])  # each that is watched
    assert bool(taken) != met_twice
    assert torch.equal(early.norms, late.norms)
    for a, b in zip(early.values, late.values, strict=True):
        assert list(a) == list(b)
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_autocast_around_a_query_reaches_no_norm(monkeypatch, taken):
    """Norms are taken in full precision during the backward pass, too, which runs in the caller's autocast."""
    groups = {"all": ("first.weight", "second.weight", "other.weight")}
    with torch.autocast("cpu", torch.bfloat16):
        late = engine(ProgramEngine, STEPS["chain"], torch.float32).norms(groups)
        monkeypatch.setattr(engine_of_programs, "WATCHED_FROM", 0)
        early = engine(ProgramEngine, STEPS["chain"], torch.float32).norms(groups)
    assert taken
    assert torch.equal(early, late)


def test_some_parameters_alone(watched):
    """Of a call whose weight alone is asked for, nothing of the bias is looked at."""
    groups = {"some": ("first.weight", "norm.bias")}
    found = engine(ProgramEngine, STEPS["chain"]).weighted_sums(torch.ones_like, groups)
    expected = engine(LoopEngine, STEPS["chain"]).weighted_sums(torch.ones_like, groups)
    torch.testing.assert_close(found.values[0], expected.values[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.norms, expected.norms, rtol=1e-6, atol=0)


def test_a_call_waits_for_a_weight_derived_from_its_parameter(watched, taken):
    def steps(m, x):
        return m.other(m.first(x)) + F.layer_norm(m.second(m.norm(x.repeat(1, 2, 1, 1))), (5,), m.other.weight * 2)

    engine(ProgramEngine, steps).norms({"all": ("first.weight", "other.weight", "other.bias")})
    left = {name for one in taken for name in one.parameters.values()}
    assert "first.weight" in left
    assert "other.weight" not in left


def test_calls_that_meet_in_a_parameter_wait_for_each_other(watched, taken):
    engine(ProgramEngine, STEPS["residual"]).norms({"all": ("first.weight", "other.weight", "second.bias")})
    left = {name for one in taken for name in one.parameters.values()}
    assert left == {"other.weight", "second.bias"}  # first is used twice


def test_a_hostile_row_leaves_the_others_alone(watched):
    made = engine(ProgramEngine, STEPS["chain"], torch.float32)
    (chunk,) = made._chunks
    clipper = FlatClipper(max_grad_norm=0.5)
    rest = [0, 1, 3, 4, 5]
    x, y = chunk.batch
    made._chunks = [Chunk((x[rest], y[rest]), 5, 0)]
    expected = outcome(made, clipper).values[0]
    for hostile in (torch.nan, torch.inf, 1e30):
        bad = x.clone()
        bad[2] = hostile
        made._chunks = [Chunk((bad, y), 6, 0)]
        found = outcome(made, clipper)
        assert found.norms[2, 0] > 0.5 or not found.norms[2, 0].isfinite()
        moved = torch.stack([(found.values[0][n] - expected[n]).norm() for n in expected]).norm()
        assert moved <= 0.5 * (1 + 1e-5)


def test_an_input_that_is_modified_afterwards_is_refused():
    def modified(m, x):
        x = x * 1.0
        y = m.norm(m.first(x))
        x.mul_(0.5)
        return y

    with pytest.raises(UnsupportedModuleError, match=r"'first\.weight'.*in place"):
        engine(ProgramEngine, modified).norms({"all": ("first.weight",)})


def test_a_derived_weight_that_is_modified_afterwards_is_refused():
    """Its gradient would be pulled back through what was done to it later."""

    def modified(m, x):
        weight = m.other.weight * 2
        y = F.linear(x, weight.unsqueeze(0))
        weight.mul_(3.0)
        return m.norm(y.repeat(1, 2, 1, 1))

    with pytest.raises(UnsupportedModuleError, match=r"'other\.weight'.*in place"):
        engine(ProgramEngine, modified).norms({"all": ("other.weight",)})


def test_a_pass_leaves_nothing_behind(watched):
    """Nothing waits for the garbage collector: input and gradients are gone when the engine has answered."""
    made = engine(ProgramEngine, dropped)
    gc.collect()
    gc.disable()
    try:
        made.norms({"all": tuple(made.shapes)})
        before = sum(type(one) is torch.Tensor for one in gc.get_objects())
        for _ in range(3):
            made.norms({"all": tuple(made.shapes)})
        assert sum(type(one) is torch.Tensor for one in gc.get_objects()) == before
    finally:
        gc.enable()


class InPlace(torch.autograd.Function):
    """Its backward writes the gradient that it is given, which other calls may have got, too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad.mul_(1000.0)


def test_a_backward_that_writes_its_gradient_is_refused():
    """Other calls may have been given the same."""
    model, data = nn.Linear(6, 1), (torch.randn(5, 6), torch.randn(5))
    with pytest.raises(UnsupportedModuleError, match="writes the gradient that it is"):
        NetworkSource(model, lambda m, b: InPlace.apply(m(b[0])).square().sum(1) * b[1], data, method="auto")


@pytest.mark.parametrize("inputs", [3, (2, 3)], ids=["one position", "positions"])
def test_norms_are_taken_once(watched, monkeypatch, inputs):
    """Where the sums read input and output gradient again, norms taken during the backward pass would be lost."""
    taken, plain = [], LinearRule.squared_norms

    def squared_norms(self, use):
        taken.append(use.names)
        return plain(self, use)

    monkeypatch.setattr(LinearRule, "squared_norms", squared_norms)
    shape = (inputs,) if isinstance(inputs, int) else inputs
    model, x = nn.Linear(3, 1, bias=False), torch.randn(6, *shape)
    made = ProgramEngine(
        model, lambda m, b: m(b[0]).flatten(1).sum(1), trainable(model), [Chunk((x,), 6, 0)], torch.arange(6), seed=1
    )
    outcome(made, FlatClipper(max_grad_norm=0.3))
    assert taken == [("weight",)]


@pytest.mark.parametrize("ours", [False, True], ids=["a user's", "tacita's"])
def test_a_rule_of_the_users_own_waits_for_the_end_of_the_pass(watched, taken, monkeypatch, ours):
    """Its code may write what the rest of the program reads. The same rule of tacita's takes norms on the way."""

    class Own(LinearRule):
        pass

    Own.__module__ = LinearRule.__module__ if ours else __name__
    monkeypatch.setitem(registry.RULES, F.linear, Own())
    model, batch = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), (torch.randn(5, 20, 4),)
    made = ProgramEngine(
        model, lambda m, b: m(b[0]).square().sum((1, 2)), trainable(model), [Chunk(batch, 5, 0)], torch.arange(5)
    )
    made.norms({"all": tuple(made.shapes)})
    assert bool(taken) == ours
