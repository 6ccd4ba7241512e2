"""The clipped sum: each sample clipped on its own, and no record moves the sum by more than is stated."""

import math

import pytest
import torch

import tacita
from tacita.clipping import AutomaticClipper, FlatClipper, PerLayerClipper
from tacita.estimators import ClippedSum
from tacita.gradients.given import GivenEngine, GivenSource
from tacita.hardened import CappedSum, GridSum
from tacita.sampling import FullBatchSampler

CLIPPERS = [
    FlatClipper(max_grad_norm=1.0),
    PerLayerClipper(max_grad_norm={"a": 0.5, "b": 2.0}),
    AutomaticClipper(max_grad_norm=1.0, gamma=0.01),
]
every_clipper = pytest.mark.parametrize("clipper", CLIPPERS, ids=lambda clipper: type(clipper).__name__)


def bounded(clipper, **grads):
    values, state = ClippedSum(clipper)(GivenEngine(grads), None)
    assert state is None
    return values


def grads(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 3 * torch.randn(rows, d, dtype=torch.float64, generator=generator) for name, d in (("a", 3), ("b", 5))
    }


def test_each_sample_is_clipped_before_the_sum():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [-300.0, 0.0]], dtype=torch.float64)
    total = bounded(FlatClipper(max_grad_norm=1.0), theta=rows)["all"]["theta"]
    torch.testing.assert_close(total, torch.tensor([0.6 + 0.3 - 1.0, 0.8 + 0.4], dtype=torch.float64))


@every_clipper
@pytest.mark.parametrize("hostile", [0.0, 1e30, torch.inf, torch.nan])
def test_one_record_moves_each_block_by_at_most_its_sensitivity(clipper, hostile):
    plain = grads(6)
    without = bounded(clipper, **{name: g[1:] for name, g in plain.items()})
    plain["a"][0], plain["b"][0, 2] = hostile, hostile
    bounds = ClippedSum(clipper).sensitivity("add_or_remove_one", GivenEngine(plain).shapes)
    for block, values in bounded(clipper, **plain).items():
        moved = math.hypot(*(float((values[name] - without[block][name]).norm()) for name in values))
        assert moved <= bounds[block] * (1 + 1e-12)


@every_clipper
def test_only_replacing_a_record_moves_the_sum_twice(clipper):
    estimator, shapes = ClippedSum(clipper), GivenEngine(grads(1)).shapes
    contribution = clipper.max_contribution(shapes)
    for relation, moved in (("add_or_remove_one", 1), ("zero_out_one", 1), ("replace_one", 2)):
        assert estimator.sensitivity(relation, shapes) == {block: moved * c for block, c in contribution.items()}


@every_clipper
def test_runs_on_a_leading_axis_are_runs_of_their_own(clipper):
    apart = [grads(4, seed) for seed in (1, 2)]
    together = bounded(clipper, **{name: torch.stack([one[name] for one in apart]) for name in apart[0]})
    for run, one in enumerate(apart):
        for block, values in bounded(clipper, **one).items():
            torch.testing.assert_close({n: together[block][n][run] for n in values}, values, rtol=1e-12, atol=1e-14)


@every_clipper
def test_no_rows_are_zeros(clipper):
    for values in bounded(clipper, **grads(0)).values():
        assert not any(total.any() for total in values.values())


def test_the_gradient_is_the_release_over_the_divisor():
    released = {"a": {"w": torch.tensor([2.0])}, "b": {"v": torch.tensor([4.0])}}
    assert ClippedSum(CLIPPERS[0]).gradient(released, 8.0) == {"w": torch.tensor([0.25]), "v": torch.tensor([0.5])}


def test_a_batch_may_be_a_mapping():
    model = torch.nn.Linear(3, 2)
    batch = {"x": torch.randn(4, 3), "y": torch.arange(4) % 2}

    def losses(model, batch):
        return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    found, loop = (
        tacita.clipped_gradient_sum(model, losses, batch, FlatClipper(max_grad_norm=0.1), method=method)
        for method in ("program", "loop")
    )
    torch.testing.assert_close(found.sum, dict(loop.sum))


@pytest.mark.parametrize("kind", [ClippedSum, GridSum, CappedSum])
def test_an_estimator_that_computes_something_else_inherits_no_promise(kind):
    with pytest.raises(TypeError, match=f"Plain cannot be derived from {kind.__name__}.*state its own sensitivity"):

        class Plain(kind):
            def __call__(self, engine, state):
                return {"all": {}}, state


@pytest.mark.parametrize(
    "clipper", [FlatClipper(max_grad_norm=1e26), PerLayerClipper(max_grad_norm={"a": 1.0, "b": 1e30})]
)
def test_a_threshold_whose_sums_may_be_infinite_is_refused(clipper):
    """A sum in float32 that overflows tells of its rows, whatever the noise."""
    with pytest.raises(ValueError, match="may be infinite"):
        tacita.GradientOracle(
            GivenSource(grads(3)),
            estimator=ClippedSum(clipper),
            mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
            sampler=FullBatchSampler(num_records=3),
            ledger=tacita.Ledger(neighboring_relation="zero_out_one", privacy_unit="one row"),
            planned_queries=1,
        )


# -- several blocks of several parameters


SEVERAL = {"a.weight": torch.Size([3, 2]), "a.bias": torch.Size([3]), "b.weight": torch.Size([4])}
BLOCKS = PerLayerClipper(max_grad_norm={"a": 0.5, "b": 2.0})


def test_a_block_has_all_coordinates_of_its_parameters():
    assert ClippedSum(BLOCKS).block_sizes(SEVERAL) == {"a": 9, "b": 4}
    assert ClippedSum(FlatClipper(max_grad_norm=1.0)).block_sizes(SEVERAL) == {"all": 13}


def test_each_block_is_charged_with_its_own_noise_whatever_their_order():
    for names in (("a", "b"), ("b", "a")):
        noise_std = {name: {"a": 3.0, "b": 5.0}[name] for name in names}
        event = ClippedSum(BLOCKS).event(FullBatchSampler(num_records=9), noise_std, "replace_one", SEVERAL)
        assert (event.max_contribution, event.noise_std) == ((0.5, 2.0), (3.0, 5.0))
        assert event.query_mu == pytest.approx(2 * math.hypot(0.5 / 3, 2 / 5))
