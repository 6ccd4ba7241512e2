"""Stable counts: a toy of two histograms whose exact delta is known, in both directions."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from tacita import accounting as acc

STD = 2.0
COUNT = 5.0  # of the record's bin in the first histogram, which others share
X = np.linspace(COUNT - 30, COUNT + 31, 400_001)


def exact_deltas(epsilon, threshold):
    """Delta of with -> without and without -> with.

    The record's bin exists in the first histogram and is new in the second, where it is seen with chance p; a release
    that shows the new bin is impossible without the record.
    """
    level, seen = math.exp(epsilon), norm.sf((threshold - 1) / STD)
    with_it, without = norm.pdf(X, COUNT + 1, STD), norm.pdf(X, COUNT, STD)
    step = X[1] - X[0]
    forward = seen + np.maximum(0.0, (1 - seen) * with_it - level * without).sum() * step
    backward = np.maximum(0.0, without - level * (1 - seen) * with_it).sum() * step
    return forward, backward


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("p", [1e-2, 1e-4, 1e-6])
def test_both_directions_are_below_the_sum(epsilon, p):
    threshold = acc.stable_threshold(STD, p, new_bins=1)
    claimed = acc.gaussian_delta(1 / STD, epsilon) + p  # the sensitivity of the existing bin alone
    forward, backward = exact_deltas(epsilon, threshold)
    assert forward <= claimed * (1 + 1e-9)
    assert backward <= claimed * (1 + 1e-9)


def test_a_threshold_one_standard_deviation_lower_is_caught():
    p = 1e-4
    threshold = acc.stable_threshold(STD, p, new_bins=1)
    for epsilon in (1.0, 2.0, 4.0):
        assert max(exact_deltas(epsilon, threshold - STD)) > acc.gaussian_delta(1 / STD, epsilon) + p


@pytest.mark.parametrize(("new_bins", "rows"), [(1, 1), (3, 1), (2, 4)])
@pytest.mark.parametrize("p", [0.1, 1e-6, 1e-12])
def test_threshold_and_probability_are_inverse(new_bins, rows, p):
    threshold = acc.stable_threshold(STD, p, new_bins=new_bins, rows_per_unit=rows)
    found = acc.stable_failure_probability(STD, threshold, new_bins=new_bins, rows_per_unit=rows)
    assert found == pytest.approx(p, rel=1e-9)
    assert found == pytest.approx(1 - norm.cdf((threshold - rows) / STD) ** (rows * new_bins), rel=1e-3, abs=1e-15)


def event(relation, p=1e-6):
    return acc.StableCountsEvent(relation=relation, max_contribution=(1.0,), noise_std=(4.0,), failure_probability=p)


def test_failure_is_added_to_delta_twice_under_replace_one():
    for relation, times, mu in (
        ("add_or_remove_one", 1, 0.25),
        ("zero_out_one", 1, 0.25),
        ("replace_one", 2, math.sqrt(2) * 0.25),
    ):
        spend = acc.Spend(event(relation), 3)
        expected = acc.gaussian_delta(mu * math.sqrt(3), 1.0) + 3 * times * 1e-6
        assert acc.delta([spend], 1.0).delta == pytest.approx(expected, rel=1e-9)
        assert acc.delta([spend], acc.epsilon([spend], 1e-5).epsilon).delta <= 1e-5 * (1 + 1e-9)


def test_failures_of_many_sessions_add_up(events):
    training = acc.Spend(events.poisson(0.02, 1.0), 150)
    bought = acc.Spend(event("add_or_remove_one", 4e-6), 1)
    free = acc.Spend(event("add_or_remove_one", 0.0), 1)
    assert acc.epsilon([training, bought], 1e-5).epsilon > acc.epsilon([training, free], 1e-5).epsilon
    none_left = acc.epsilon([training, bought, bought, bought], 1e-5)
    assert none_left.epsilon == math.inf
    assert "leave no delta" in none_left.accountant


def test_a_certain_failure_is_no_event():
    with pytest.raises(ValueError, match="failure_probability must be in"):
        event("add_or_remove_one", 1.0)


def test_failures_of_sessions_that_differ_add_up():
    spends = [acc.Spend(event("add_or_remove_one", p), 1) for p in (1e-6, 2e-6, 4e-6)]
    expected = acc.gaussian_delta(0.25 * 3**0.5, 1.0) + 7e-6
    assert acc.delta(spends, 1.0).delta == pytest.approx(expected, rel=1e-9)
