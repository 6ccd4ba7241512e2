"""Closed forms of the Gaussian mechanism, against quadrature and against each other."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from tacita.accounting import (
    FullBatchLaw,
    GaussianSumEvent,
    Spend,
    delta,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)


@pytest.mark.parametrize(("mu", "epsilon"), [(1.0, 0.0), (1.0, 1.0), (0.3, 0.5), (3.0, 8.0), (1.0, -0.7), (9e-4, 1e-3)])
def test_delta_is_the_hockey_stick_divergence(mu, epsilon):
    x = np.linspace(-12 - mu, 12 + mu, 400_001)
    upper, lower = (np.exp(-((x - shift) ** 2) / 2) / math.sqrt(2 * math.pi) for shift in (mu, 0.0))
    exact = trapezoid(np.maximum(0.0, upper - math.exp(epsilon) * lower), x)
    assert gaussian_delta(mu, epsilon) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("mu", "expected"), [(math.sqrt(10), 17.8566), (2 * math.sqrt(10), 46.2112)])
def test_ten_queries_of_the_full_batch(mu, expected):
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(expected, abs=5e-5)


@given(mu=st.floats(1e-3, 50.0), log_delta=st.floats(-100.0, -1.0))
@example(mu=0.001953125, log_delta=-8.0)
@settings(max_examples=60, deadline=None)
def test_epsilon_is_an_upper_bound_and_tight(mu, log_delta):
    delta = math.exp(log_delta)
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert epsilon == 0 or gaussian_delta(mu, epsilon * (1 - 1e-9)) > delta * (1 - 2e-9)  # the room for rounding


@given(epsilon=st.floats(0.0, 100.0), log_delta=st.floats(-60.0, -1.0))
@settings(max_examples=60, deadline=None)
def test_mu_is_a_lower_bound_and_tight(epsilon, log_delta):
    delta = math.exp(log_delta)
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta < gaussian_delta(mu * (1 + 1e-8), epsilon)


def test_no_noise_and_no_signal():
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert gaussian_delta(math.inf, 3.0) == 1.0
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_delta(0.0, 0.0) == 0.0


@pytest.mark.parametrize("mu", [1e-12, 1e-6, 1e3, 1e8])
def test_extreme_mu_stays_finite(mu):
    assert math.isfinite(gaussian_epsilon(mu, 1e-5))
    assert 0 <= gaussian_delta(mu, 1.0) <= 1


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(-1.0, 1e-5), (math.inf, 1e-5), (math.nan, 1e-5), (1.0, 0.0), (1.0, 1.0)]
)
def test_mu_refuses_what_is_no_target(epsilon, delta):
    with pytest.raises(ValueError, match="epsilon must be"):
        gaussian_mu(epsilon, delta)


def test_small_mu_where_the_formula_cancels():
    assert gaussian_delta(1e-18, 0.0) == pytest.approx(1e-18 / math.sqrt(2 * math.pi), rel=1e-12)
    for epsilon in (0.0, 1e-4, 3e-3):  # both sides of the switch agree
        assert gaussian_delta(1e-3 * (1 - 1e-12), epsilon) == pytest.approx(gaussian_delta(1e-3, epsilon), rel=1e-8)


def exact_delta(mu, epsilon):
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(
    ("mu", "delta"),
    [
        (0.0013522077180194243, 1.4747560846222034e-28),
        (0.0013500506324362282, 5.889980207573571e-17),
        (0.5420076852097395, 1.1437423313859707e-11),
    ],
)
def test_epsilon_and_mu_are_on_the_safe_side_where_the_terms_cancel(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert exact_delta(mu, epsilon) <= delta
    assert exact_delta(gaussian_mu(epsilon, delta), epsilon) <= delta


@pytest.mark.parametrize("mu", [0.0013522077180194243, 0.0013500506324362282, 0.5420076852097395])
def test_a_delta_that_is_stated_is_on_the_safe_side(mu):
    """The ledger's delta at an epsilon, where the closed form cancels."""
    event = GaussianSumEvent(
        relation="zero_out_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(1 / mu,)
    )
    for epsilon in np.linspace(0.5, 11, 40) * mu:
        assert delta([Spend(event, 1)], float(epsilon)).delta >= exact_delta(mu, float(epsilon))
