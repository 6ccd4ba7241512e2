"""Calibration: accounted again, the noise found stays within the target and close to it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacita import accounting as acc
from tacita.accounting import calibration


def poisson_at(rate, relation):
    def event_at(multiplier):
        return acc.GaussianSumEvent(
            relation=relation,
            max_contribution=(0.5,),
            noise_std=(multiplier * 0.5 * acc.moved(relation),),
            sampling=acc.PoissonLaw(rate),
        )

    return event_at


def accounted(event, queries, delta, alongside=()):
    return acc.epsilon([*alongside, acc.Spend(event, queries)], delta).epsilon


def test_the_known_number():
    event_at = poisson_at(0.02, "add_or_remove_one")
    found = acc.calibrate(event_at, "add_or_remove_one", 2.0, 1e-5, queries=150)
    assert found == pytest.approx(0.9268, rel=1e-3)
    assert found > 0.78 * 1.1  # what the central limit theorem claims, on the wrong side


@given(
    target=st.floats(0.1, 20.0),
    log_delta=st.floats(-18.0, -5.0),
    rate=st.floats(0.005, 0.4),
    queries=st.integers(1, 400),
    relation=st.sampled_from(acc.RELATIONS),
)
@settings(max_examples=8, deadline=None)
def test_within_the_target_and_within_half_a_percent(target, log_delta, rate, queries, relation):
    event_at, delta = poisson_at(rate, relation), math.exp(log_delta)
    found = acc.calibrate(event_at, relation, target, delta, queries=queries)
    reached = accounted(event_at(found), queries, delta)
    assert reached <= target
    if accounted(event_at(found / 1.01), queries, delta) < math.inf and rate > 2 * delta:
        assert reached >= target * 0.995


@pytest.mark.parametrize(
    "alongside",
    [
        lambda events: [acc.Spend(events.full(25.0), 1)],
        lambda events: [acc.Spend(events.share(0.2, 1e-6), 1)],
        lambda events: [acc.Spend(events.full(25.0), 1), acc.Spend(events.unit(0.01, 3.0, 2), 20)],
    ],
)
def test_alongside_other_sessions(events, alongside):
    others, event_at = alongside(events), poisson_at(0.1, "add_or_remove_one")
    found = acc.calibrate(event_at, "add_or_remove_one", 1.0, 1e-5, others, queries=400)
    assert 0.995 <= accounted(event_at(found), 400, 1e-5, others) <= 1.0
    assert found > acc.calibrate(event_at, "add_or_remove_one", 1.0, 1e-5, queries=400)


def test_fixed_size_and_closed_forms(events):
    for event_at, relation, queries in (
        (lambda m: events.fixed(2 * m), "replace_one", 1000),
        (lambda m: events.full(2 * m, "replace_one"), "replace_one", 10),
        (lambda m: acc.ZCDPEvent(relation="replace_one", rho=0.5 / m**2), "replace_one", 10),
        (lambda m: acc.LaplaceEvent(relation="replace_one", l1_sensitivity=1.0, scale=m), "replace_one", 10),
    ):
        found = acc.calibrate(event_at, relation, 1.0, 1e-6, queries=queries)
        assert 0.995 <= accounted(event_at(found), queries, 1e-6) <= 1.0


def test_purchases_registered_together_need_little_more_noise(events):
    """(1, 1e-5), rate 0.1, 400 queries: purchases at 0.3 of the total mu need 7.98 where training alone needs 7.57."""
    event_at = poisson_at(0.1, "add_or_remove_one")
    bought = acc.Spend(events.full(1 / (0.3 * acc.gaussian_mu(1.0, 1e-5))), 1)
    alone = acc.calibrate(event_at, "add_or_remove_one", 1.0, 1e-5, queries=400)
    together = acc.calibrate(event_at, "add_or_remove_one", 1.0, 1e-5, [bought], queries=400)
    assert 1.02 * alone < together < 1.07 * alone


def test_few_calls_of_the_accountant(monkeypatch):
    asked = []
    whole = calibration.epsilon
    monkeypatch.setattr(calibration, "epsilon", lambda *given: asked.append(given) or whole(*given))
    acc.calibrate(poisson_at(0.1, "add_or_remove_one"), "add_or_remove_one", 1.0, 1e-5, queries=400)
    assert 1 <= len(asked) <= 4


def test_one_fine_reading_where_the_first_estimate_is_far_off(monkeypatch):
    """A saddle point is 15 percent off here; coarse grids say where to read."""
    asked = []
    whole = calibration.epsilon
    monkeypatch.setattr(calibration, "epsilon", lambda *given: asked.append(given) or whole(*given))
    event_at = poisson_at(1e-4, "add_or_remove_one")
    found = acc.calibrate(event_at, "add_or_remove_one", 1.0, 1e-8, queries=10**6)
    assert len(asked) <= 2
    assert 0.999 <= accounted(event_at(found), 10**6, 1e-8) <= 1.0


def test_a_spent_budget_is_refused_with_a_way_out(events):
    others = [acc.Spend(events.full(1.0), 1)]
    with pytest.raises(
        ValueError, match=r"target_epsilon=1 at target_delta=1e-05.*already spend.*larger target_epsilon"
    ):
        acc.calibrate(poisson_at(0.1, "add_or_remove_one"), "add_or_remove_one", 1.0, 1e-5, others, queries=10)


def test_a_share_that_takes_all_delta_is_refused(events):
    others = [acc.Spend(events.share(0.1, 1e-5), 1)]
    with pytest.raises(ValueError, match="target_epsilon=1 at target_delta=1e-05 cannot be reached"):
        acc.calibrate(poisson_at(0.1, "add_or_remove_one"), "add_or_remove_one", 1.0, 1e-5, others, queries=10)


def test_noise_that_does_not_help_is_refused(events):
    with pytest.raises(ValueError, match="cannot be reached with any noise"):
        acc.calibrate(lambda multiplier: events.full(1.0), "add_or_remove_one", 1.0, 1e-5)


def test_noise_that_is_not_needed_ends():
    def event_at(multiplier):
        return acc.GaussianSumEvent(
            sampling=acc.FullBatchLaw(), relation="add_or_remove_one", max_contribution=(0.0,), noise_std=(multiplier,)
        )

    assert acc.calibrate(event_at, "add_or_remove_one", 1.0, 1e-5) < 1e-6


def test_the_event_must_be_under_the_relation_asked_for(events):
    with pytest.raises(ValueError, match="relation=replace_one"):
        acc.calibrate(events.full, "replace_one", 1.0, 1e-5)


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
def test_targets_of_epsilon(events, target):
    with pytest.raises(ValueError, match="target_epsilon must be"):
        acc.calibrate(events.full, "add_or_remove_one", target, 1e-5)


@pytest.mark.parametrize("target", [0.0, 1.0, -1.0, math.nan])
def test_targets_of_delta(events, target):
    with pytest.raises(ValueError, match="target_delta must be"):
        acc.calibrate(events.full, "add_or_remove_one", 1.0, target)


@pytest.mark.parametrize("alongside", [0, 2])
def test_noise_pays_for_every_query_and_for_the_sessions_alongside(events, alongside):
    """Of Gaussian queries the sum is known: queries / noise^2 is what the others leave of mu^2."""
    others = [acc.Spend(events.full(20.0), 1)] * alongside
    found = acc.calibrate(events.full, "add_or_remove_one", 1.0, 1e-5, others, queries=4)
    left = acc.gaussian_mu(1.0, 1e-5) ** 2 - alongside / 20**2
    assert found == pytest.approx(math.sqrt(4 / left), rel=1e-3)


@given(
    budget=st.floats(0.2, 20.0),
    multiplier=st.floats(0.6, 5.0),
    rate=st.floats(0.005, 0.4),
    at_most=st.integers(1, 300),
)
@settings(max_examples=8, deadline=None)
def test_as_many_queries_as_the_budget_holds_and_no_more(budget, multiplier, rate, at_most):
    event = poisson_at(rate, "add_or_remove_one")(multiplier)
    found = acc.most_queries(event, budget, 1e-5, at_most=at_most)
    assert 0 <= found <= at_most
    assert found == 0 or accounted(event, found, 1e-5) <= budget
    assert found == at_most or accounted(event, found + 1, 1e-5) > budget


def test_a_budget_without_a_limit_holds_what_is_wanted_and_one_of_nothing_holds_no_query():
    event = poisson_at(0.1, "replace_one")(1.0)
    assert acc.most_queries(event, math.inf, 1e-5, at_most=50) == 50
    assert acc.most_queries(event, 0.0, 1e-5, at_most=50) == 0


@pytest.mark.parametrize("wrong", [{"max_epsilon": -1.0}, {"max_epsilon": math.nan}, {"delta": 1.0}, {"at_most": 0}])
def test_a_budget_out_of_range_is_refused(wrong):
    given = {"max_epsilon": 1.0, "delta": 1e-5, "at_most": 10, **wrong}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        acc.most_queries(poisson_at(0.1, "replace_one")(1.0), **given)
