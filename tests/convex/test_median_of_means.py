"""The median of means: what it computes, how far one record moves it, what is refused."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import tacita
from tacita.accounting import GaussianSumEvent, PoissonLaw, Spend, epsilon, gaussian_epsilon
from tacita.convex import MedianOfMeans, MedianOfMeansEvent
from tacita.estimators import Estimator
from tacita.gradients import NetworkSource
from tacita.gradients.given import GivenEngine, GivenSource
from tacita.oracles import ReleaseGate
from tacita.testing.adversaries import BETWEEN, CONSTANT
from tacita.testing.audit import audit_oracle
from tests.testing.linear import full, given

HOSTILE = [0.0, 1e30, -1e30, 1e-30, math.inf, -math.inf, math.nan]


def values(estimator, rows, **more):
    found, state = estimator(GivenEngine(rows, **more), None)
    assert state is None
    return found["all"]["theta"]


def definition(rows, tau, m):
    """m times the median of the groups' sums, coordinate by coordinate, by NumPy."""
    clipped = np.clip(rows, -tau, tau)
    return m * np.median([clipped[i::m].sum(axis=0) for i in range(m)], axis=0)


# -- what it computes


@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 12])
def test_it_is_the_median_of_the_sums_of_groups(m):
    rows = np.random.default_rng(m).standard_t(2, (12, 3))
    found = values(MedianOfMeans(max_coordinate=1.5, num_groups=m), torch.from_numpy(rows))
    assert found.numpy() == pytest.approx(definition(rows, 1.5, m), abs=12 * m * 1.5 * 2**-20)  # of rounding to steps


def test_one_group_is_the_clamped_sum():
    rows = torch.tensor([[0.5, 3.0], [-0.25, -9.0]])
    assert values(MedianOfMeans(max_coordinate=1.0, num_groups=1), rows).tolist() == pytest.approx([0.25, 0.0])


def test_groups_follow_from_labels_not_from_places_in_the_batch():
    rows = torch.tensor([[1.0], [0.0], [0.0], [0.5]])
    estimator = MedianOfMeans(max_coordinate=1.0, num_groups=3)
    assert values(estimator, rows, labels=torch.tensor([3, 6, 4, 5])).item() == pytest.approx(1.5)  # 1, 0, 0.5
    order = [2, 3, 0, 1]
    assert values(estimator, rows[order], labels=torch.tensor([3, 6, 4, 5])[order]).item() == pytest.approx(1.5)


def test_an_absent_record_moves_no_other():
    """Poisson sampling: with one row more in the batch, only its own group changes."""
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((9, 4)))
    estimator = MedianOfMeans(max_coordinate=1.0, num_groups=3)
    for absent in range(9):
        kept = [i for i in range(9) if i != absent]
        zeroed = rows.clone()
        zeroed[absent] = 0
        without = values(estimator, rows[kept], labels=torch.tensor(kept))
        assert torch.equal(without, values(estimator, zeroed))


def test_a_row_that_is_not_finite_counts_as_zero():
    rows = torch.ones(5, 3)
    for hostile in (math.nan, math.inf, -math.inf):
        bad, zero = rows.clone(), rows.clone()
        bad[2, 1], zero[2] = hostile, 0.0
        estimator = MedianOfMeans(max_coordinate=0.5, num_groups=1)
        assert torch.equal(values(estimator, bad), values(estimator, zero))


@pytest.mark.parametrize("hostile", ["first", "second", "third"])
def test_a_row_counts_as_zero_in_every_parameter_if_any_is_not_finite(hostile):
    grads = {name: torch.ones(5, size) for name, size in (("first", 3), ("second", 1), ("third", 2))}
    zeroed = {name: g.clone().index_fill_(0, torch.tensor([2]), 0.0) for name, g in grads.items()}
    grads[hostile][2, 0] = math.nan
    estimator = MedianOfMeans(max_coordinate=0.5, num_groups=1)
    found, expected = (estimator(GivenEngine(one), None)[0]["all"] for one in (grads, zeroed))
    for name in grads:
        assert torch.equal(found[name], expected[name])


def test_several_parameters_and_many_runs_at_once():
    random = torch.Generator().manual_seed(0)
    grads = {"a": torch.randn(4, 7, 2, generator=random), "b": torch.randn(4, 7, 5, generator=random)}
    grads["b"][1, 3, 0] = math.nan
    estimator = MedianOfMeans(max_coordinate=1.0, num_groups=3)
    together, _ = estimator(GivenEngine(grads), None)
    for run in range(4):
        alone, _ = estimator(GivenEngine({name: g[run] for name, g in grads.items()}), None)
        for name, found in alone["all"].items():
            assert torch.equal(found, together["all"][name][run])


def test_an_empty_batch_is_zero():
    estimator = MedianOfMeans(max_coordinate=1.0, num_groups=3)
    assert values(estimator, torch.zeros(0, 2)).tolist() == [0.0, 0.0]
    masked = values(estimator, torch.ones(3, 2), mask=torch.zeros(3, dtype=torch.bool))
    assert masked.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("method", ["loop", "program"])
@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_every_engine_serves_it_in_any_chunks(method, chunk):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    data = torch.randn(11, 3, dtype=torch.float64), torch.randn(11, dtype=torch.float64)

    def losses(model, batch):
        return (model(batch[0]).squeeze(1) - batch[1]).square()

    params = dict(model.named_parameters())
    estimator = MedianOfMeans(max_coordinate=0.7, num_groups=3)
    rows = np.array([0, 1, 2, 4, 5, 7, 8, 9, 10])
    found, _ = estimator(
        NetworkSource(model, losses, data, method=method, max_physical_batch_size=chunk).engine(params, rows), None
    )
    (each,) = NetworkSource(model, losses, data, method="loop").engine(params, rows).materialise()
    for name, grads in each.items():
        flat = grads.reshape(9, -1).numpy()
        expected = 3 * np.median([np.clip(flat[rows % 3 == i], -0.7, 0.7).sum(axis=0) for i in range(3)], axis=0)
        assert found["all"][name].flatten().numpy() == pytest.approx(expected, abs=1e-4)


# -- V5: sensitivity


@pytest.mark.parametrize(
    ("sizes", "tau", "eps", "variance", "lemma_52"),
    [((5, 10, 100), 2, 1, 0.4, 7.2), ((7, 3, 70), 1.5, 0.5, 1.08, 19.44)],
)
def test_v5_the_noise_of_the_mean(sizes, tau, eps, variance, lemma_52):
    m, d, s = sizes
    oracle = tacita.GradientOracle(
        GivenSource(torch.zeros(s, d)), estimator=MedianOfMeans(max_coordinate=tau, num_groups=m),
        mechanism=tacita.GaussianMechanism(noise_multiplier=1 / eps), sampler=tacita.FullBatchSampler(num_records=s),
        ledger=tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row"), planned_queries=1,
    )  # fmt: skip
    found = (oracle.noise_std["all"] / oracle.divisor) ** 2
    assert found == pytest.approx(variance, rel=2e-5)
    assert lemma_52 == pytest.approx(18 * variance)


def largest_move(tau, m, s, relation):
    """The farthest that one coordinate moves: others at -tau, 0 or tau, group by group, and the record at the ends."""
    estimator, found = MedianOfMeans(max_coordinate=tau, num_groups=m), 0.0
    for levels in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), m - 1):
        rows = torch.zeros(s, 1, dtype=torch.float64)
        for group, level in enumerate(levels, start=1):
            rows[group::m] = level * tau
        ends = (tau, -tau) if relation == "replace_one" else (tau, 0.0)
        for rest in (-tau, 0.0, tau):
            rows[0::m] = rest
            moved = []
            for end in ends:
                rows[0] = end
                moved.append(values(estimator, rows).item())
            found = max(found, abs(moved[0] - moved[1]))
    return found / s  # at the level of the mean


@pytest.mark.parametrize(("s", "m", "expected"), [(30, 5, 0.5), (12, 3, 0.75), (30, 6, 0.3), (12, 4, 0.5)])
def test_v5_the_sensitivity_is_reached(s, m, expected):
    """With tau 1.5: 2 tau m / s, and half of it at an even m with the midpoint."""
    found = largest_move(1.5, m, s, "replace_one")
    assert found == pytest.approx(expected, rel=1e-6)
    shapes = GivenEngine(torch.zeros(1, 1)).shapes
    for relation, stated in (("replace_one", 1.0), ("zero_out_one", 0.5)):
        bound = MedianOfMeans(max_coordinate=1.5, num_groups=m).sensitivity(relation, shapes)["all"] / s
        assert bound == pytest.approx(stated * expected, rel=1e-5)
        assert largest_move(1.5, m, s, relation) <= bound


@pytest.mark.parametrize("m", [1, 2, 3, 4, 7])
def test_no_record_moves_the_values_farther_than_stated(m):
    random = torch.Generator().manual_seed(m)
    estimator, d, s = MedianOfMeans(max_coordinate=0.7, num_groups=m), 5, 14
    shapes = GivenEngine(torch.zeros(1, d)).shapes
    bounds = {relation: estimator.sensitivity(relation, shapes)["all"] for relation in ("replace_one", "zero_out_one")}
    rows = torch.randn(500, s, d, generator=random) * torch.logspace(-2, 20, 500)[:, None, None]
    replaced, zeroed = rows.clone(), rows.clone()
    zeroed[:, 3] = 0.0
    replaced[:, 3] = -rows[:, 3]
    for at, hostile in enumerate(HOSTILE):
        replaced[at::11, 3] = hostile
        rows[at + 5 :: 13, 3, 1] = hostile
    before = values(estimator, rows)
    for relation, other in (("replace_one", replaced), ("zero_out_one", zeroed)):
        moved = (before - values(estimator, other)).norm(dim=1)
        assert bool((moved <= bounds[relation]).all())
    assert bounds["replace_one"] == 2 * bounds["zero_out_one"]


def test_the_sensitivity_grows_with_the_square_root_of_the_dimension():
    """All coordinates move at once: the record at +tau in each, then at -tau."""
    estimator, d = MedianOfMeans(max_coordinate=2.0, num_groups=3), 9
    rows = torch.zeros(3, d)
    rows[1], rows[2] = 50.0, -50.0
    ends = []
    for end in (50.0, -50.0):
        rows[0] = end
        ends.append(values(estimator, rows))
    moved = (ends[0] - ends[1]).norm().item()
    bound = estimator.sensitivity("replace_one", GivenEngine(rows).shapes)["all"]
    assert moved == pytest.approx(2 * 2.0 * 3 * math.sqrt(d))
    assert moved <= bound <= moved * (1 + 1e-5)


def test_the_sensitivity_is_that_of_all_parameters_together():
    apart = {"a": torch.Size([2, 3]), "b": torch.Size([]), "c": torch.Size([2])}
    estimator = MedianOfMeans(max_coordinate=2.0, num_groups=3)
    together = estimator.sensitivity("replace_one", {"theta": torch.Size([9])})
    assert estimator.sensitivity("replace_one", apart) == together
    assert estimator.block_sizes(apart) == {"all": 9}


@pytest.mark.parametrize("tau", [1e-250, 1e-20, 1e20, 1e250])
def test_thresholds_of_any_size(tau):
    rows = torch.tensor([[1e-25, 1.0, math.nan], [0.0, 1e30, 3.0]], dtype=torch.float64)
    found = values(MedianOfMeans(max_coordinate=tau, num_groups=1), rows)
    assert bool(found.isfinite().all())
    assert bool((found.abs() <= 2 * tau * (1 + 1e-5)).all())


# -- the event


def test_the_event_names_the_estimator_and_not_a_sum():
    oracle = given(full, noise_multiplier=2.0, estimator=lambda clipper: MedianOfMeans(max_coordinate=1, num_groups=3))(
        torch.zeros(9, 4), tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    )
    text = oracle.event.describe()
    assert "median of means in 3 groups, which one record moves by at most 6" in text
    assert "sum" not in text
    assert "median of means" in str(tacita.statement(oracle.ledger, delta=1e-6))
    assert oracle.ledger.verify().ok


@pytest.mark.parametrize(
    ("sampler", "queries"),
    [
        (tacita.FullBatchSampler(num_records=12), 3),
        (tacita.DisjointSampler(num_batches=3, num_records=12), 3),
        (tacita.AllocatedSampler(batches_per_epoch=3, num_records=12), 3),
        (tacita.PoissonSampler(sample_rate=0.5, num_records=12), 3),
        (tacita.ShuffledEpochsSampler(batches_per_epoch=3, num_records=12), 6),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("relation", ["replace_one", "zero_out_one"])
def test_it_is_charged_as_a_sum_whose_records_move_it_as_far(sampler, queries, relation):
    shapes = GivenEngine(torch.zeros(1, 4)).shapes
    estimator = MedianOfMeans(max_coordinate=1.0, num_groups=3)
    mechanism = tacita.GaussianMechanism(noise_multiplier=2.0)
    event = estimator.session_event(mechanism, sampler, relation, shapes)
    assert isinstance(event, MedianOfMeansEvent)
    alike = GaussianSumEvent(
        relation=relation, sampling=sampler.law, max_contribution=event.max_contribution, noise_std=event.noise_std
    )
    charged = epsilon([Spend(event, queries)], 1e-5).epsilon
    if isinstance(sampler.law, PoissonLaw):
        assert charged == epsilon([Spend(alike, queries)], 1e-5).epsilon
    else:  # as if the batches were known: that a record's own is secret gains a sum, and nothing that is proved here
        assert charged == gaussian_epsilon(alike.guarantee(queries).unsampled_mu, 1e-5)
    assert event.max_contribution[0] == pytest.approx(1.0 * 3 * 2.0, rel=1e-5)
    assert event.query_mu == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("sampler", "relation"),
    [
        (tacita.FullBatchSampler(num_records=12), "add_or_remove_one"),
        (tacita.PoissonSampler(sample_rate=0.5, num_records=12), "add_or_remove_one"),
        (tacita.AllocatedSampler(batches_per_epoch=3, num_records=12), "add_or_remove_one"),
        (tacita.FixedSizeSampler(batch_size=4, num_records=12), "replace_one"),
    ],
)
def test_what_is_not_proved_is_refused(sampler, relation):
    """One record more would move all that follow it to other groups."""
    with pytest.raises(tacita.UnsupportedEventError, match="no guarantee is proved for a median of means"):
        tacita.GradientOracle(
            GivenSource(torch.zeros(12, 2)), estimator=MedianOfMeans(max_coordinate=1.0, num_groups=3),
            mechanism=tacita.GaussianMechanism(noise_multiplier=1.0), sampler=sampler, planned_queries=1,
            ledger=tacita.Ledger(neighboring_relation=relation, privacy_unit="one row"),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MedianOfMeans(max_coordinate=0.0, num_groups=3), "max_coordinate must be"),
        (lambda: MedianOfMeans(max_coordinate=1.0, num_groups=0), "num_groups must be"),
        (
            lambda: given(full, estimator=lambda clipper: MedianOfMeans(max_coordinate=1.0, num_groups=5))(
                torch.zeros(4, 2), tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
            ),
            "num_groups must be at most the expected batch size, 4, got 5",
        ),
        (
            lambda: given(
                full, estimator=lambda clipper: MedianOfMeans(max_coordinate=1.0, num_groups=3),
                mechanism=tacita.RoundedGaussian(noise_multiplier=1.0),
            )(torch.zeros(4, 2), tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")),
            "mechanism",
        ),
    ],
)  # fmt: skip
def test_wrong_settings(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# -- audited: the statement is nearly reached, and an understatement is seen


class Understated(Estimator):
    """States half of how far a record moves the values."""

    def __init__(self, num_groups):
        self._whole = MedianOfMeans(max_coordinate=1.0, num_groups=num_groups)

    def sensitivity(self, relation, shapes):
        return {block: bound / 2 for block, bound in self._whole.sensitivity(relation, shapes).items()}

    def event(self, sampler, noise_std, relation, shapes):
        return self._whole.event(sampler, {block: 2 * std for block, std in noise_std.items()}, relation, shapes)

    def block_sizes(self, shapes):
        return self._whole.block_sizes(shapes)

    def __call__(self, engine, state):
        return self._whole(engine, state)

    def gradient(self, released, divisor):
        return self._whole.gradient(released, divisor)


def often(n):
    return tacita.PoissonSampler(sample_rate=0.8, num_records=n)


def audited(estimator, relation, sampler=full):
    make = given(sampler, noise_multiplier=1.0, queries=1, estimator=lambda clipper: estimator)
    between = replace(BETWEEN, relations=(relation,))
    return audit_oracle(make, relation=relation, delta=1e-2, runs=8000, adversaries=[between, CONSTANT], columns=4)


@pytest.mark.parametrize(
    ("m", "relation", "sampler"),
    [
        (3, "replace_one", full),
        (3, "zero_out_one", full),
        (2, "replace_one", full),
        (2, "replace_one", often),
        (2, "zero_out_one", often),
    ],
)
def test_an_audit_nearly_reaches_the_claim(m, relation, sampler):
    found = audited(MedianOfMeans(max_coordinate=1.0, num_groups=m), relation, sampler)
    assert found.verdict == "consistent"
    assert found.epsilon_lower_bound > 0.6 * found.claim.epsilon


def test_half_of_the_sensitivity_is_refused_and_refuted(monkeypatch):
    """The line refuses the noise that follows; without that comparison an audit refutes the claim."""
    with pytest.raises(tacita.LedgerError, match="less than what is spent"):
        audited(Understated(3), "replace_one")
    monkeypatch.setattr(ReleaseGate, "_check_paid", lambda self: None)
    assert audited(Understated(3), "replace_one").verdict == "refuted"
