"""A coupling that fails costs (1 + e^epsilon) of its failure; AboveThreshold is charged once."""

import itertools
import json
import math

import numpy as np
import pytest

import tacita
from tacita import accounting as acc
from tacita.accounting.renyi_curve import ORDERS
from tacita.errors import UnsupportedEventError
from tacita.second_order import AboveThresholdEvent
from tacita.tables.selection_events import RepeatAndSelectEvent

RELATION = "add_or_remove_one"


def coupled(inner, failure):
    return acc.CoupledEvent(relation=inner.relation, inner=inner, failure_probability=failure)


def delta(epsilon, *events, queries=1):
    return acc.delta([acc.Spend(event, queries) for event in events], epsilon).delta


def bound(at, *events, queries=1):
    return acc.epsilon([acc.Spend(event, queries) for event in events], at)


# -- couplings


@pytest.mark.parametrize(
    ("epsilon", "honest"),
    [
        (1 / 8, 0.0313315),
        (1 / 4, 0.0328403),
        (1 / 2, 0.0364872),
        (1.0, 0.0471828),
        (2.0, 0.0938906),
        (4.0, 0.565982),
        (8.0, 1.0),  # 29.83: no guarantee at all
    ],
)
def test_the_honest_delta_of_equal_failures(events, epsilon, honest):
    """Where the inner session is (epsilon, 0.01)-private and fails with 0.01: (2 + e^epsilon) 0.01, not 0.02."""
    mu = acc.gaussian_mu(epsilon, 0.01)
    assert delta(epsilon, coupled(events.full(1 / mu), 0.01)) == pytest.approx(honest, rel=2e-6)


def brute_force(spends, at, gap):
    """The least epsilon on a fine grid at which inner delta and swaps fit."""
    for epsilon in np.arange(0.0, 6.0, 1e-3):
        if acc.delta(spends, float(epsilon)).delta + gap * (1 + math.exp(epsilon)) <= at:
            return epsilon
    return math.inf


@pytest.mark.parametrize("gap", [1e-7, 1e-6, 1.4e-6, 4e-6])
def test_epsilon_is_the_least_that_pays_for_both_swaps(events, gap):
    inner = events.full(3.0)
    found = bound(1e-5, coupled(inner, gap))
    assert found.epsilon == pytest.approx(brute_force([acc.Spend(inner, 1)], 1e-5, gap), abs=2e-3)
    if gap < 2e-6:
        assert "swapped" in found.accountant
        assert delta(found.epsilon, coupled(inner, gap)) <= 1e-5 * (1 + 1e-9)
        assert found.epsilon > bound(1e-5, inner).epsilon


def test_epsilon_and_delta_agree_where_a_distribution_is_composed(events):
    event = coupled(events.poisson(0.02, 1.0), 1e-7)
    found = bound(1e-5, event, queries=150)
    assert delta(found.epsilon, event, queries=150) <= 1e-5 * (1 + 1e-3)
    assert bound(1e-5, event.inner, queries=150).epsilon < found.epsilon < 1.8


@pytest.mark.parametrize(("at", "gap"), [(2e-6, 1e-6), (1e-6, 1e-6), (1e-5, 4.5e-6)])
def test_too_large_a_failure_leaves_no_guarantee(events, at, gap):
    assert bound(at, coupled(events.full(3.0), gap)).epsilon == math.inf


def test_failures_of_sessions_add_up(events):
    """Equal sessions are not merged into one with one failure, and other sessions stand inside the factor e^epsilon."""
    inner, other = events.full(3.0), events.full(2.0)
    one, alone = coupled(inner, 1e-6), delta(1.5, inner, inner, other)
    swapped = 1e-6 * (1 + math.exp(1.5))
    assert delta(1.5, one, one, other) == pytest.approx(alone + 2 * swapped, rel=1e-9)
    assert delta(1.5, one, inner, other) == pytest.approx(alone + swapped, rel=1e-9)
    assert delta(1.5, coupled(coupled(inner, 1e-6), 2e-6)) == pytest.approx(delta(1.5, inner) + 3 * swapped, rel=1e-9)


def test_the_failure_is_of_the_session_not_of_a_query(events):
    one = coupled(events.full(9.0), 1e-6)
    assert one.guarantee(0).coupling_gap == 0
    assert one.guarantee(1).coupling_gap == one.guarantee(1000).coupling_gap == 1e-6
    assert acc.ConditionalEvent(relation=RELATION, inner=one, condition_text="x").guarantee(3).coupling_gap == 1e-6


def test_what_cannot_take_a_failure_refuses_it(events):
    event = coupled(events.full(9.0), 1e-6)
    with pytest.raises(UnsupportedEventError, match="no additive delta"):
        RepeatAndSelectEvent(relation=RELATION, inner=event, inner_queries=1, mean=3.0, shape=1.0)
    with pytest.raises(UnsupportedEventError, match="cannot pass a filter"):
        acc.RenyiFilter(order=8.0, max_epsilon=3.0, max_delta=1e-5).divergence([acc.Spend(event, 1)])


@pytest.mark.parametrize("failure", [-1e-9, 1.0, math.nan, math.inf])
def test_wrong_failure_probability(events, failure):
    with pytest.raises(ValueError, match="failure_probability must be"):
        coupled(events.full(1.0), failure)


def test_the_claim_holds_and_twice_delta_does_not():
    """Randomised response, and a session within total variation p of it in each world: the bound is reached."""
    epsilon, p = 1.0, 0.01
    one = np.array([math.exp(epsilon), 1.0, 0.0]) / (1 + math.exp(epsilon))
    two = one[[1, 0, 2]]
    # D': p of the mass on the event's outcome is taken away; D: p of mass is put where D' has none
    swapped_one = one + p * np.array([0.0, -1.0, 1.0])
    swapped_two = two + p * np.array([-1.0, 0.0, 0.0]) + p * np.array([0.0, 1.0, 0.0])
    for m1, m2 in ((one, swapped_one), (two, swapped_two)):
        assert 0.5 * np.abs(m1 - m2).sum() == pytest.approx(p)
    worst = np.maximum(0, swapped_one - math.exp(epsilon) * swapped_two).sum()
    inner = AboveThresholdEvent(relation=RELATION, sensitivity=1.0, threshold_scale=2.0, query_scale=4.0)
    assert inner.epsilon == epsilon
    assert worst == pytest.approx(p * (1 + math.exp(epsilon)))  # tight
    assert worst <= delta(epsilon, coupled(inner, p)) * (1 + 1e-9)
    assert worst > 2 * p


def test_the_statement_tells_the_failure(events):
    ledger = tacita.Ledger(neighboring_relation=RELATION, privacy_unit="one row")
    inner = events.full(1 / acc.gaussian_mu(1.0, 1e-5))
    event = acc.ConditionalEvent(
        relation=RELATION, inner=coupled(inner, 1e-5), condition_text="every gradient stays below 1"
    )
    ledger.register(event, planned_queries=1)
    said = tacita.statement(ledger, delta=(2 + math.e) * 1e-5)
    words, text = said.to_json(), " ".join(said.text.split())
    assert words["epsilon"] is None
    assert words["conditional_epsilon"] == pytest.approx(1.0, rel=1e-4)
    assert words["failure_probability"] == 1e-5
    assert words["failure_delta"] == pytest.approx((1 + math.e) * 1e-5, rel=1e-3)
    assert "No unconditional epsilon" in text
    assert "every gradient stays below 1." in text
    assert "(1 + e^epsilon) x 1e-05" in text
    assert "That it was seen to hold during the run proves nothing" in text
    assert tacita.statement(ledger, delta=2e-5).to_json()["conditional_epsilon"] is None  # what 2 delta would allow


def test_a_statement_without_failures_does_not_speak_of_them(events):
    ledger = tacita.Ledger(neighboring_relation=RELATION, privacy_unit="one row")
    ledger.register(events.full(3.0), planned_queries=1)
    text = tacita.statement(ledger, delta=1e-5).text
    assert "Of delta" not in text
    assert "seen to hold" not in text


# -- AboveThreshold


def threshold_event(**changes):
    settings = {"relation": RELATION, "sensitivity": 0.5, "threshold_scale": 1.0, "query_scale": 2.0}
    return AboveThresholdEvent(**{**settings, **changes})


def test_it_is_charged_once():
    event = threshold_event()
    assert [event.guarantee(n).pure_epsilon for n in (0, 1, 20)] == [0.0, 1.0, 1.0]
    assert bound(1e-9, event).epsilon == pytest.approx(1.0, rel=1e-6)
    assert bound(1e-9, event, queries=20).epsilon == pytest.approx(1.0, rel=1e-6)
    assert bound(1e-9, event, event).epsilon == pytest.approx(2.0, rel=1e-6)


def test_each_scale_counts():
    assert threshold_event(threshold_scale=0.5).epsilon == 1.5
    assert threshold_event(query_scale=1.0).epsilon == 1.5
    assert threshold_event(sensitivity=1.0).epsilon == 2.0


def test_its_views_are_those_of_randomised_response(events):
    event, share = threshold_event(), events.share(1.0, 0.0)
    assert np.array_equal(event.guarantee(7).rdp(ORDERS), share.guarantee(1).rdp(ORDERS))
    assert all(event.guarantee(7).delta(e) == share.guarantee(1).delta(e) for e in (0.0, 0.3, 1.0, 2.0))
    beside = events.full(3.0)
    assert bound(1e-5, event, beside).epsilon == pytest.approx(bound(1e-5, share, beside).epsilon, rel=1e-9)


@pytest.mark.parametrize("changes", [{"threshold_scale": 0.0}, {"query_scale": 0.0}])
def test_without_noise_it_is_not_private(changes):
    assert bound(1e-5, threshold_event(**changes)).epsilon == math.inf


def test_a_value_that_cannot_move_costs_nothing():
    assert bound(1e-5, threshold_event(sensitivity=0.0)).epsilon == 0


@pytest.mark.parametrize(
    ("name", "value"),
    list(itertools.product(["sensitivity", "threshold_scale", "query_scale"], [-1.0, math.nan, math.inf])),
)
def test_wrong_settings(name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        threshold_event(**{name: value})


def test_it_is_read_back():
    event = acc.ConditionalEvent(relation=RELATION, inner=coupled(threshold_event(), 1e-6), condition_text="bounded")
    assert acc.Event.from_dict(json.loads(json.dumps(event.to_dict()))) == event
