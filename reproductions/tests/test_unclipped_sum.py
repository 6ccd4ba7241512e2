"""The unclipped sum: the clipped one's path wherever the declared bound holds, and what is claimed only then."""

import math

import pytest
import torch

import tacita
from tacita import accounting as acc
from tacita.errors import BudgetExceededError
from tacita.estimators import Estimator
from tacita.gradients import GivenEngine
from tacita.gradients.given import GivenSource
from tacita.sampling import FullBatchSampler
from tacita.testing import check_oracle
from tacita_reproductions.unclipped_sum import UnclippedSum

SHAPES = {"theta": torch.Size([2])}
RELATION = "add_or_remove_one"


def unclipped(**changes):
    return UnclippedSum(**{"declared_max_grad_norm": 1.0, "failure_probability": 1e-6, **changes})


def clipped(bound):
    return tacita.ClippedSum(tacita.FlatClipper(max_grad_norm=bound))


def summed(estimator, rows, **engine):
    (values, _) = estimator(GivenEngine(torch.as_tensor(rows), **engine), None)
    return values["all"]["theta"]


# -- exact identities


def test_it_is_the_plain_sum():
    """With C = 1 and g = (3, 4) the clipped sum has (0.6, 0.8), the unclipped one (3, 4)."""
    rows = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert summed(unclipped(), rows).tolist() == [3.0, 4.0]
    assert summed(clipped(1.0), rows).tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_below_the_bound_it_is_the_clipped_sum_bit_for_bit(dtype):
    rows = torch.randn(500, 2, dtype=dtype, generator=torch.Generator().manual_seed(0))
    bound = rows.norm(dim=1).max().item() * 1.001
    assert torch.equal(summed(unclipped(declared_max_grad_norm=bound), rows), summed(clipped(bound), rows))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_counts_as_zero(bad):
    rows = torch.tensor([[0.5, 0.25], [bad, 1.0], [1.0, bad]])
    assert summed(unclipped(), rows).tolist() == [0.5, 0.25]
    assert summed(unclipped(), rows[1:]).tolist() == [0.0, 0.0]


def test_an_empty_batch_is_zero():
    assert summed(unclipped(), torch.zeros(0, 2)).tolist() == [0.0, 0.0]


def test_it_takes_leading_axes_and_masks():
    rows = torch.randn(7, 5, 2, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(7, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    found = summed(unclipped(), rows, mask=mask)
    expected = torch.where(mask.unsqueeze(-1), rows, 0.0).sum(dim=1)
    torch.testing.assert_close(found, expected)


# -- what it claims


def event(estimator, relation=RELATION, noise=2.0, sampler=None):
    sampler = sampler or FullBatchSampler(num_records=100)
    return estimator.event(sampler, dict.fromkeys(estimator.block_sizes(SHAPES), noise), relation, SHAPES)


@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_its_sensitivity_is_the_clipped_one_s(relation):
    ours = unclipped(declared_max_grad_norm=2.5)
    assert ours.sensitivity(relation, SHAPES) == clipped(2.5).sensitivity(relation, SHAPES)
    assert event(ours, relation).inner.inner == clipped(2.5).event(
        FullBatchSampler(num_records=100), {"all": 2.0}, relation, SHAPES
    )


def test_nothing_is_claimed_without_the_condition():
    ledger = tacita.Ledger(neighboring_relation=RELATION, privacy_unit="one row")
    ledger.register(event(unclipped(declared_max_grad_norm=2.5, because="weights are clamped")), planned_queries=3)
    assert ledger.epsilon(1e-5) == math.inf
    assert ledger.delta(50.0) == 1.0
    text = " ".join(tacita.statement(ledger, delta=1e-4).text.split())
    assert "No unconditional epsilon" in text
    assert "gradient has an L2 norm of at most 2.5 at every point of the run" in text
    assert "but with probability 1e-06" in text
    assert "declared because weights are clamped" in text
    assert "whether it held is itself private" in text
    assert tacita.statement(ledger, delta=1e-4).to_json()["epsilon"] is None


def test_a_capped_ledger_refuses_it():
    ledger = tacita.Ledger(neighboring_relation=RELATION, privacy_unit="one row", max_epsilon=100.0, max_delta=1e-3)
    with pytest.raises(BudgetExceededError, match="guarantees nothing unless every record's gradient"):
        ledger.register(event(unclipped(declared_max_grad_norm=2.5)), planned_queries=3)


def test_the_failure_costs_both_swaps():
    for epsilon in (0.5, 2.0):
        alone = acc.delta([acc.Spend(event(unclipped(failure_probability=0.0)), 5)], epsilon).delta
        found = acc.delta([acc.Spend(event(unclipped(failure_probability=1e-3)), 5)], epsilon).delta
        assert found == pytest.approx(alone + 1e-3 * (1 + math.exp(epsilon)), rel=1e-12)


def test_a_bound_that_surely_holds_has_no_failure_and_still_a_condition():
    sure = event(unclipped(failure_probability=0.0))
    assert sure.guarantee(7).coupling_gap == 0
    assert "but with probability" not in sure.condition
    assert "on every data set that is protected" in sure.condition


@pytest.mark.parametrize(
    ("relation", "sampler", "message"),
    [("add_or_remove_one", tacita.FixedSizeSampler(batch_size=5, num_records=100), "no guarantee is proved")],
)
def test_a_cell_that_is_refused_for_the_clipped_sum_is_refused(relation, sampler, message):
    with pytest.raises(tacita.UnsupportedEventError, match=message):
        event(unclipped(), relation, sampler=sampler)


# -- what one record does


def test_the_condition_is_needed():
    """One full-batch query, n = 100, C = 1, epsilon 1 by the paper's formula with constant 1: exact deltas at 1."""
    noise = 100 * 0.0339307  # at the level of the sum
    claimed = {1: 4.28436e-5, 10: 0.776730, 1000: 1.0}
    for length, delta in claimed.items():
        rows = torch.cat([torch.zeros(99, 2), torch.tensor([[float(length), 0.0]])]).double()
        moved = (summed(unclipped(), rows) - summed(unclipped(), rows[:-1])).norm().item()
        assert moved == length
        assert acc.gaussian_delta(moved / noise, 1.0) == pytest.approx(delta, rel=1e-4)
        assert (summed(clipped(1.0), rows) - summed(clipped(1.0), rows[:-1])).norm() <= 1
    assert acc.gaussian_delta(1 / (100 * 0.0373063), 1.0) <= 1e-5 * (1 + 1e-4)


def test_nothing_shows_whether_the_bound_held():
    values, state = unclipped()(GivenEngine(torch.tensor([[0.5, 0.0], [7.0, 0.0]])), None)
    assert set(values) == {"all"}
    assert state is None


# -- settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"declared_max_grad_norm": 0.0}, "declared_max_grad_norm must be"),
        ({"declared_max_grad_norm": math.inf}, "declared_max_grad_norm must be"),
        ({"declared_max_grad_norm": math.nan}, "declared_max_grad_norm must be"),
        ({"failure_probability": 1.0}, "failure_probability must be"),
        ({"failure_probability": -1e-9}, "failure_probability must be"),
        ({"failure_probability": math.nan}, "failure_probability must be"),
        ({"because": "two\nlines"}, "because must"),
    ],
)
def test_wrong_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        unclipped(**changes)


class Promised(Estimator):
    """An unclipped sum, accounted where its condition holds: a claim that an audit can look for."""

    def __init__(self, **settings):
        self._sum = UnclippedSum(**settings)

    def event(self, *args):
        return self._sum.event(*args).inner

    def __call__(self, engine, state):
        return self._sum(engine, state)

    def gradient(self, released, divisor):
        return self._sum.gradient(released, divisor)

    def sensitivity(self, relation, shapes):
        return self._sum.sensitivity(relation, shapes)

    def block_sizes(self, shapes):
        return self._sum.block_sizes(shapes)

    def initial_state(self, shapes, lead=()):
        return self._sum.initial_state(shapes, lead)

    def __repr__(self):
        return f"Promised({self._sum!r})"


# -- the contract of every oracle, under the condition


def audited(keeps_the_promise):
    """Oracles on rows that are their own gradients, cut to the declared length or not."""

    def make_oracle(rows, ledger):
        if keeps_the_promise:
            norms = rows.double().norm(dim=1, keepdim=True)
            rows = (rows / norms.clamp(min=1.0) * (1 - 1e-6)).to(rows.dtype)  # what is not finite stays so, and is zero
        known = 10 if ledger.neighboring_relation == "add_or_remove_one" else len(rows)
        return tacita.GradientOracle(
            GivenSource(rows),
            estimator=Promised(declared_max_grad_norm=1.0, failure_probability=0.0),
            sampler=tacita.FullBatchSampler(num_records=known),
            mechanism=tacita.GaussianMechanism(noise_multiplier=2.0),
            ledger=ledger,
            planned_queries=2,
        )

    return make_oracle


def test_under_its_condition_it_keeps_the_contract():
    check_oracle(audited(keeps_the_promise=True))


def test_without_its_condition_it_is_refuted():
    with pytest.raises(AssertionError, match="is claimed"):
        check_oracle(audited(keeps_the_promise=False))
