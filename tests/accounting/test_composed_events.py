"""Events of several events: all of them, or the worst of them."""

import json
import math

import numpy as np
import pytest

from tacita import accounting as acc
from tacita.accounting.accountant import ORDERS
from tacita.errors import LedgerError

DELTA = 1e-5
RELATION = "add_or_remove_one"


def composed(*spends, kind=acc.ComposedEvent):
    return kind(
        relation=spends[0].event.relation,
        parts=tuple(spend.event for spend in spends),
        part_queries=tuple(spend.queries for spend in spends),
    )


def worst_of(*spends):
    return composed(*spends, kind=acc.WorstOfEvent)


def epsilon(*spends):
    return acc.epsilon(spends, DELTA).epsilon


@pytest.fixture
def training(events):
    return acc.Spend(events.poisson(0.02, 1.0), 150)


@pytest.fixture
def score(events):
    return acc.Spend(events.full(5.0), 1)


def test_all_of_them_is_the_sum_order_by_order(training, score):
    event = composed(training, score)
    alone = [spend.event.rdp(spend.queries, ORDERS) for spend in (training, score)]
    assert event.rdp(1, ORDERS) == pytest.approx(alone[0] + alone[1], rel=1e-12)
    assert event.rdp(3, ORDERS) == pytest.approx(3 * (alone[0] + alone[1]), rel=1e-12)
    assert np.all(event.rdp(0, ORDERS) == 0)


def test_all_of_them_is_the_composition_of_the_distributions(training, score):
    """As the accountant composes the two: within what the discretisation of the Gaussian query adds, and never less."""
    together = epsilon(training, score)
    assert together <= epsilon(acc.Spend(composed(training, score), 1)) <= together * 1.002


def test_rounds_of_all_of_them_compose(training, score):
    """Two rounds are two of each."""
    twice = epsilon(acc.Spend(training.event, 300), acc.Spend(score.event, 2))
    assert twice <= epsilon(acc.Spend(composed(training, score), 2)) <= twice * 1.002


def test_gaussian_queries_together_are_one(events):
    event = composed(acc.Spend(events.full(3.0), 4), acc.Spend(events.full(2.0), 1))
    assert event.gaussian_mu(2) == pytest.approx(math.sqrt(2) * math.hypot(2 / 3, 1 / 2))
    assert event.gaussian_mu(0) == 0
    assert worst_of(acc.Spend(events.full(3.0), 4), acc.Spend(events.full(2.0), 1)).gaussian_mu(2) == pytest.approx(
        math.sqrt(2) * 2 / 3
    )


def test_the_worst_is_the_maximum_order_by_order(training, events):
    """Two curves that cross: neither alone bounds the worst."""
    loud, quiet = events.poisson(0.02, 1.0), events.full(2.0)
    curves = [loud.rdp(150, ORDERS), quiet.rdp(1, ORDERS)]
    assert (curves[0] < curves[1]).any()
    assert (curves[1] < curves[0]).any()
    event = worst_of(acc.Spend(loud, 150), acc.Spend(quiet, 1))
    assert np.array_equal(event.rdp(1, ORDERS), np.maximum(*curves))
    assert event.pld(1) is None
    assert epsilon(acc.Spend(event, 1)) >= max(epsilon(acc.Spend(loud, 150)), epsilon(acc.Spend(quiet, 1)))


def test_what_is_added_to_delta(events):
    counts = acc.StableCountsEvent(
        relation=RELATION, max_contribution=(1.0,), noise_std=(4.0,), failure_probability=1e-7
    )
    spends = acc.Spend(counts, 1), acc.Spend(events.share(0.5, 3e-7), 1)
    assert composed(*spends).additive_delta(2) == pytest.approx(8e-7)
    assert worst_of(*spends).additive_delta(2) == pytest.approx(6e-7)
    gap = acc.CoupledEvent(relation=RELATION, inner=events.full(2.0), failure_probability=1e-8)
    assert composed(acc.Spend(gap, 1), acc.Spend(gap, 1)).coupling_gap(1) == pytest.approx(2e-8)
    assert worst_of(acc.Spend(gap, 1), acc.Spend(events.full(2.0), 1)).coupling_gap(1) == pytest.approx(1e-8)


def test_pure_epsilons(events):
    laplace = acc.LaplaceEvent(relation=RELATION, l1_sensitivity=1.0, scale=4.0)
    spends = acc.Spend(laplace, 2), acc.Spend(laplace, 1)
    assert composed(*spends).pure_epsilon(2) == pytest.approx(1.5)
    assert worst_of(*spends).pure_epsilon(2) == pytest.approx(1.0)
    assert composed(acc.Spend(laplace, 1), acc.Spend(events.full(1.0), 1)).pure_epsilon(1) is None


def test_what_it_says(training, score, events):
    held = acc.ConditionalEvent(relation=RELATION, inner=events.full(1.0), condition_text="a")
    event = composed(training, score, acc.Spend(held, 1), acc.Spend(held, 2))
    assert event.condition == "a"
    assert event.per_query
    assert event.sampler == training.event.sampler
    assert "150 x (" in event.describe()
    assert not composed(training, acc.Spend(events.full(0.0), 1)).is_private()
    assert not worst_of(training, acc.Spend(events.full(0.0), 1)).is_private()
    assert not composed(acc.Spend(best_of(training), 1), score).per_query


def best_of(spend):
    return acc.RepeatAndSelectEvent(
        relation=spend.event.relation, inner=spend.event, inner_queries=spend.queries, mean=3.0, shape=1.0
    )


@pytest.mark.parametrize("kind", [acc.ComposedEvent, acc.WorstOfEvent])
def test_to_the_ledger_and_back(kind, training, score):
    inner = composed(training, score, kind=kind)
    event = acc.RepeatAndSelectEvent(relation=RELATION, inner=inner, inner_queries=1, mean=4.0, shape=1.0)
    assert acc.Event.from_dict(json.loads(json.dumps(event.to_dict()))) == event


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": [3.0]}, "object"),
        ({"parts": "all"}, "'parts' must be a list of events"),
        ({"parts": []}, "same length"),
        ({"part_queries": [1.5, 1]}, "'part_queries' must be"),
        ({"part_queries": [1]}, "same length"),
        ({"part_queries": [0, 1]}, "part_queries must be"),
    ],
)
def test_what_is_no_such_event_is_refused(training, score, changes, message):
    fields = composed(training, score).to_dict()
    with pytest.raises(LedgerError, match=message):
        acc.Event.from_dict({**fields, **changes})


def test_parts_have_one_relation(training, events):
    with pytest.raises(ValueError, match="relation must be that of every part"):
        composed(training, acc.Spend(events.full(1.0, "replace_one"), 1))
    with pytest.raises(ValueError, match="parts must be Events"):
        acc.ComposedEvent(relation=RELATION, parts=(training,), part_queries=(1,))


def test_the_best_of_several_costs_by_the_whole_run(training, score):
    """A selection that leaves the score out of what a run spends would report less."""
    whole = acc.RepeatAndSelectEvent(
        relation=RELATION, inner=composed(training, score), inner_queries=1, mean=10.0, shape=1.0
    )
    without = acc.RepeatAndSelectEvent(relation=RELATION, inner=training.event, inner_queries=150, mean=10.0, shape=1.0)
    assert epsilon(acc.Spend(whole, 1)) > 1.01 * epsilon(acc.Spend(without, 1))
