"""Limits are exact, bounds hold with the stated confidence, and come near the truth."""

import math

import numpy as np
import pytest
import scipy.stats

from tacita.accounting import gaussian_epsilon
from tacita.testing.bounds import (
    ScoreEvent,
    clopper_pearson_lower,
    clopper_pearson_upper,
    epsilon_lower_bound,
    excess,
    mu_lower_bound,
    promise,
)
from tacita.testing.roc import auc, roc, tpr_at_fpr

FALSE_ALARM = 1e-6


@pytest.mark.parametrize(("successes", "trials"), [(0, 7), (1, 7), (3, 7), (6, 7), (7, 7), (12, 10**6)])
@pytest.mark.parametrize("error", [0.05, 1e-3, 1e-8])
def test_limits_are_those_of_clopper_and_pearson(successes, trials, error):
    """At the limit, what was seen or more (less) has a chance of just ``error``."""
    low = float(clopper_pearson_lower(successes, trials, error))
    high = float(clopper_pearson_upper(successes, trials, error))
    law = scipy.stats.binom
    assert low == 0 if successes == 0 else law.sf(successes - 1, trials, low) == pytest.approx(error, rel=1e-6)
    assert high == 1 if successes == trials else law.cdf(successes, trials, high) == pytest.approx(error, rel=1e-6)
    assert low <= successes / trials <= high


def gaussians(mu, runs, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(mu, 1, runs), rng.normal(0, 1, runs)


@pytest.mark.parametrize(("runs", "least"), [(100_000, 0.8), (1_000_000, 0.93)])
def test_the_bound_comes_near_the_truth(runs, least):
    found = epsilon_lower_bound(*gaussians(1.0, runs, seed=0), delta=1e-2)
    assert least < found.value / gaussian_epsilon(1.0, 1e-2) < 1.01


def test_mu_comes_nearer_where_epsilon_is_out_of_reach():
    present, absent = gaussians(1.0, 1_000_000, seed=0)
    truth = gaussian_epsilon(1.0, 1e-5)
    assert epsilon_lower_bound(present, absent, 1e-5).value < 0.85 * truth
    assert 0.9 < gaussian_epsilon(mu_lower_bound(present, absent).value, 1e-5) / truth < 1.01


@pytest.mark.parametrize("mirrored", [False, True])
def test_both_directions_are_tried(mirrored):
    """P = 0.8 N(0) + 0.2 N(4) against N(0): only one of the two directions shows much."""
    rng = np.random.default_rng(0)
    mixture = rng.normal(4.0 * (rng.random(50_000) < 0.2), 1)
    plain = rng.normal(0, 1, 50_000)
    found = epsilon_lower_bound(*((-plain, -mixture) if mirrored else (mixture, plain)), delta=1e-2)
    assert found.value > 4
    assert found.event.direction == ("absent" if mirrored else "present")


REPEATS, RUNS = 3000, 300
TRUE_EPSILON, DELTA = 0.7, 0.05  # of randomised response: P(1) = delta + e^eps Q(1), and symmetric


def responses(seed):
    """The tightest scores there are: four outcomes, two of which tell for certain."""
    rng = np.random.default_rng(seed)
    heads = (1 - DELTA) * math.exp(TRUE_EPSILON) / (1 + math.exp(TRUE_EPSILON))
    outcomes = rng.choice([3.0, 2.0, 1.0], p=[DELTA, heads, 1 - DELTA - heads], size=RUNS)
    return outcomes, 3 - rng.choice([3.0, 2.0, 1.0], p=[DELTA, heads, 1 - DELTA - heads], size=RUNS)


def exceeded(bound):
    return sum(bound(*responses(seed)) for seed in range(REPEATS))


def test_a_bound_of_ninety_per_cent_exceeds_the_truth_once_in_ten_at_most():
    count = exceeded(lambda p, q: epsilon_lower_bound(p, q, DELTA, 0.9).value > TRUE_EPSILON)
    assert count < scipy.stats.binom.isf(FALSE_ALARM, REPEATS, 0.1)


def test_a_true_claim_is_refuted_as_often_as_stated_at_most():
    def allowed(rate):
        return np.minimum(1, DELTA + math.exp(TRUE_EPSILON) * rate)

    count = exceeded(lambda p, q: excess(p, q, allowed, 0.1).value > 0)
    assert count < scipy.stats.binom.isf(FALSE_ALARM, REPEATS, 0.1)


def test_the_check_of_confidence_can_fail():
    """A bound from the rates as they were measured, without limits, exceeds the truth far too often."""

    def careless(p, q):
        event = epsilon_lower_bound(p, q, DELTA, 0.9).event
        hits, false_hits = event.hits / event.trials, max(event.false_hits, 0.5) / event.false_trials
        return math.log(max(hits - DELTA, 1e-9) / false_hits) > TRUE_EPSILON

    assert exceeded(careless) > scipy.stats.binom.isf(FALSE_ALARM, REPEATS, 0.1)


def test_a_claim_is_refuted_at_the_point_where_it_is_false():
    present, absent = gaussians(1.0, 20_000, seed=1)
    assert excess(present, absent, lambda rate: np.minimum(1, 0.2 + rate), 1e-6).value > 0.1  # TV is 0.38
    assert excess(present, absent, lambda rate: np.minimum(1, 0.4 + rate), 1e-6).value < 0
    assert promise(present, absent, lambda rate: np.minimum(1, 0.2 + rate)) > 10
    assert promise(present, absent, lambda rate: np.minimum(1, 0.4 + rate)) < 4


def test_not_a_number_counts_as_the_highest_score():
    assert epsilon_lower_bound(np.full(1000, np.nan), np.zeros(1000), 1e-2).value > 3
    assert epsilon_lower_bound(np.full(1000, np.nan), np.full(1000, np.nan), 1e-2).value == 0


def test_worlds_that_are_alike_show_nothing():
    same = np.random.default_rng(0).normal(size=50_000)
    assert epsilon_lower_bound(same, same, 1e-2).value == 0
    assert auc(same, same) == 0.5


def test_tpr_at_fpr_and_the_curve():
    present, absent = gaussians(1.0, 200_000, seed=2)
    for fpr in (0.1, 0.01):
        exact = scipy.stats.norm.cdf(scipy.stats.norm.ppf(fpr) + 1)
        assert tpr_at_fpr(present, absent, fpr) == pytest.approx(exact, rel=0.03)
    curve = roc(present, absent)
    assert (curve.tpr_low <= curve.tpr).all()
    assert (curve.tpr <= curve.tpr_high).all()
    assert (np.diff(curve.fpr) > 0).all()
    assert auc(present, absent) == pytest.approx(scipy.stats.norm.cdf(1 / math.sqrt(2)), abs=0.005)


def _outside(edges) -> int:
    """How many of 200 curves' bands miss the truth where the false positive rate rests on 30 runs."""
    missed = 0
    for seed in range(200):
        curve = roc(*gaussians(1.0, 10_000, seed=seed))
        at = int(np.searchsorted(curve.fpr, 30 / 10_000 - 1e-9))
        truth = scipy.stats.norm.cdf(scipy.stats.norm.ppf(curve.fpr[at]) + 1)
        low, high = edges(curve)
        missed += not low[at] <= truth <= high[at]
    return missed


def test_the_band_holds_the_truth_with_the_errors_of_both_rates():
    """At most Bin(200, 0.05) misses: 30 or more have a chance below 1e-6."""
    assert scipy.stats.binom.sf(29, 200, 0.05) < 1e-6
    assert _outside(lambda curve: curve.band()) < 30
    assert _outside(lambda curve: (curve.tpr_low, curve.tpr_high)) >= 30  # the false positive rate taken as exact


def test_the_band_claims_nothing_beyond_its_thresholds():
    low, high = roc(*gaussians(1.0, 1000, seed=3)).band()
    assert low[0] == 0
    assert high[-1] == 1
    assert (low <= high).all()


@pytest.mark.parametrize(
    ("scores", "message"),
    [(np.zeros(9), "at least 10 runs"), (np.zeros((20, 2)), "must have shape"), (np.zeros(0), "must have shape")],
)
def test_scores_are_checked(scores, message):
    with pytest.raises(ValueError, match=message):
        epsilon_lower_bound(scores, scores, 1e-2)


@pytest.mark.parametrize("error", [0.3, 0.05])
def test_both_limits_of_an_event_hold_together(error):
    """Exactly, by enumeration: at the worst rates each of two independent limits fails with half of the error."""
    trials = 25
    limits = np.array([ScoreEvent(0.0, "present", k, k, trials, trials).limits(error) for k in range(trials + 1)])
    rates = np.linspace(0.001, 0.999, 1999)[:, np.newaxis]
    chances = scipy.stats.binom.pmf(np.arange(trials + 1), trials, rates)
    above, below = ((chances * missed).sum(axis=1).max() for missed in (limits[:, 0] > rates, limits[:, 1] < rates))
    assert 1 - (1 - above) * (1 - below) <= error
    assert above + below > 0.7 * error  # and no more careful than need be


@pytest.mark.parametrize("runs", [100, 1000])
def test_the_runs_that_choose_an_event_do_not_judge_it(runs):
    """The first fifth is as different as can be, the others alike: what was seen in it must not count."""
    present, absent = np.random.default_rng(3).normal(size=(2, runs))
    present[: runs // 5] += 50.0
    found = epsilon_lower_bound(present, absent, delta=1e-3)
    assert found.value == 0
    assert (found.event.trials, found.event.false_trials) == (runs - runs // 5, runs - runs // 5)
    judged = present[runs // 5 :] if found.event.direction == "present" else absent[runs // 5 :]
    inside = judged > found.event.threshold if found.event.direction == "present" else judged <= found.event.threshold
    assert found.event.hits == inside.sum()
