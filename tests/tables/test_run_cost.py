"""What one run may spend: the curve that is declared, and the ledger that is held against it."""

import dataclasses
import math

import numpy as np
import pytest

from tacita import accounting as acc
from tacita.accounting.renyi_curve import ORDERS
from tacita.errors import LedgerError, UnsupportedEventError
from tacita.ledger import Ledger
from tacita.tables import NumberOfRuns
from tacita.tables.run_cost import (
    all_of,
    calibrated,
    check_ledger,
    free_noise_multiplier,
    largest_mu,
    one_of,
    selection_event,
    worst_curve,
)

RELATION = "add_or_remove_one"
KEPT = acc.Part(split="s", kind="coin", index=0, fraction=0.9)
HELD = acc.Part(split="s", kind="coin", index=1, fraction=0.1)


def training(noise=2.0, contribution=1.0, queries=40, rate=0.1):
    event = acc.GaussianSumEvent(
        relation=RELATION,
        sampling=acc.PoissonLaw(rate),
        max_contribution=(contribution,),
        noise_std=(noise * contribution,),
    )
    return acc.Spend(event, queries)


def score(noise):
    return acc.Spend(acc.HistogramGaussianEvent(relation=RELATION, max_contribution=(1.0,), noise_std=(noise,)), 1)


def ledger(*sessions):
    made = Ledger(neighboring_relation=RELATION, privacy_unit="one row")
    for spend, part in sessions:
        made.register(spend.event, planned_queries=spend.queries, part=part)
    return made


def free_score(spend=None):
    """The loudest score that leaves the training's curve as it is."""
    spend = spend or training()
    return score((1 + 1e-9) / largest_mu(spend.event, spend.queries))


def test_the_largest_mu_leaves_the_curve_as_it_is():
    spend, loud = training(), free_score()
    curve = spend.event.guarantee(spend.queries).rdp(ORDERS)
    both = one_of([spend, loud]).guarantee(1).rdp(ORDERS)
    assert np.array_equal(both, curve)
    louder = score(0.99 / largest_mu(spend.event, spend.queries))
    assert (one_of([spend, louder]).guarantee(1).rdp(ORDERS) > curve).any()


def test_without_noise_or_without_a_curve_there_is_no_mu_left(monkeypatch):
    assert largest_mu(training(0.0).event) == 0
    whole = acc.GaussianSumEvent.guarantee
    without = lambda self, queries: dataclasses.replace(whole(self, queries), rdp=None)  # noqa: E731
    monkeypatch.setattr(acc.GaussianSumEvent, "guarantee", without)
    assert largest_mu(training().event) == 0
    with pytest.raises(UnsupportedEventError, match="needs an event with a Rényi curve"):
        check_ledger(ledger(), training().event)
    with pytest.raises(LedgerError, match="no selection can contain"):
        check_ledger(ledger((training(), None)), score(1.0).event)


def test_a_run_within_its_plan_passes():
    declared = one_of([training(), free_score()])
    check_ledger(ledger((training(), KEPT), (free_score(), HELD)), declared)
    check_ledger(ledger((training(contribution=0.3), KEPT)), declared)  # noise over threshold is what counts
    check_ledger(ledger((training(noise=2.5), None)), declared)
    check_ledger(ledger(), declared)
    check_ledger(ledger((training(), None), (free_score(), None)), all_of([training(), free_score()]))


def test_a_smaller_curve_of_another_mechanism_is_refused():
    """Its privacy profile, by which the selection is priced, may be larger somewhere."""
    other = acc.Spend(acc.LaplaceEvent(relation=RELATION, l1_sensitivity=1.0, scale=1e3), 1)
    assert np.all(other.event.guarantee(1).rdp(ORDERS) < 1e-2 * training().event.guarantee(40).rdp(ORDERS))
    with pytest.raises(LedgerError, match="planned more than was declared"):
        check_ledger(ledger((other, KEPT)), one_of([training(), free_score()]))
    check_ledger(ledger((other, KEPT)), one_of([training(), other]))


@pytest.mark.parametrize(
    "sessions",
    [
        [(training(noise=1.99), KEPT)],
        [(training(queries=41), KEPT)],
        [(training(rate=0.101), KEPT)],
        [(training(), KEPT), (score(1.0), HELD)],
        [(training(), KEPT), (free_score(), None)],
        [(training(), None), (free_score(), None)],
        [(training(), KEPT), (free_score(), KEPT)],
        [(training(0.0), KEPT)],
    ],
)
def test_a_run_that_plans_more_is_refused(sessions):
    with pytest.raises(LedgerError, match="planned more than was declared"):
        check_ledger(ledger(*sessions), one_of([training(), free_score()]))


def test_every_class_of_records_is_compared_by_mechanism():
    """Both parts keep to the declared curve, and one of them by a mechanism that was not declared."""
    other = acc.Spend(acc.LaplaceEvent(relation=RELATION, l1_sensitivity=1.0, scale=1e3), 1)
    for part, beside in ((KEPT, HELD), (HELD, KEPT)):
        with pytest.raises(LedgerError, match="planned more than was declared"):
            check_ledger(ledger((training(), part), (other, beside)), one_of([training(), free_score()]))


@pytest.mark.parametrize("share", [0.01, 0.25, 1.0])
def test_a_score_gets_its_share_of_the_curve(share):
    spend = training()
    curve = spend.event.guarantee(spend.queries).rdp(ORDERS)
    noise = free_noise_multiplier(spend.event, spend.queries, share)
    of_score = score(noise).event.guarantee(1).rdp(ORDERS)
    assert (of_score <= share * curve).all()
    assert (of_score * 1.01 > share * curve).any()


def test_what_no_selection_contains_is_refused():
    counts = acc.StableCountsEvent(
        relation=RELATION, max_contribution=(0.01,), noise_std=(40.0,), failure_probability=1e-9
    )
    share = ledger()
    share.register_share(0.001, 1e-9)
    failing = acc.CoupledEvent(relation=RELATION, inner=training(50.0).event, failure_probability=1e-12)
    for run in (ledger((acc.Spend(counts, 1), None)), share, ledger((acc.Spend(failing, 1), None))):
        with pytest.raises(LedgerError, match="no selection can contain"):
            check_ledger(run, training().event)


def test_a_condition_must_be_declared():
    promised = acc.ConditionalEvent(relation=RELATION, inner=training(9.0).event, condition_text="losses are smooth")
    run = ledger((acc.Spend(promised, 1), None))
    with pytest.raises(LedgerError, match="condition that was not declared"):
        check_ledger(run, one_of([training()]))
    check_ledger(run, one_of([acc.Spend(promised, 1)]))


def test_the_worst_curve_is_that_of_the_worst_record():
    """Parts of one split are not added up; sessions on all records are."""
    each = [training(), score(3.0)]
    curves = [spend.event.guarantee(spend.queries).rdp(ORDERS) for spend in each]
    assert worst_curve(ledger((each[0], KEPT), (each[1], HELD))) == pytest.approx(np.maximum(*curves))
    assert worst_curve(ledger((each[0], KEPT), (each[1], None))) == pytest.approx(np.add(*curves))


@pytest.mark.parametrize("shape", [0.0, 1.0, math.inf])
def test_calibrated_is_within_the_target_and_close(shape):
    runs = NumberOfRuns(mean_runs=4, shape=shape)
    bought = [score(20.0)]

    def inner(noise):
        return one_of([training(noise), free_score(training(noise))])

    noise = calibrated(inner, runs, RELATION, (1.0, 1e-5), bought)
    spent = acc.epsilon([*bought, acc.Spend(selection_event(inner(noise), runs), 1)], 1e-5).epsilon
    assert 0.998 < spent <= 1.0
    one = acc.epsilon([*bought, training(noise)], 1e-5).epsilon
    assert one < 0.8
