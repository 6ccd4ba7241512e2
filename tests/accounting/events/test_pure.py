"""Laplace noise, shares, zero-concentrated privacy: against what is known in closed form."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from tacita import accounting as acc
from tacita.accounting.renyi_curve import RenyiCurve
from tests.accounting.library_pld import library_pld

DELTA = 1e-5
RELATION = "add_or_remove_one"


def epsilon(event, queries, delta=DELTA):
    return acc.epsilon([acc.Spend(event, queries)], delta).epsilon


def laplace(scale, l1=1.0):
    return acc.LaplaceEvent(relation=RELATION, l1_sensitivity=l1, scale=scale)


def test_laplace_delta_in_closed_form():
    """One query at half its epsilon: delta = 1 - exp((epsilon - 1 / scale) / 2)."""
    for scale in (0.5, 2.0, 10.0):
        half = 1 / scale / 2
        exact = -math.expm1((half - 1 / scale) / 2)
        found = acc.delta([acc.Spend(laplace(scale), 1)], half).delta
        assert exact * (1 - 1e-9) <= found <= exact * 1.01


def test_laplace_scale_and_sensitivity_are_not_swapped():
    assert epsilon(laplace(10.0), 1) < epsilon(laplace(5.0), 1) < epsilon(laplace(5.0, l1=2.0), 1)
    assert epsilon(laplace(10.0), 1) == pytest.approx(0.1, rel=1e-3)  # mean absolute noise of ten times the change
    assert epsilon(laplace(5.0, l1=2.0), 7) == pytest.approx(epsilon(laplace(2.5), 7), rel=1e-9)


def test_laplace_composes_below_the_sum_and_below_rdp():
    for scale, queries in ((10.0, 100), (2.0, 20), (50.0, 1000)):
        found = epsilon(laplace(scale), queries)
        assert found < 0.95 * queries / scale
        assert found <= RenyiCurve([laplace(scale).guarantee(queries).rdp]).epsilon(DELTA)


def test_nothing_measured_costs_nothing():
    assert epsilon(laplace(1.0, l1=0.0), 10) == 0
    assert epsilon(laplace(0.0, l1=0.0), 10) == 0


def test_a_share_is_what_it_says(events):
    share = events.share(0.7, 1e-6)
    assert epsilon(share, 1, delta=1e-6) == pytest.approx(0.7, abs=1e-9)
    assert epsilon(share, 50, delta=1e-6) == epsilon(share, 1, delta=1e-6)  # however many queries inside it
    assert acc.delta([acc.Spend(share, 1)], 0.7).delta == pytest.approx(1e-6, rel=1e-9)
    assert epsilon(share, 1, delta=0.9e-6) == math.inf


def test_shares_add_up_to_the_budget(events):
    tenth = acc.Spend(events.share(0.1, 1e-6), 1)
    assert acc.epsilon([tenth] * 10, 1e-5).epsilon == pytest.approx(1.0, rel=1e-9)
    assert acc.epsilon([tenth] * 10, 0.99e-5).epsilon == math.inf


def test_many_shares_compose_below_their_sum(events):
    small = acc.Spend(events.share(0.02, 0.0), 1)
    assert 0 < acc.epsilon([small] * 100, 1e-5).epsilon < 1.0  # the sum is 2


def test_a_share_is_randomised_response_at_worst():
    share = acc.ApproximateDPEvent(relation=RELATION, epsilon=1.2, delta_share=0.0)
    truth = math.exp(1.2) / (1 + math.exp(1.2))
    for epsilon_ in (0.0, 0.4, 1.0):
        exact = truth - math.exp(epsilon_) * (1 - truth)
        assert share.guarantee(1).delta(epsilon_) == pytest.approx(exact, rel=1e-9)
        assert library_pld(share.guarantee(1), 2.0**-12).get_delta_for_epsilon(epsilon_) >= exact * (1 - 1e-9)
    order = np.array([3.0])
    moment = truth**3 * (1 - truth) ** -2 + (1 - truth) ** 3 * truth**-2
    assert share.guarantee(1).rdp(order)[0] == pytest.approx(math.log(moment) / 2, rel=1e-9)


def test_huge_shares_stay_finite(events):
    assert epsilon(events.share(5000.0, 0.0), 1) == pytest.approx(5000.0, rel=1e-6)
    both = [acc.Spend(events.share(5000.0, 1e-6), 1), acc.Spend(events.poisson(0.02, 1.0), 10)]
    assert 5000.0 <= acc.epsilon(both, 1e-5).epsilon < 5010.0


def zcdp(rho):
    return acc.ZCDPEvent(relation=RELATION, rho=rho)


def test_zcdp_of_a_gaussian_is_above_the_gaussian():
    for mu in (0.1, 1.0, 4.0):
        exact = acc.gaussian_epsilon(mu, DELTA)
        assert exact < epsilon(zcdp(mu**2 / 2), 1) < 1.35 * exact


def test_zcdp_minimises_over_all_orders():
    """Never above the conversion at the orders of the Rényi accountant, which are a few of them."""
    for rho, queries in ((0.001, 1), (0.02, 10), (3.0, 5)):
        by_orders = RenyiCurve([zcdp(rho).guarantee(queries).rdp]).epsilon(DELTA)
        assert 0.9 * by_orders < epsilon(zcdp(rho), queries) <= by_orders * (1 + 1e-9)


def test_zcdp_adds_up():
    assert epsilon(zcdp(0.01), 6) == pytest.approx(epsilon(zcdp(0.06), 1), rel=1e-9)
    assert epsilon(zcdp(0.0), 6) == 0


def test_zcdp_delta_is_a_bound_on_the_gaussian_with_the_same_rho():
    for epsilon_ in (0.5, 2.0, 6.0):
        assert acc.gaussian_delta(1.0, epsilon_) <= zcdp(0.5).guarantee(1).delta(epsilon_) <= 1


def test_laplace_curve_against_quadrature():
    order, scale = 3.0, 2.0

    def integrand(x):
        upper, lower = (math.exp(-abs(x - shift) / scale) / (2 * scale) for shift in (0.0, 1.0))
        return upper**order * lower ** (1 - order)

    moment = sum(quad(integrand, low, high)[0] for low, high in ((-80, 0), (0, 1), (1, 80)))
    assert laplace(scale).guarantee(4).rdp(np.array([order]))[0] == pytest.approx(
        4 * math.log(moment) / (order - 1), rel=1e-6
    )
