"""The table of cells: what is proved gives its event, what is not is refused with the way out."""

import math

import numpy as np
import pytest

from tacita import accounting as acc
from tacita import error_feedback
from tacita.accounting.events.sampled import REFUSED, table_of
from tacita.accounting.sampling_laws import AssignedLaw
from tacita.error_feedback import proved_events
from tacita.errors import UnsupportedEventError
from tests.accounting.events.feedback import BATCH, RATE, session_epsilon

ALL = set(acc.RELATIONS)
PROVED = [  # law, relations, queries of 30 that a record can be in (None: sampling amplifies)
    (acc.PoissonLaw(0.02), ALL, None),
    (acc.TruncatedPoissonLaw(0.02, 5, 100), ALL, None),
    (acc.FullBatchLaw(), ALL, 30),
    (acc.FixedSizeLaw(10, 100), {"replace_one"}, None),
    (acc.DisjointLaw(own_coin=False), {"replace_one", "zero_out_one"}, 1),
    (acc.ShuffledEpochsLaw(10, own_coin=True), ALL, 3),
    (acc.ShuffledEpochsLaw(10, own_coin=False), {"replace_one", "zero_out_one"}, 3),
    (acc.CyclicLaw(10, own_coin=True), ALL, 3),
    (acc.CyclicLaw(10, own_coin=False), {"replace_one", "zero_out_one"}, 3),
    (acc.CyclicPoissonLaw(10, 0.1, own_coin=True), ALL, None),
    (acc.CyclicPoissonLaw(10, 0.1, own_coin=False), {"replace_one", "zero_out_one"}, None),
    (acc.PoissonUnitLaw(0.02, 4), {"add_or_remove_one"}, None),
]
OLDER = [(acc.DisjointLaw(own_coin=True, num_batches=30), ALL, 1)]  # that older ledgers name, and no sampler states


@pytest.mark.parametrize(("law", "relations", "draws"), PROVED + OLDER)
def test_every_cell(law, relations, draws):
    for relation in acc.RELATIONS:
        if relation in relations:
            event = acc.gaussian_sum_event(law, (1.0,), (2.0,), relation)
            assert type(event) is acc.GaussianSumEvent
            assert event.sampling == law
            assert event.relation == relation
            found = event.guarantee(30)
            secret = isinstance(law, AssignedLaw) and law.secret_batches(relation) > 1
            assert (found.mu is None) == (draws is None or secret)
            assert draws is None or found.unsampled_mu == pytest.approx(acc.moved(relation) * draws**0.5 / 2)
            assert acc.epsilon([acc.Spend(event, 3)], 1e-5).epsilon > 0
        else:
            with pytest.raises(UnsupportedEventError) as caught:
                acc.gaussian_sum_event(law, (1.0,), (2.0,), relation)
            named = str(caught.value).split("there is one under")[1]
            assert {other for other in ALL if other in named} == relations


def test_the_table_is_that_of_the_code():
    rows = table_of(acc.GaussianSumEvent)
    assert len(rows) == len(PROVED)
    for law, relations, _ in PROVED:
        cells = rows[law.words]
        assert list(cells) == list(acc.RELATIONS)
        assert {relation for relation, text in cells.items() if text != REFUSED} == relations


@pytest.mark.parametrize("relation", acc.RELATIONS)
@pytest.mark.parametrize(("queries", "turns"), [(1, 1), (10, 1), (11, 2), (30, 3)])
def test_a_cycle_of_sampled_turns_costs_one_query_of_poisson_sampling(relation, queries, turns):
    def epsilon(law, queries):
        return acc.epsilon([acc.Spend(acc.gaussian_sum_event(law, (1.0,), (1.5,), relation), queries)], 1e-5).epsilon

    assert epsilon(acc.CyclicPoissonLaw(10, 0.2, own_coin=True), queries) == epsilon(acc.PoissonLaw(0.2), turns)


def test_settings_reach_the_event():
    event = acc.gaussian_sum_event(acc.FixedSizeLaw(10, 100), (1.5,), (2.0,), "replace_one")
    assert event.sampling == acc.FixedSizeLaw(10, 100)
    assert (event.max_contribution, event.noise_std) == ((1.5,), (2.0,))


@pytest.mark.parametrize(
    ("law", "settings"),
    [
        (acc.PoissonLaw, (0.0,)),
        (acc.PoissonLaw, (32,)),
        (acc.FixedSizeLaw, (11, 10)),
        (acc.FixedSizeLaw, (0, 10)),
        (acc.ShuffledEpochsLaw, (0, True)),
        (acc.CyclicLaw, (0, True)),
        (acc.CyclicPoissonLaw, (0, 0.5, True)),
        (acc.CyclicPoissonLaw, (2, 1.5, True)),
        (acc.PoissonUnitLaw, (0.5, 0)),
    ],
)
def test_a_law_refuses_wrong_settings(law, settings):
    with pytest.raises(ValueError, match="must be"):
        law(*settings)


def test_an_unknown_relation_is_no_cell():
    with pytest.raises(ValueError, match="neighboring_relation must be one of"):
        acc.gaussian_sum_event(acc.FullBatchLaw(), (1.0,), (1.0,), "substitute")  # type: ignore[arg-type]


# Error feedback.


@pytest.mark.parametrize(("residual", "std"), [(1, 0.00131069), (9, 0.00839252)])
def test_noise_of_released_residuals(residual, std):
    event = proved_events.released_residual_event(
        acc.PoissonLaw(RATE), "add_or_remove_one", max_contribution=(1.0, residual), noise_std=(BATCH * std,) * 2
    )
    assert session_epsilon(event) == pytest.approx(2, rel=5e-3)


def test_the_least_noise_of_both_blocks_is_that_of_one_threshold():
    """Power z^2 (C1 + C3)^2, against 2 z^2 (C1^2 + C3^2) with equal noise."""
    for contribution, residual in ((1.0, 1.0), (1.0, 9.0), (2.0, 0.1)):
        ratio = np.geomspace(1e-3, 1e3, 20_001)  # of the squared noises, at noise multiplier 1
        first = contribution**2 + residual**2 / ratio
        power = first * (1 + ratio)
        best = int(np.argmin(power))
        assert power[best] == pytest.approx((contribution + residual) ** 2, rel=1e-6)
        assert ratio[best] == pytest.approx(residual / contribution, rel=1e-3)


def test_every_cell_of_feedback():
    table = error_feedback.feedback_table()
    assert table["PrivateFeedback"]["Poisson sampling"] == {
        "add_or_remove_one": "the batch amplified, the error not",
        "replace_one": "every query, no amplification",
        "zero_out_one": "the batch amplified, the error not",
    }
    refused = {
        (kind, law, relation)
        for kind, laws in table.items()
        for law, cells in laws.items()
        for relation, charge in cells.items()
        if charge == "refused"
    }
    assert ("BoundedFeedback", "Fixed size without replacement", "replace_one") in refused
    assert ("PrivateFeedback", "Fixed size without replacement", "add_or_remove_one") in refused
    assert ("BoundedFeedback", "Poisson sampling of rows, several rows a unit", "add_or_remove_one") in refused


def test_each_cell_has_an_event_and_each_refusal_none():
    laws = {
        law.words: law
        for law in (
            acc.PoissonLaw(0.5),
            acc.TruncatedPoissonLaw(0.5, 1, 2),
            acc.FullBatchLaw(),
            acc.FixedSizeLaw(1, 2),
            acc.ShuffledEpochsLaw(2, own_coin=True),
            acc.DisjointLaw(own_coin=False),
            acc.ShuffledEpochsLaw(2, own_coin=False),
            acc.CyclicLaw(2, own_coin=True),
            acc.CyclicLaw(2, own_coin=False),
            acc.CyclicPoissonLaw(2, 0.5, own_coin=True),
            acc.CyclicPoissonLaw(2, 0.5, own_coin=False),
            acc.PoissonUnitLaw(0.5, 2),
        )
    }
    makers = {
        "PrivateFeedback": lambda law, relation: proved_events.hidden_error_event(
            law, relation, max_contribution=1.0, max_error_change=2.0, noise_std=9.0
        ),
        "BoundedFeedback": lambda law, relation: proved_events.bounded_residual_event(
            law, relation, max_contribution=1.0, max_residual=2.0, noise_std=9.0
        ),
        "ReleasedFeedback": lambda law, relation: proved_events.released_residual_event(
            law, relation, max_contribution=(1.0, 2.0), noise_std=(9.0, 9.0)
        ),
    }
    for kind, cells_of in error_feedback.feedback_table().items():
        assert set(cells_of) == set(laws)
        for words, cells in cells_of.items():
            for relation, charge in cells.items():
                if charge == "refused":
                    with pytest.raises(UnsupportedEventError, match="no guarantee is proved"):
                        makers[kind](laws[words], relation)
                else:
                    assert 0 < session_epsilon(makers[kind](laws[words], relation), 4) < math.inf
