r"""The exact divergence of a selection, by quadrature: below what is charged, and above what a forgotten choice costs.

One run releases one Gaussian value, N(0, 1) in one world and N(mu, 1) in the other, and the largest wins. With K runs
drawn from a law of generating function G, the winner has density G'(F(y)) f(y), f and F those of a run.
"""

import math

import numpy as np
import pytest
import scipy.stats

from tacita import accounting as acc
from tacita.selection import NumberOfRuns
from tacita.selection.inner import selection_event

ORDERS = np.array([1.5, 2.0, 4.0, 8.0, 16.0, 32.0])
Y = np.linspace(-12, 14, 40_001)
LAWS = [(10.0, 1.0), (10.0, 0.0), (4.0, 2.0), (3.0, math.inf), (10.0, math.inf)]
MUS = [0.1, 0.5, -0.5, 1.0]


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
    inner = acc.FullBatchGaussianEvent(relation="add_or_remove_one", max_contribution=(abs(mu),), noise_std=(1.0,))
    # The formula takes its best order among those it is given.
    orders = np.unique(np.r_[ORDERS, np.geomspace(1.01, 2000, 300)])
    curve = selection_event(inner, law).rdp(1, orders)
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
