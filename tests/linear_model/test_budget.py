"""The budget of a fit: in epsilon or in rho, shares that add up to it."""

import math

import pytest

from tacita.accounting import gaussian_epsilon, gaussian_mu
from tacita.linear_model.budget import FitBudget

DELTA = 1e-6


@pytest.mark.parametrize("rho", [1e-4, 0.05, 2.0])
def test_a_budget_in_rho_is_that_of_its_gaussian(rho):
    """A Gaussian query of mu is mu^2 / 2-zCDP: neither more nor less than rho is spent."""
    budget = FitBudget(rho=rho, delta=DELTA, relation="zero_out_one", scales=0.1, moments=0.3)
    assert budget.mu**2 / 2 == pytest.approx(rho, rel=1e-8)
    assert budget.mu**2 / 2 < rho
    assert budget.total_epsilon == pytest.approx(gaussian_epsilon(math.sqrt(2 * rho), DELTA))
    same = FitBudget(epsilon=budget.total_epsilon, delta=DELTA, relation="zero_out_one", scales=0.1, moments=0.3)
    assert same.noise_multiplier(0.3, 7) == pytest.approx(budget.noise_multiplier(0.3, 7), rel=1e-6)


def test_shares_add_up():
    budget = FitBudget(epsilon=1.0, delta=DELTA, relation="replace_one", scales=0.1, classes=0.1, moments=0.08)
    parts = (budget.scales, budget.classes, budget.moments, budget.rest)
    total = math.sqrt(sum(1 / budget.noise_multiplier(share) ** 2 for share in parts))
    assert total == pytest.approx(gaussian_mu(1.0, 0.9 * DELTA))


def test_a_rho_that_delta_covers_has_a_positive_epsilon():
    assert FitBudget(rho=1e-30, delta=DELTA, relation="zero_out_one").total_epsilon > 0


@pytest.mark.parametrize("given", [{}, {"epsilon": 1.0, "rho": 1.0}, {"rho": math.nan}, {"rho": -1.0}])
def test_one_of_the_two_is_given(given):
    with pytest.raises(ValueError, match=r"epsilon or rho must be given|rho must be"):
        FitBudget(delta=DELTA, relation="zero_out_one", **given)
