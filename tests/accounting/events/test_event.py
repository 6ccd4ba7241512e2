"""Events: strict reading of what the ledger holds, and what every event must say of itself."""

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacita import accounting as acc
from tacita.accounting.events import Event
from tacita.error_feedback import InterleavedEvent
from tacita.errors import LedgerError, UnsupportedEventError
from tacita.tables.selection_events import ComposedEvent, WorstOfEvent


def ours(kinds):
    return {name for name, kind in kinds.items() if kind.__module__.startswith("tacita.") and not _abstract(kind)}


def _abstract(kind):
    return bool(getattr(kind, "__abstractmethods__", None))


def test_the_tests_know_every_event(events):
    assert {type(event).__name__ for event in events.one_of_each()} == ours(Event.kinds)


def test_the_tests_know_every_law(events):
    every = [event for event in events.one_of_each() if type(event) is acc.GaussianSumEvent]
    assert {type(event.sampling).__name__ for event in every} == ours(acc.SamplingLaw.kinds)


def test_every_event_survives_a_json_line(events):
    for event in events.one_of_each():
        line = json.dumps(event.to_dict(), allow_nan=False)
        assert Event.from_dict(json.loads(line)) == event


def test_every_event_says_what_it_is_in_one_line(events):
    for event in events.one_of_each():
        assert event.describe()
        assert event.sampler
        assert "\n" not in event.describe() + event.sampler
        assert all(isinstance(text, str) and text for text in event.assumptions)


def test_every_event_costs_nothing_without_queries(events):
    for event in events.one_of_each():
        assert acc.epsilon([acc.Spend(event, 0)], 1e-5).epsilon == 0
        assert acc.delta([acc.Spend(event, 0)], 0.0).delta == 0


def test_only_the_conditional_event_has_a_condition(events):
    conditions = {type(event).__name__: event.condition for event in events.one_of_each() if event.condition}
    assert conditions == {"ConditionalEvent": "every loss is 1-smooth"}


def test_events_that_do_not_compose_query_by_query(events):
    every = events.one_of_each()
    whole = {
        (type(event.sampling) if type(event) is acc.GaussianSumEvent else type(event)).__name__
        for event in every
        if not event.per_query
    }
    assert whole == {
        "DisjointLaw",
        "ShuffledEpochsLaw",
        "CyclicLaw",
        "CyclicPoissonLaw",
        "CorrelatedEvent",
        "ApproximateDPEvent",
        "RepeatAndSelectEvent",
        "AboveThresholdEvent",
        "FirstDrawEvent",
        "InterleavedEvent",
        "BoundedResidualEvent",
        "ShuffledSumEvent",  # of disjoint batches
        "ClippedSamplesEvent",
    }


def test_describe_in_the_words_of_the_statement(events):
    assert events.poisson(0.02, 1.1).describe() == (
        "Poisson sampling, sample rate 0.02, noise_std 1.1 on a sum with max_contribution 1"
    )


def full_batch(**settings_):
    return acc.GaussianSumEvent(sampling=acc.FullBatchLaw(), **settings_)


finite = st.floats(0, 1e12, allow_nan=False)


@given(
    relation=st.sampled_from(acc.RELATIONS),
    blocks=st.lists(st.tuples(st.one_of(finite, st.just(math.inf)), finite), min_size=1, max_size=4),
    rate=st.floats(0, 1, exclude_min=True),
    per_epoch=st.integers(1, 10**9),
)
@settings(max_examples=50, deadline=None)
def test_round_trip_of_any_settings(relation, blocks, rate, per_epoch):
    contribution, noise = zip(*blocks, strict=True)
    common = {"relation": relation, "max_contribution": contribution, "noise_std": noise}
    for event in (
        acc.GaussianSumEvent(sampling=acc.PoissonLaw(rate), **common),
        acc.GaussianSumEvent(sampling=acc.ShuffledEpochsLaw(per_epoch, own_coin=True), **common),
        acc.ConditionalEvent(
            relation=relation,
            inner=acc.GaussianSumEvent(sampling=acc.FullBatchLaw(), **common),
            condition_text="it holds",
        ),
    ):
        assert Event.from_dict(json.loads(json.dumps(event.to_dict(), allow_nan=False))) == event


def damaged(good, **changes):
    return {**good, **changes}


GOOD = {
    "event": "GaussianSumEvent",
    "relation": "replace_one",
    "max_contribution": [1.0],
    "noise_std": [1.0],
    "sampling": {"law": "PoissonLaw", "sample_rate": 0.02},
}


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "GaussianSumEvent",
        {},
        {key: value for key, value in GOOD.items() if key != "noise_std"},
        damaged(GOOD, event="os.system"),
        damaged(GOOD, event="Event"),
        damaged(GOOD, event="SampledEvent"),
        damaged(GOOD, event="PoissonLaw"),
        damaged(GOOD, event=3),
        damaged(GOOD, surplus=1),
        damaged(GOOD, relation="add_one"),
        damaged(GOOD, relation=None),
        damaged(GOOD, max_contribution=1.0),
        damaged(GOOD, max_contribution=["1.0"]),
        damaged(GOOD, max_contribution=[True]),
        damaged(GOOD, max_contribution=[math.nan]),
        damaged(GOOD, max_contribution=[-1.0]),
        damaged(GOOD, max_contribution=[]),
        damaged(GOOD, noise_std=[1.0, 1.0]),
        damaged(GOOD, noise_std=["inf"]),
        *(damaged(GOOD, sampling={"law": "PoissonLaw", "sample_rate": rate}) for rate in (0.0, 1.5, math.nan, "0.02")),
        damaged(GOOD, sampling={"law": "PoissonLaw", "sample_rate": {"event": "ZCDPEvent"}}),
        damaged(GOOD, sampling={"law": "PoissonLaw", "sample_rate": 0.02, "surplus": 1}),
        damaged(GOOD, sampling={"law": "PoissonLaw"}),
        damaged(GOOD, sampling={"law": "GaussianSumEvent"}),
        damaged(GOOD, sampling={"law": "SamplingLaw"}),
        damaged(GOOD, sampling={"law": "DisjointLaw", "own_coin": 1}),
        damaged(GOOD, sampling=GOOD),
        damaged(GOOD, sampling="PoissonLaw"),
        damaged(GOOD, sampling=None),
        {"event": "ConditionalEvent", "relation": "replace_one", "inner": {}, "condition_text": "x"},
        {"event": "ConditionalEvent", "relation": "add_or_remove_one", "inner": GOOD, "condition_text": "x"},
        {"event": "ConditionalEvent", "relation": "replace_one", "inner": GOOD, "condition_text": " "},
    ],
)
def test_what_is_not_an_event_is_refused_in_one_line(data):
    with pytest.raises(LedgerError) as caught:
        Event.from_dict(data)
    assert "\n" not in str(caught.value)


def test_the_undamaged_line_is_read():
    assert Event.from_dict(GOOD).to_dict() == GOOD


def test_an_event_is_frozen_and_hashable(events):
    for event in events.one_of_each():
        assert hash(event) == hash(dataclasses.replace(event))
        with pytest.raises(dataclasses.FrozenInstanceError):
            event.relation = "zero_out_one"


@pytest.mark.parametrize("queries", [-1, 1.5, True, "3"])
def test_a_spend_counts_whole_queries(events, queries):
    with pytest.raises(ValueError, match="queries"):
        acc.Spend(events.full(1.0), queries)


def test_a_spend_holds_an_event():
    with pytest.raises(ValueError, match="event must be an Event"):
        acc.Spend("full", 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "settings_", "message"),
    [
        (full_batch, {"max_contribution": 1.0, "noise_std": (1.0,)}, "tuple"),
        (full_batch, {"max_contribution": (1.0,), "noise_std": (math.nan,)}, "noise_std"),
        (full_batch, {"max_contribution": (1.0,), "noise_std": (-1.0,)}, "noise_std"),
        (acc.LaplaceEvent, {"l1_sensitivity": 1.0, "scale": -1.0}, "scale"),
        (acc.ZCDPEvent, {"rho": math.inf}, "rho"),
        (acc.ApproximateDPEvent, {"epsilon": 1.0, "delta_share": 1.0}, "delta_share"),
        (acc.ApproximateDPEvent, {"epsilon": -1.0, "delta_share": 0.0}, "epsilon"),
    ],
)
def test_wrong_settings_are_refused_by_name(kind, settings_, message):
    with pytest.raises(ValueError, match=message):
        kind(relation="add_or_remove_one", **settings_)


@pytest.mark.parametrize("relation", ["replace_one", "zero_out_one"])
def test_mixtures_serve_add_or_remove_only(relation):
    with pytest.raises(UnsupportedEventError, match="it has one under add_or_remove_one"):
        acc.MixtureOfGaussiansEvent(relation=relation, shifts=(0.0, 1.0), probabilities=(0.5, 0.5), noise_std=1.0)


def test_an_event_names_its_components_and_its_noise(events):
    """What the statement prints of an event is declared by it, however it is wrapped."""
    inner = events.poisson(0.02, 1.1)
    assert inner.components == ()
    assert inner.noise_settings == acc.NoiseSettings((1.1,), (1.0,), inner.query_mu)
    wrapped = acc.ConditionalEvent(relation=inner.relation, inner=inner, condition_text="it holds")
    both = ComposedEvent(relation=inner.relation, parts=(wrapped, inner), part_queries=(1, 1))
    assert (wrapped.components, both.components) == ((inner,), (wrapped, inner))
    assert both.noise_settings is None


def test_turns_are_hardened_if_both_kinds_of_query_are(events):
    inner = events.poisson(0.02, 1.1)
    hard = acc.HardenedEvent(relation=inner.relation, inner=inner, sums="alone")
    turns = [InterleavedEvent(relation=inner.relation, inner=hard, between=one, every=2) for one in (hard, inner)]
    assert [acc.hardening(event) for event in turns] == [hard, None]


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)], ids=["hardened first", "hardened last"])
def test_several_events_are_hardened_if_all_are(events, order):
    inner = events.poisson(0.02, 1.1)
    hard = acc.HardenedEvent(relation=inner.relation, inner=inner, sums="alone")
    for kind in (ComposedEvent, WorstOfEvent):
        both = kind(relation=inner.relation, parts=(hard, inner)[order], part_queries=(1, 1))
        assert acc.hardening(both) is None


# A ledger names a class by its name alone, so that no second class may have it.


def test_a_class_cannot_take_the_name_of_another():
    with pytest.raises(TypeError, match=r"tacita.accounting.events.laplace has a class ZCDPEvent already"):

        class ZCDPEvent(Event):
            """Another one, of which old ledgers know nothing."""

    with pytest.raises(TypeError, match="has a class PoissonLaw already"):

        class PoissonLaw(acc.SamplingLaw):
            """Another one."""

    line = acc.ZCDPEvent(relation="replace_one", rho=0.5).to_dict()
    assert Event.from_dict(line) == acc.ZCDPEvent(relation="replace_one", rho=0.5)


def test_a_field_cannot_have_the_name_under_which_lines_name_the_class():
    with pytest.raises(TypeError, match="lines name its class under 'event'"):

        class Misnamed(Event):
            event: str


def test_a_law_and_an_event_are_families_of_their_own():
    class Twice(Event):
        """An event of this name ..."""

    class Laws:
        class Twice(acc.SamplingLaw):
            """... and a law of this name are read from different fields."""

    assert Event.kinds["Twice"] is Twice
    assert acc.SamplingLaw.kinds["Twice"] is Laws.Twice


def test_a_class_that_is_defined_again_where_it_was_is_no_other():
    def define():
        class DefinedAgain(Event):
            """A cell of a notebook that is run twice."""

        return DefinedAgain

    define()
    again = define()
    assert Event.kinds["DefinedAgain"] is again


class NoDataclass(acc.SamplingLaw):
    words = "Plain"

    def describe(self):
        return "Plain"

    def assumptions(self, relation):
        return ()


def test_a_law_that_no_ledger_can_hold_is_refused_in_words():
    with pytest.raises(TypeError, match="NoDataclass must be a frozen dataclass: ledgers hold its fields"):
        acc.GaussianSumEvent(
            relation="add_or_remove_one", sampling=NoDataclass(), max_contribution=(1.0,), noise_std=(1.0,)
        ).to_dict()
