"""The best of several runs, and guarantees under a condition."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from tacita import accounting as acc
from tacita.accounting.renyi_curve import ORDERS
from tacita.errors import UnsupportedEventError
from tacita.tables.selection_events import RepeatAndSelectEvent

DELTA = 1e-5


def best_of(inner, mean, shape=math.inf, queries=150):
    return RepeatAndSelectEvent(relation=inner.relation, inner=inner, inner_queries=queries, mean=mean, shape=shape)


def epsilon(event, queries=1):
    return acc.epsilon([acc.Spend(event, queries)], DELTA).epsilon


@pytest.mark.parametrize("shape", [math.inf, 0.0, 0.5, 1.0])
def test_the_best_of_many_costs_more_than_one_and_less_than_all(events, shape):
    inner = events.poisson(0.02, 1.0)
    one = acc.epsilon([acc.Spend(inner, 150)], DELTA).epsilon
    all_ten = acc.epsilon([acc.Spend(inner, 1500)], DELTA).epsilon
    chosen = [epsilon(best_of(inner, mean, shape)) for mean in (1.5, 10.0, 100.0)]
    assert one < chosen[0] < chosen[1] < chosen[2]
    if shape == math.inf:
        assert chosen[1] < all_ten


@pytest.mark.parametrize("shape", [math.inf, 0.0, 1.0])
def test_the_curve_is_the_library_s(events, shape):
    inner = events.poisson(0.02, 1.0)
    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(1.0)), 150)
    whole = ORDERS[np.round(ORDERS) == ORDERS]  # between them the library's curve of one run is no bound that serves
    accountant = RdpAccountant(whole)
    accountant.compose(dp_event.RepeatAndSelectDpEvent(event, 10.0, shape))
    assert best_of(inner, 10.0, shape).guarantee(1).rdp(whole) == pytest.approx(accountant.rdp, rel=1e-7)


def test_the_session_is_charged_once(events):
    event = best_of(events.full(5.0), 10.0, queries=3)
    assert epsilon(event, 1) == epsilon(event, 1000)
    assert not event.per_query


def test_it_serves_replace_one(events):
    plain, replaced = (epsilon(best_of(events.poisson(0.02, 1.0, r), 10.0)) for r in ("zero_out_one", "replace_one"))
    assert plain < replaced < math.inf


def test_no_noise_inside_is_no_privacy_outside(events):
    assert epsilon(best_of(events.full(0.0), 10.0)) == math.inf


def test_what_has_no_curve_is_refused(events):
    counts = acc.StableCountsEvent(
        relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(4.0,), failure_probability=1e-6
    )
    for inner in (counts, events.share(1.0, 1e-6)):
        with pytest.raises(UnsupportedEventError, match="Rényi curve and no additive delta"):
            best_of(inner, 10.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean": 0.5}, "mean must be"),
        ({"mean": math.nan}, "mean must be"),
        ({"shape": -1.0}, "shape must be"),
        ({"shape": math.nan}, "shape must be"),
        ({"inner_queries": 0}, "inner_queries must be"),
        ({"relation": "replace_one"}, "relation must be the inner"),
        ({"inner": "full"}, "inner must be an Event"),
    ],
)
def test_wrong_settings(events, changes, message):
    good = {
        "relation": "add_or_remove_one",
        "inner": events.full(1.0),
        "inner_queries": 3,
        "mean": 2.0,
        "shape": math.inf,
    }
    with pytest.raises(ValueError, match=message):
        RepeatAndSelectEvent(**{**good, **changes})


def test_a_condition_changes_no_number_and_is_told(events):
    for inner in (events.poisson(0.02, 1.0), events.fixed(1.0), events.full(2.0), events.share(0.5, 1e-6)):
        event = acc.ConditionalEvent(relation=inner.relation, inner=inner, condition_text="Hessians are bounded by 3")
        assert epsilon(event, 20) == pytest.approx(epsilon(inner, 20), rel=1e-9)
        assert acc.delta([acc.Spend(event, 20)], 1.0).delta == acc.delta([acc.Spend(inner, 20)], 1.0).delta
        assert event.condition == "Hessians are bounded by 3"
        assert "if Hessians are bounded by 3" in event.describe()
        assert event.per_query == inner.per_query
        assert event.guarantee(2).additive_delta == inner.guarantee(2).additive_delta


def test_conditions_add_up(events):
    inner = acc.ConditionalEvent(relation="zero_out_one", inner=events.full(1.0, "zero_out_one"), condition_text="a")
    outer = acc.ConditionalEvent(relation="zero_out_one", inner=inner, condition_text="b")
    assert outer.condition == "b; a"
    assert best_of(inner, 2.0, queries=1).condition == "a"


def test_a_condition_passes_views_on(events):
    inner = events.unit(0.1, 2.0, 2)
    event = acc.ConditionalEvent(relation=inner.relation, inner=inner, condition_text="x")
    orders = np.array([2.0, 5.0])
    assert np.array_equal(event.guarantee(3).rdp(orders), inner.guarantee(3).rdp(orders))
    assert event.guarantee(3).pairs() == inner.guarantee(3).pairs()
