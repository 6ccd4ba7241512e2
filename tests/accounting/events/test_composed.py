"""Events of several events: all of them, or the worst of them."""

import json
import math

import numpy as np
import pytest

from tacita import accounting as acc
from tacita.accounting.renyi_curve import ORDERS
from tacita.error_feedback import InterleavedEvent, proved_events
from tacita.errors import LedgerError
from tacita.tables.selection_events import ComposedEvent, RepeatAndSelectEvent, WorstOfEvent
from tests.accounting.events.feedback import QUERIES, RATE, hidden_every, session_epsilon
from tests.accounting.library_pld import library_pld

DELTA = 1e-5
RELATION = "add_or_remove_one"


def composed(*spends, kind=ComposedEvent):
    return kind(
        relation=spends[0].event.relation,
        parts=tuple(spend.event for spend in spends),
        part_queries=tuple(spend.queries for spend in spends),
    )


def worst_of(*spends):
    return composed(*spends, kind=WorstOfEvent)


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
    alone = [spend.event.guarantee(spend.queries).rdp(ORDERS) for spend in (training, score)]
    assert event.guarantee(1).rdp(ORDERS) == pytest.approx(alone[0] + alone[1], rel=1e-12)
    assert event.guarantee(3).rdp(ORDERS) == pytest.approx(3 * (alone[0] + alone[1]), rel=1e-12)
    assert np.all(event.guarantee(0).rdp(ORDERS) == 0)


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
    assert event.guarantee(2).mu == pytest.approx(math.sqrt(2) * math.hypot(2 / 3, 1 / 2))
    assert event.guarantee(0).mu == 0
    assert worst_of(acc.Spend(events.full(3.0), 4), acc.Spend(events.full(2.0), 1)).guarantee(2).mu == pytest.approx(
        math.sqrt(2) * 2 / 3
    )


def test_the_worst_is_the_maximum_order_by_order(training, events):
    """Two curves that cross: neither alone bounds the worst."""
    loud, quiet = events.poisson(0.02, 1.0), events.full(2.0)
    curves = [loud.guarantee(150).rdp(ORDERS), quiet.guarantee(1).rdp(ORDERS)]
    assert (curves[0] < curves[1]).any()
    assert (curves[1] < curves[0]).any()
    event = worst_of(acc.Spend(loud, 150), acc.Spend(quiet, 1))
    assert np.array_equal(event.guarantee(1).rdp(ORDERS), np.maximum(*curves))
    pld, parts = (
        library_pld(event.guarantee(1), 2.0**-10),
        [
            library_pld(spend.event.guarantee(spend.queries), 2.0**-10)
            for spend in (acc.Spend(loud, 150), acc.Spend(quiet, 1))
        ],
    )
    for at in (0.0, 0.3, 1.0, 3.0):
        deltas = [part.get_delta_for_epsilon(at) for part in parts]
        assert max(deltas) * 0.999 <= pld.get_delta_for_epsilon(at) <= max(deltas) * 1.01 + 1e-10
    assert epsilon(acc.Spend(event, 1)) >= max(epsilon(acc.Spend(loud, 150)), epsilon(acc.Spend(quiet, 1)))


def test_what_is_added_to_delta(events):
    counts = acc.StableCountsEvent(
        relation=RELATION, max_contribution=(1.0,), noise_std=(4.0,), failure_probability=1e-7
    )
    spends = acc.Spend(counts, 1), acc.Spend(events.share(0.5, 3e-7), 1)
    assert composed(*spends).guarantee(2).additive_delta == pytest.approx(8e-7)
    assert worst_of(*spends).guarantee(2).additive_delta == pytest.approx(6e-7)
    gap = acc.CoupledEvent(relation=RELATION, inner=events.full(2.0), failure_probability=1e-8)
    assert composed(acc.Spend(gap, 1), acc.Spend(gap, 1)).guarantee(1).coupling_gap == pytest.approx(2e-8)
    assert composed(acc.Spend(gap, 1), acc.Spend(gap, 1)).guarantee(3).coupling_gap == pytest.approx(6e-8)
    assert worst_of(acc.Spend(gap, 1), acc.Spend(events.full(2.0), 1)).guarantee(1).coupling_gap == pytest.approx(1e-8)


def test_pure_epsilons(events):
    laplace = acc.LaplaceEvent(relation=RELATION, l1_sensitivity=1.0, scale=4.0)
    spends = acc.Spend(laplace, 2), acc.Spend(laplace, 1)
    assert composed(*spends).guarantee(2).pure_epsilon == pytest.approx(1.5)
    assert worst_of(*spends).guarantee(2).pure_epsilon == pytest.approx(1.0)
    assert composed(acc.Spend(laplace, 1), acc.Spend(events.full(1.0), 1)).guarantee(1).pure_epsilon is None


def test_what_it_says(training, score, events):
    held = acc.ConditionalEvent(relation=RELATION, inner=events.full(1.0), condition_text="a")
    event = composed(training, score, acc.Spend(held, 1), acc.Spend(held, 2))
    assert event.condition == "a"
    assert event.per_query
    assert event.sampler == training.event.sampler
    assert "150 x (" in event.describe()
    assert not composed(training, acc.Spend(events.full(0.0), 1)).guarantee(1).private
    assert not worst_of(training, acc.Spend(events.full(0.0), 1)).guarantee(1).private
    assert not composed(acc.Spend(best_of(training), 1), score).per_query


def best_of(spend):
    return RepeatAndSelectEvent(
        relation=spend.event.relation, inner=spend.event, inner_queries=spend.queries, mean=3.0, shape=1.0
    )


@pytest.mark.parametrize("kind", [ComposedEvent, WorstOfEvent])
def test_to_the_ledger_and_back(kind, training, score):
    inner = composed(training, score, kind=kind)
    event = RepeatAndSelectEvent(relation=RELATION, inner=inner, inner_queries=1, mean=4.0, shape=1.0)
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
        ComposedEvent(relation=RELATION, parts=(training,), part_queries=(1,))


def test_the_best_of_several_costs_by_the_whole_run(training, score):
    """A selection that leaves the score out of what a run spends would report less."""
    whole = RepeatAndSelectEvent(
        relation=RELATION, inner=composed(training, score), inner_queries=1, mean=10.0, shape=1.0
    )
    without = RepeatAndSelectEvent(relation=RELATION, inner=training.event, inner_queries=150, mean=10.0, shape=1.0)
    assert epsilon(acc.Spend(whole, 1)) > 1.01 * epsilon(acc.Spend(without, 1))


# Queries that take turns.


def test_an_error_injected_every_mth_query_costs_less():
    """The unamplified part shrinks by the root of m."""
    each, fifth = hidden_every(1), hidden_every(5)
    mu = acc.gaussian_mu(session_epsilon(each), 1e-5)
    assert acc.gaussian_mu(session_epsilon(fifth), 1e-5) == pytest.approx(mu / math.sqrt(5), rel=0.01)
    assert session_epsilon(hidden_every(5), 4) == pytest.approx(
        session_epsilon(hidden_every(10), 4)
    )  # no injection yet
    assert session_epsilon(hidden_every(5), 4) < session_epsilon(hidden_every(5), 5)


def test_turns_compose_both_events(events):
    event = hidden_every(5, std=20.0)
    parts = [acc.Spend(event.inner, 30), acc.Spend(event.between, 120)]
    assert session_epsilon(event) == pytest.approx(acc.epsilon(parts, 1e-5).epsilon, rel=1e-3)
    np.testing.assert_allclose(
        event.guarantee(QUERIES).rdp(ORDERS),
        event.inner.guarantee(30).rdp(ORDERS) + event.between.guarantee(120).rdp(ORDERS),
        rtol=1e-12,
    )
    unamplified = hidden_every(5, std=20.0, relation="replace_one")
    assert unamplified.guarantee(150).mu == pytest.approx(math.sqrt(30 * 22**2 + 120 * 2**2) / 20)


@pytest.mark.parametrize("relation", [RELATION, "replace_one"])  # sampled queries, and Gaussian ones
def test_turns_without_noise_in_one_of_two_are_not_private(events, relation):
    noisy, bare = (
        acc.GaussianSumEvent(relation=relation, sampling=acc.PoissonLaw(0.5), max_contribution=(1.0,), noise_std=(std,))
        for std in (2.0, 0.0)
    )
    for inner, between in ((noisy, bare), (bare, noisy)):
        event = InterleavedEvent(relation=relation, inner=inner, between=between, every=2)
        assert not event.guarantee(4).private
        assert session_epsilon(event) == math.inf


def test_turns_of_residuals(events):
    law = acc.PoissonLaw(RATE)
    values = dict(max_contribution=(1.0, 2.0), noise_std=(2.0, 3.0))
    both = proved_events.released_residual_event(law, "add_or_remove_one", **values)
    third = proved_events.released_residual_event(law, "add_or_remove_one", **values, every=3)
    assert (
        session_epsilon(acc.gaussian_sum_event(law, (1.0,), (2.0,), "add_or_remove_one"))
        < session_epsilon(third)
        < session_epsilon(both)
    )
    passes = proved_events.released_residual_event(
        acc.DisjointLaw(own_coin=True), "add_or_remove_one", **values, every=3
    )
    assert passes == acc.gaussian_sum_event(acc.DisjointLaw(own_coin=True), *values.values(), "add_or_remove_one")


def conditional(event, text):
    return acc.ConditionalEvent(relation=event.relation, inner=event, condition_text=text)


def test_turns_say_all_that_either_kind_must_say(events):
    plain, hidden = events.poisson(RATE, 1.0), events.hidden()

    def turns(inner, between):
        return InterleavedEvent(relation="add_or_remove_one", inner=inner, between=between, every=2)

    assert turns(hidden, plain).condition is None
    assert turns(conditional(hidden, "a"), conditional(plain, "b")).condition == "a; b"
    assert turns(conditional(hidden, "a"), conditional(plain, "a")).condition == "a"
    assert turns(hidden, conditional(plain, "b")).condition == "b"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(every=1), "every must be an integer >= 2"),
        (dict(relation="replace_one"), "relation must be that of inner"),
        (
            dict(
                between=acc.GaussianSumEvent(
                    sampling=acc.DisjointLaw(own_coin=True),
                    relation="add_or_remove_one",
                    max_contribution=(1.0,),
                    noise_std=(1.0,),
                )
            ),
            "between must be an event that composes",
        ),
        (
            dict(
                inner=acc.StableCountsEvent(
                    relation="add_or_remove_one",
                    failure_probability=1e-7,
                    max_contribution=(1.0,),
                    noise_std=(1.0,),
                )
            ),
            "inner must be an event that composes",
        ),
    ],
)
def test_turns_are_refused(events, changes, says):
    good = dict(relation="add_or_remove_one", inner=events.hidden(), between=events.poisson(RATE, 1.0), every=2)
    with pytest.raises(ValueError, match=says):
        InterleavedEvent(**{**good, **changes})
