r"""The exact divergence of a selection, by quadrature: below what is charged, and above what a forgotten choice costs.

One run releases one Gaussian value, N(0, 1) in one world and N(mu, 1) in the other, and the largest wins. With K runs
drawn from a law of generating function G, the winner has density G'(F(y)) f(y), f and F those of a run.
"""

import math
from functools import lru_cache

import numpy as np
import pytest
import scipy.stats

from tacita import accounting as acc
from tacita.accounting.renyi_curve import RenyiCurve
from tacita.tables import NumberOfRuns
from tacita.tables.run_cost import selection_event
from tests.accounting.library_pld import library_pld

ORDERS = np.array([1.5, 2.0, 4.0, 8.0, 16.0, 32.0])
Y = np.linspace(-12, 14, 40_001)
LAWS = [(10.0, 1.0), (10.0, 0.0), (4.0, 2.0), (3.0, math.inf), (10.0, math.inf)]
MUS = [0.1, 0.5, -0.5, 1.0]


@lru_cache(maxsize=64)
def winner(mean, law):
    """Log-density of the winner over ``Y``, and the chance of none."""
    chances = np.array(law.chances(2500 if law.shape == 0 else 400))
    numbers = np.arange(1, len(chances))
    log_below = scipy.stats.norm.logcdf(Y, mean)
    with np.errstate(divide="ignore"):
        factors = np.log(chances[1:] * numbers)
    slope = scipy.special.logsumexp(factors[None, :] + (numbers - 1)[None, :] * log_below[::20, None], axis=1)
    return np.interp(Y, Y[::20], slope) + scipy.stats.norm.logpdf(Y, mean), chances[0]


def divergence(one, other, order):
    """Rényi divergence of two worlds."""
    (log_p, none), (log_q, _) = one, other
    logs = order * log_p + (1 - order) * log_q + math.log(Y[1] - Y[0])
    total = scipy.special.logsumexp(np.r_[logs, math.log(none)] if none else logs)
    return total / (order - 1)


def charged(mu, law):
    inner = acc.GaussianSumEvent(
        sampling=acc.FullBatchLaw(), relation="add_or_remove_one", max_contribution=(abs(mu),), noise_std=(1.0,)
    )
    # The formula takes its best order among those it is given.
    orders = np.unique(np.r_[ORDERS, np.geomspace(1.01, 2000, 300)])
    curve = selection_event(inner, law).guarantee(1).rdp(orders)
    return np.interp(ORDERS, orders, curve), ORDERS * mu**2 / 2


@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_the_densities_are_densities(mean, shape):
    log_density, none = winner(0.0, NumberOfRuns(mean_runs=mean, shape=shape))
    assert np.exp(log_density).sum() * (Y[1] - Y[0]) + none == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_what_is_charged_covers_the_exact_divergence(mean, shape, mu):
    law = NumberOfRuns(mean_runs=mean, shape=shape)
    worlds = winner(0.0, law), winner(mu, law)
    exact = [max(divergence(*worlds, order), divergence(*worlds[::-1], order)) for order in ORDERS]
    whole, _ = charged(mu, law)
    assert np.all(np.array(exact) <= whole * (1 + 1e-6))


@pytest.mark.parametrize(("mean", "shape"), [(10.0, 1.0), (10.0, 0.0), (4.0, 2.0)])
def test_one_run_s_curve_does_not_cover_it(mean, shape):
    """So that a choice that is not charged is refuted by the same quadrature."""
    law = NumberOfRuns(mean_runs=mean, shape=shape)
    worlds = winner(0.0, law), winner(0.5, law)
    exact = [max(divergence(*worlds, order), divergence(*worlds[::-1], order)) for order in ORDERS]
    assert np.any(np.array(exact) > 1.05 * charged(0.5, law)[1])


# By privacy profiles: the exact divergence at every epsilon, below the distribution of the selection.

EPSILONS = (0.0, 0.2, 0.6, 1.5, 4.0)


def exact_delta(one, other, epsilon):
    """Hockey-stick divergence of two worlds; releasing nothing has one chance in both."""
    (log_p, _), (log_q, _) = one, other
    return float(np.maximum(0.0, np.exp(log_p) - np.exp(epsilon + log_q)).sum() * (Y[1] - Y[0]))


def deltas_of(mu, law, interval=2.0**-9):
    inner = acc.GaussianSumEvent(
        sampling=acc.FullBatchLaw(), relation="add_or_remove_one", max_contribution=(abs(mu),), noise_std=(1.0,)
    )
    return np.asarray(
        library_pld(selection_event(inner, law).guarantee(1), interval).get_delta_for_epsilon(np.array(EPSILONS))
    )


@pytest.mark.parametrize("mu", [0.1, 1.0])
@pytest.mark.parametrize(("mean", "shape"), LAWS)
def test_the_profile_covers_the_exact_delta(mean, shape, mu):
    law = NumberOfRuns(mean_runs=mean, shape=shape)
    worlds = winner(0.0, law), winner(mu, law)
    charged_deltas = deltas_of(mu, law)
    for epsilon, bound in zip(EPSILONS, charged_deltas, strict=True):
        for pair in (worlds, worlds[::-1]):
            assert exact_delta(*pair, epsilon) <= bound * (1 + 1e-3) + 1e-7


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("mean", "shape"), [(10.0, 1.0), (4.0, 2.0), (10.0, math.inf)])
def test_the_profile_covers_any_order_of_the_results(mean, shape, seed):
    """A run that releases one of 60 values, in an order that has nothing to do with what they tell of the record."""
    rng = np.random.default_rng(seed)
    cells = np.linspace(-4, 4.4, 61)
    worlds = [np.diff(np.r_[0, scipy.stats.norm.cdf(cells[1:-1], m), 1]) for m in (0.0, 0.4)]
    order = rng.permutation(60)
    law = NumberOfRuns(mean_runs=mean, shape=shape)
    numbers = np.array(law.chances(400))

    def best(p):  # the chance that the largest of K is each value: G(F) - G(F before it)
        reached = np.concatenate([[0.0], np.cumsum(p[order])])
        return np.diff(np.polynomial.polynomial.polyval(reached, numbers))

    for epsilon, bound in zip(EPSILONS, deltas_of(0.4, law), strict=True):
        for one, other in (worlds, worlds[::-1]):
            assert np.maximum(0.0, best(one) - math.exp(epsilon) * best(other)).sum() <= bound


@pytest.mark.parametrize(("mean", "shape"), [(10.0, 1.0), (10.0, 0.0), (10.0, math.inf)])
def test_the_profile_is_cheaper_than_the_curve_and_dearer_than_the_truth(mean, shape):
    law, mu = NumberOfRuns(mean_runs=mean, shape=shape), 0.5
    inner = acc.GaussianSumEvent(
        sampling=acc.FullBatchLaw(), relation="add_or_remove_one", max_contribution=(mu,), noise_std=(1.0,)
    )
    event = selection_event(inner, law)
    found = acc.epsilon([acc.Spend(event, 1)], 1e-5).epsilon
    by_curve = RenyiCurve([event.guarantee(1).rdp]).epsilon(1e-5)
    worlds = winner(0.0, law), winner(mu, law)
    assert found < 0.9 * by_curve
    assert max(exact_delta(*worlds, found), exact_delta(*worlds[::-1], found)) < 1e-5


def test_the_expected_number_is_reached():
    """Runs of which one in a thousand tells of the record, and then wins: nearly E[K] times as many tell of it."""
    law, rate = NumberOfRuns(mean_runs=10.0, shape=1.0), 1e-3
    inner = acc.MixtureOfGaussiansEvent(
        relation="add_or_remove_one", shifts=(0.0, 9.0), probabilities=(1 - rate, rate), noise_std=1.0
    )
    numbers = np.array(law.chances(300))
    above = scipy.stats.norm.sf([4.5, -4.5])  # whether the best is above 4.5
    present, absent = (1 - rate) * above[0] + rate * above[1], above[0]
    best = [1 - np.polynomial.polynomial.polyval(1 - chance, numbers) for chance in (present, absent)]
    exact = best[0] - math.e * best[1]
    bound = library_pld(selection_event(inner, law).guarantee(1), 2.0**-9).get_delta_for_epsilon(1.0)
    assert 8 * rate < exact <= bound <= 1.1 * law.mean_runs * rate
