"""Clipped sums on a grid: sensitivity in rationals over neighbours, the rounding of capped sums, what is refused."""

import math
from fractions import Fraction

import pytest
import torch
from torch import nn

from tacita.accounting import GaussianSumEvent, HardenedEvent, PoissonLaw
from tacita.clipping import FlatClipper, PerLayerClipper
from tacita.estimators import ClippedSum
from tacita.gradients import GivenEngine, NetworkSource
from tacita.gradients.program.capped_sums import MOST_POSITIONS, MOST_USES, capped_sums, summation_error
from tacita.hardened import CappedSum, GridSum
from tacita.hardened.grid_sums import grid_step
from tacita.sampling import PoissonSampler

CLIPPER = FlatClipper(max_grad_norm=0.7)
SHAPES = {"w": torch.Size([3, 2]), "b": torch.Size([2])}


def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def network(rows=30, method="program", model=None, x=None, **settings):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(rows, 6) if x is None else x
    return NetworkSource(model, loss_fn, (x, torch.randint(3, (len(x),))), method=method, **settings)


def engine_of(source, indices=None):
    indices = torch.arange(source.num_rows) if indices is None else torch.as_tensor(indices)
    return source.engine(dict(source.model.named_parameters()), indices.numpy())


def flat(values):
    return torch.cat([x.flatten() for block in values.values() for x in block.values()])


# -- the grid


@pytest.mark.parametrize("size", [1, 100, 10**6, 2**36])
@pytest.mark.parametrize("bound", [1e-6, 0.7, 1.0, 300.0])
def test_the_step_is_the_stated_power_of_two(bound, size):
    step = grid_step(bound, size)
    assert math.log2(step) == round(math.log2(step))
    assert Fraction(step) ** 2 * size <= (Fraction(bound) / 4096) ** 2 * (1 + Fraction(1, 10**12))
    assert (2 * step) ** 2 * size > (bound / 4096) ** 2 * (1 - 1e-12)
    assert bound / step <= 2.0**32


def test_a_block_that_no_integer_holds_is_refused():
    with pytest.raises(ValueError, match=r"no grid holds .* one group a layer"):
        grid_step(1.0, 2**42)
    with pytest.raises(ValueError, match="no grid holds"):
        grid_step(1e-280, 10)


def test_batches_that_could_overflow_are_refused_when_built():
    GridSum(CLIPPER).check_batch(1e9, SHAPES)
    with pytest.raises(ValueError, match="expected_batch_size must be at most"):
        GridSum(CLIPPER).check_batch(1e12, SHAPES)
    with pytest.raises(ValueError, match="at most half of max_records"):
        CappedSum(CLIPPER).check_batch(40_000, SHAPES)
    largest, large = CappedSum(CLIPPER, max_records=3_500_000, slack=1.0), {"w": torch.Size([2**37])}
    largest.check_batch(1.4e6, large)  # 2^20.5 records fill the grid of so many coordinates
    with pytest.raises(ValueError, match=r"to stay within 2\^52 steps"):
        largest.check_batch(1.7e6, large)


# -- GridSum


@pytest.mark.parametrize("clipper", [CLIPPER, PerLayerClipper(max_grad_norm=0.7)])
def test_it_is_the_clipped_sum_within_a_step_a_record(clipper):
    engine = engine_of(network(method="loop"))
    found, state = GridSum(clipper)(engine, None)
    plain, _ = ClippedSum(clipper)(engine, None)
    assert state is None
    steps = GridSum(clipper).steps(engine.shapes)
    for block, tensors in plain.items():
        for name, x in tensors.items():
            assert found[block][name].dtype == torch.float64
            assert (found[block][name] - x).abs().max() <= 30 * steps[block] + 1e-5
            whole = found[block][name] / steps[block]
            assert torch.equal(whole, whole.round())


@pytest.mark.parametrize("row", [[3e3] * 4, [0.35, 0.35, 0.35, 0.35], [1e-30, 0, 1e30, 0], [torch.nan, 1, 1, 1]])
def test_neighbours_differ_by_the_sensitivity_at_most_exactly(row):
    generator = torch.Generator().manual_seed(0)
    others = torch.randn(50, 4, generator=generator)
    estimator = GridSum(CLIPPER)
    with_row, _ = estimator(GivenEngine(torch.cat([others, torch.tensor([row])])), None)
    without, _ = estimator(GivenEngine(others), None)
    moved = sum(Fraction(x) ** 2 for x in (flat(with_row) - flat(without)).tolist())
    bound = estimator.sensitivity("add_or_remove_one", {"theta": torch.Size([4])})["all"]
    assert moved <= Fraction(bound) ** 2


def test_sensitivity_and_event_are_those_of_the_clipped_sum():
    for relation, factor in (("add_or_remove_one", 1), ("zero_out_one", 1), ("replace_one", 2)):
        assert GridSum(CLIPPER).sensitivity(relation, SHAPES) == {"all": factor * 0.7}
    event = GridSum(CLIPPER, together=False).event(
        PoissonSampler(sample_rate=0.1, num_records=100), {"all": 1.4}, "add_or_remove_one", SHAPES
    )
    assert isinstance(event, HardenedEvent)
    assert event.sums == "alone"
    assert event.inner == GaussianSumEvent(
        relation="add_or_remove_one", sampling=PoissonLaw(0.1), max_contribution=(0.7,), noise_std=(1.4,)
    )


# -- CappedSum: sums in float64 with a bound


def test_capped_sums_are_the_clipped_sums_of_ordinary_records():
    source = network()
    found, _ = CappedSum(CLIPPER)(engine_of(source), None)
    plain, _ = ClippedSum(CLIPPER)(engine_of(source), None)
    assert (flat(found) - flat(plain)).abs().max() < 1e-5


@pytest.mark.parametrize("clipper", [CLIPPER, PerLayerClipper(max_grad_norm=0.7)])
def test_an_empty_batch_is_zero(clipper):
    found, _ = CappedSum(clipper)(engine_of(network(), []), None)
    assert not flat(found).any()


class Sequences(nn.Module):
    """A linear layer over positions, wide enough that its gradients are not held, summed up."""

    def __init__(self, width=40, out=50):
        super().__init__()
        self.layer = nn.Linear(width, out)

    def forward(self, x):
        return self.layer(x).sum(dim=1)[:, :3]


class Twice(nn.Module):
    """A convolution that is used several times, which the engine does not merge."""

    def __init__(self, uses):
        super().__init__()
        self.conv, self.head, self.uses = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(2, 3), uses

    def forward(self, x):
        for _ in range(self.uses):
            x = torch.tanh(self.conv(x))
        return self.head(x.mean(dim=(2, 3)))


class Sliced(nn.Module):
    """A slice of a weight and of a scale, whose gradients are held."""

    def __init__(self):
        super().__init__()
        drawn = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
        self.weight, self.scale = nn.Parameter(3 * drawn), nn.Parameter(torch.ones(8))

    def forward(self, x):
        return nn.functional.linear(nn.functional.layer_norm(x, (4,), self.scale[2:6]), self.weight[1:4]).mean(dim=1)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Sliced(), (30, 4)),
        (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (6,)),
        (Sequences(), (9, 40)),
        (Twice(2), (2, 5, 5)),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(36, 3)), (1, 5, 5)),
    ],
)
def test_capped_sums_equal_exact_sums_within_the_bound(model, shape):
    """The float64 sums against the sum of per-sample gradients in float64 from the same float32 pass."""
    source = network(model=model, x=torch.randn(20, *shape, generator=torch.Generator().manual_seed(1)))
    groups = {"all": tuple(source.shapes)}
    sums = capped_sums(engine_of(source), CLIPPER.weights, groups, {"all": 64 * 0.7})
    grads = next(iter(engine_of(source).materialise()))
    weights = CLIPPER.weights(sums.norms)[:, 0]
    assert weights.min() < 1
    for name, summed in sums.values[0].items():
        assert summed.dtype == torch.float64
        expected = (weights.view(-1, *[1] * (grads[name].ndim - 1)) * grads[name].double()).sum(0)
        torch.testing.assert_close(summed, expected, rtol=1e-5, atol=1e-6)


def test_physical_batches_change_capped_sums_less_than_the_bound_says():
    estimator = CappedSum(CLIPPER)
    allowed = summation_error(30, 64 * 0.7)
    groups = {"all": ("0.weight", "0.bias", "2.weight", "2.bias")}
    sums = [
        capped_sums(engine_of(network(max_physical_batch_size=rows)), CLIPPER.weights, groups, {"all": 64 * 0.7})
        for rows in (30, 7)
    ]
    differences = [sums[0].values[0][name] - sums[1].values[0][name] for name in groups["all"]]
    assert torch.cat([d.flatten() for d in differences]).norm() <= 2 * allowed + 30 * 1e-6  # and float32 passes
    assert estimator.contribution_factor < 1.002


def test_a_record_whose_positions_cancel_is_capped():
    """Large products that cancel: its gradient is small, its reach is not, and the weight follows the reach."""
    x = torch.full((2, 2, 40), 1e4)
    x[:, 1] = 1 - x[:, 0]
    engine = engine_of(network(model=Sequences(), x=x))
    groups = {"all": ("layer.weight", "layer.bias")}
    loose = capped_sums(engine, torch.ones_like, groups, {"all": 1e30}).values[0]["layer.weight"].norm()
    tight = capped_sums(engine, torch.ones_like, groups, {"all": 1.0}).values[0]["layer.weight"].norm()
    assert 1 < loose < 20
    assert 0 < tight < loose / 1000


@pytest.mark.parametrize("hostile", [torch.nan, torch.inf, 1e30])
def test_hostile_rows_add_at_most_the_bound(hostile):
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(2))
    spoiled = x.clone()
    spoiled[5] = hostile
    estimator = CappedSum(CLIPPER)
    with_row, _ = estimator(engine_of(network(x=spoiled)), None)
    others = [i for i in range(12) if i != 5]
    without, _ = estimator(engine_of(network(x=spoiled), others), None)
    bound = estimator.sensitivity("add_or_remove_one", engine_of(network()).shapes)["all"]
    assert (flat(with_row) - flat(without)).norm() <= bound + 1e-5  # companions' last bits


def test_its_sensitivity_has_the_rounding_in_it():
    estimator = CappedSum(CLIPPER)
    error = summation_error(2**16, 64.0)
    assert 2.0**-13 < error < 2.0**-10
    factor = estimator.sensitivity("replace_one", SHAPES)["all"] / 1.4
    assert factor == pytest.approx(1 + 2 * error + 1 / 4096, rel=1e-9)
    event = estimator.event(PoissonSampler(sample_rate=0.1, num_records=100), {"all": 1.0}, "add_or_remove_one", SHAPES)
    assert isinstance(event, HardenedEvent)
    assert (event.sums, event.max_records) == ("capped", 2**16)
    assert event.inner.max_contribution[0] == pytest.approx(0.7 * factor)


def test_the_bound_counts_every_rounding():
    """gamma of the stated number of roundings, times records, times cap."""
    roundings = 2**16 + 1000 * (1 + 2 + MOST_USES) + 4
    assert summation_error(1000, 2.0) >= 2.0**-53 * roundings * 1000 * 2.0
    assert summation_error(1000, 2.0) <= 2.0**-53 * roundings * 1000 * 2.0 * 1.01


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slack": 0.5}, "slack must be >= 1"),
        ({"slack": math.nan}, "slack must be a finite number"),
        ({"max_records": 0}, "max_records must be an integer >= 1"),
        ({"max_records": 10**9}, "the sum's rounding may exceed C / 64"),
    ],
)
def test_wrong_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        CappedSum(CLIPPER, **settings)


def test_another_engine_is_refused():
    with pytest.raises(TypeError, match="CappedSum needs the engine of a program"):
        CappedSum(CLIPPER)(engine_of(network(method="loop")), None)


def test_more_uses_than_the_bound_counts_are_refused():
    source = network(model=Twice(MOST_USES + 1), x=torch.randn(3, 2, 4, 4))
    with pytest.raises(Exception, match="is used 9 times"):
        CappedSum(CLIPPER)(engine_of(source), None)


def test_more_positions_than_the_bound_counts_are_refused(monkeypatch):
    monkeypatch.setattr("tacita.gradients.program.capped_sums.MOST_POSITIONS", 8)
    assert MOST_POSITIONS == 2**16
    source = network(model=Sequences(), x=torch.randn(3, 9, 40))
    with pytest.raises(Exception, match="over 9 positions a record"):
        CappedSum(CLIPPER)(engine_of(source), None)
