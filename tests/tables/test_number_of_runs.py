"""The number of runs has the law that the accounting charges for, exactly; and the test of that can fail."""

import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from dp_accounting.rdp import rdp_privacy_accountant as library

from tacita.random import Key
from tacita.tables import NumberOfRuns

FALSE_ALARM = 1e-6
DRAWS = 20_000
LAWS = [(5.0, 1.0), (3.0, 0.0), (4.0, 0.5), (6.0, 3.0), (5.0, math.inf), (1.0, math.inf), (1.0, 1.0)]


def law(mean, shape):
    return NumberOfRuns(mean_runs=mean, shape=shape)


def expected(mean, shape, count):
    """The chances of 0, ..., count - 1, by scipy."""
    k = np.arange(count)
    if shape == math.inf:
        return scipy.stats.poisson.pmf(k, mean)
    gamma = 1 / mean if shape == 1 else library._gamma_truncated_negative_binomial(shape, mean, 1e-13)
    if shape == 0:
        return np.r_[0.0, scipy.stats.logser.pmf(k[1:], 1 - gamma)] if gamma < 1 else np.eye(count)[1]
    chances = scipy.stats.nbinom.pmf(k, shape, gamma)
    chances[0] = 0
    return chances / (1 - scipy.stats.nbinom.pmf(0, shape, gamma)) if gamma < 1 else np.eye(count)[1]


def assert_drawn_from(drawn, chances):
    """Pearson's chi-square over bins of at least 20 expected draws; raises with a false alarm of 1e-6."""
    assert len(drawn) >= DRAWS
    edges, bins, mass = [], [], 0.0
    for number, chance in enumerate(chances):
        mass += chance
        if mass * len(drawn) >= 20:
            edges.append(number)
            bins.append(mass)
            mass = 0.0
    bins[-1] += 1 - sum(bins)
    counts = np.bincount(np.minimum(np.searchsorted(edges, drawn), len(bins) - 1), minlength=len(bins))
    if len(bins) == 1:
        assert (np.asarray(drawn) == edges[0]).all()
        return
    statistic = float(((counts - len(drawn) * np.array(bins)) ** 2 / (len(drawn) * np.array(bins))).sum())
    assert statistic < scipy.stats.chi2.isf(FALSE_ALARM, len(bins) - 1), "not that law"


@cache
def draws(mean, shape):
    one, key = law(mean, shape), Key.insecure(7)
    return [one.draw(key.stream("number", i)) for i in range(DRAWS)]


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_the_number_has_its_law(mean, shape):
    assert_drawn_from(draws(mean, shape), expected(mean, shape, 400))


@pytest.mark.parametrize(
    ("mean", "shape", "other_mean", "other_shape"),
    [(5.0, 1.0, 5.4, 1.0), (5.0, 1.0, 5.0, 0.8), (5.0, math.inf, 5.2, math.inf), (3.0, 0.0, 3.0, 0.3)],
)
def test_the_check_of_the_law_can_fail(mean, shape, other_mean, other_shape):
    with pytest.raises(AssertionError, match="not that law"):
        assert_drawn_from(draws(mean, shape), expected(other_mean, other_shape, 400))


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_chances(mean, shape):
    assert law(mean, shape).chances(60) == pytest.approx(expected(mean, shape, 60), rel=1e-6, abs=1e-12)
    assert law(mean, shape).chance_above(4) == pytest.approx(1 - expected(mean, shape, 5).sum(), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("mean", [1.0, 1.0000001, 1.5, 5.0, 300.0, 10_000.0])
@pytest.mark.parametrize("shape", [0.0, 1e-9, 0.3, 1.0, 7.5, 1000.0])
def test_it_costs_no_more_than_what_is_accounted(mean, shape):
    """The formula rises with the mean and with 1 / gamma: both are at most the accountant's."""
    drawn = law(mean, shape).gamma
    assert drawn >= library._gamma_truncated_negative_binomial(shape, mean)
    assert library._truncated_negative_binomial_mean(drawn, shape) <= mean
    assert library._truncated_negative_binomial_mean(drawn, shape) >= mean * (1 - 1e-8)


@pytest.mark.parametrize(("mean", "shape"), [(5.0, 1.0), (5.0, 0.0), (5.0, 2.5), (5.0, math.inf)])
def test_it_is_the_quantile_of_128_bits(mean, shape):
    """The extremes of the uniform, and both sides of the step from 2 to 3."""
    one = law(mean, shape)

    def quantile(numerator):
        return one.draw(SimpleNamespace(words=lambda n: np.array(divmod(numerator, 2**64), dtype=np.uint64)))

    below = sum(one.chances(3))
    assert quantile(0) == (0 if shape == math.inf else 1)
    assert 20 < quantile(2**128 - 1) < 3000
    assert quantile(int((below - 1e-12) * 2**128)) == 2
    assert quantile(int((below + 1e-12) * 2**128)) == 3


def test_only_a_poisson_number_may_be_none():
    assert law(1.0, math.inf).may_be_none
    assert 0 in draws(1.0, math.inf)
    assert 0 not in draws(1.5, 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean_runs": 0.5}, "mean_runs must be in"),
        ({"mean_runs": 1e5}, "mean_runs must be in"),
        ({"mean_runs": math.nan}, "mean_runs must be"),
        ({"shape": -0.1}, "shape must be"),
        ({"shape": math.nan}, "shape must be"),
        ({"shape": "poisson"}, "shape must be"),
        ({"shape": True}, "shape must be"),
    ],
)
def test_wrong_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        NumberOfRuns(**{"mean_runs": 5.0, "shape": 1.0, **changes})
