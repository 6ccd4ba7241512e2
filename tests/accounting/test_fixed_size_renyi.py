"""The Rényi curve of fixed-size sampling: the envelope's integral, above every pair that occurs."""

import itertools
import os

import mpmath
import numpy as np
import pytest

from tacita.accounting import _fixed_size_renyi, _renyi
from tacita.accounting._renyi import Mixture
from tests.accounting.test_domination import envelope_pmf

CENTRE = Mixture((0.0,), (1.0,))
CASES = [(1e-8, 0.04, 1.7), (1e-8, 2.0, 4.2), (1e-3, 2.0, 1.01), (0.1, 0.3, 33.0), (0.5, 2.0, 4.2), (0.97, 0.3, 8.5)]
if os.environ.get("TACITA_AUDIT"):
    grid = [(q, d, a) for q in (1e-8, 1e-3, 0.1, 0.97) for d in (0.04, 0.3, 2.0, 6.6) for a in (1.01, 1.7, 4.2, 33.0)]
    CASES += [(q, d, a) for q, d, a in grid if a * d < 60]


def divergences(rate, shift, *orders):
    return _fixed_size_renyi.fixed_size_divergences(rate, shift, orders)


def integral(rate, shift, order):
    """The divergence in forty digits: 1 and the mean of (t^a - 1)(1 - t^(1-a)) where t > 1."""
    with mpmath.workdps(40):
        q, d, a = map(mpmath.mpf, (rate, shift, order))

        def integrand(x):
            t = 1 - q + q * mpmath.exp(d * x - d * d / 2)
            return mpmath.npdf(x) * (t**a - 1) * (1 - t ** (1 - a))

        points = [d / 2 + k for k in range(int(a * d) + 27)]
        return mpmath.log1p(mpmath.fsum(mpmath.quad(integrand, ends) for ends in itertools.pairwise(points))) / (a - 1)


@pytest.mark.parametrize(("rate", "shift", "order"), CASES)
def test_it_is_the_integral_of_the_envelope(rate, shift, order):
    exact, found = integral(rate, shift, order), divergences(rate, shift, order)[0]
    assert 0 <= float(found / exact - 1) < 1e-8


@pytest.mark.parametrize(("rate", "moved"), [(0.5, 0.5), (0.2, 1.0), (0.02, 2.0)])
def test_it_is_that_of_the_envelope_as_a_distribution(rate, moved):
    """The discretised envelope has a little more, by the square of its grid."""
    pmf = envelope_pmf(rate, moved, 1e-3)
    losses, chances = (pmf._lower_loss + np.arange(pmf.size)) * 1e-3, pmf._probs
    for order in (1.5, 2.5, 4.0):
        discrete = np.log(np.sum(chances * np.exp((order - 1) * losses))) / (order - 1)
        assert discrete == pytest.approx(divergences(rate, moved, order)[0], rel=2e-4)


@pytest.mark.parametrize("seed", range(4))
def test_neighbours_are_below_it(seed):
    """Shifts x - r and x' - r, both ways, in one dimension."""
    rng = np.random.default_rng(seed)
    rate, orders = rng.uniform(0.02, 0.9), (1.3, 2.0, 9.5, 64.0)
    x, other, r = rng.uniform(-1, 1, 3)
    worlds = [Mixture((0.0, point - r), (1 - rate, rate)) for point in (x, other)]
    bound = divergences(rate, 2.0, *orders)
    for pair in (worlds, worlds[::-1]):
        assert np.all(_renyi.renyi_divergences(*pair, orders) <= bound * (1 + 1e-8))


@pytest.mark.parametrize(("rate", "shift"), [(0.1, 0.3), (0.5, 0.5)])
def test_one_direction_is_less(rate, shift):
    """The twin: the envelope is more than (mixture, Gaussian) or its swap, and less than both excesses together."""
    orders = np.array([1.5, 3.0, 12.0])
    mixture = Mixture((0.0, shift), (1 - rate, rate))
    ways = [_renyi.log_moments(*pair, orders) for pair in ((mixture, CENTRE), (CENTRE, mixture))]
    moments = divergences(rate, shift, *orders) * (orders - 1)
    assert np.all(moments > ways[1] * 1.001)
    assert np.all(np.maximum(*ways) < moments)
    assert np.all(np.expm1(moments) < np.expm1(ways[0]) + np.expm1(ways[1]))


def test_every_order_has_a_bound():
    for rate in (1e-8, 0.01, 1 - 1e-8):
        for shift in (1e-9, 0.02, 6.6, 100.0):
            found = divergences(rate, shift, 1.001, 1.5, 64.3, 2048.0)
            assert np.all(np.isfinite(found)), (rate, shift)
            assert np.all(found > 0)
