"""Quantiles with exact limits: they cover as often as stated, and no more often than that needs."""

import math

import numpy as np
import pytest

from tacita.theory.quantiles import failure_rate_limit, quantile_interval

RUNS = 1500


def misses(level, draws, false_alarm):
    """How often the true quantile of Pareto draws is outside."""
    rng = np.random.default_rng(0)
    true, missed = (1 - level) ** (-1 / 1.1), 0
    for _ in range(RUNS):
        found = quantile_interval((1 - rng.random(draws)) ** (-1 / 1.1), level, false_alarm=false_alarm)
        assert found.low <= found.estimate <= found.high
        missed += not found.low <= true <= found.high
    return missed


@pytest.mark.parametrize(("level", "draws"), [(0.5, 51), (0.95, 200), (0.99, 300)])
def test_coverage(level, draws):
    """At most 10 % misses are stated; the count of misses is binomial, and 6 standard deviations are allowed."""
    assert misses(level, draws, 0.1) < RUNS * 0.1 + 6 * math.sqrt(RUNS * 0.09)
    assert misses(level, draws, 0.1) > RUNS * 0.03  # not by being useless


def test_too_few_draws_say_so():
    found = quantile_interval([1.0, 2.0], 0.99, false_alarm=0.01)
    assert (found.low, found.high) == (-math.inf, math.inf) or found.high == math.inf
    assert quantile_interval([1.0, math.nan], 0.9, false_alarm=0.5).estimate == math.inf


def test_failure_rate():
    draws = [0.0] * 97 + [9.0, math.nan, math.inf]
    found = failure_rate_limit(draws, 1.0, false_alarm=1e-3)
    from scipy.stats import binom

    assert binom.cdf(3, 100, found) == pytest.approx(1e-3)
    assert failure_rate_limit([2.0], 1.0, false_alarm=0.1) == 1.0
    assert failure_rate_limit([0.0] * 1000, 1.0, false_alarm=1e-6) == pytest.approx(1 - 1e-6 ** (1 / 1000))


@pytest.mark.parametrize("bad", [0.0, 1.0, 2.0])
def test_settings_are_refused(bad):
    with pytest.raises(ValueError, match="level must be in"):
        quantile_interval([1.0], bad, false_alarm=0.1)
    with pytest.raises(ValueError, match="false_alarm must be in"):
        failure_rate_limit([1.0], 1.0, false_alarm=bad)
