"""The budget of a fit: in epsilon or in rho, shares that add up to it."""

import math

import pytest

from tacita.accounting import RELATIONS, gaussian_epsilon, gaussian_mu, moved
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
    budget = FitBudget(
        epsilon=1.0, delta=DELTA, relation="replace_one", scales=0.1, classes=0.1, labels=0.05, moments=0.08
    )
    parts = (budget.scales, budget.classes, budget.labels, budget.moments, budget.rest)
    total = math.sqrt(sum(1 / budget.noise_multiplier(share) ** 2 for share in parts))
    assert total == pytest.approx(gaussian_mu(1.0, 0.9 * DELTA))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("columns", [1, 9])
def test_counts_state_what_a_record_moves_and_spend_their_share(relation, columns):
    """A record is in one bin of each histogram, and in two of each if it is replaced."""
    budget = FitBudget(epsilon=1.0, delta=DELTA, relation=relation, scales=0.1, classes=0.2, labels=0.05)
    for event, histograms, share in (
        (budget.scales_event(columns), columns, 0.1),
        (budget.scales_event(columns, 0.3), columns, 0.3),
        (budget.classes_event(), 1, 0.2),
        (budget.labels_event(), 1, 0.05),
    ):
        assert event.max_contribution == (math.sqrt(histograms),)
        assert event.query_mu == pytest.approx(budget.mu * math.sqrt(share))
        assert event.query_mu == pytest.approx(math.sqrt(moved(relation) * histograms) / event.noise_std[0])


def test_a_rho_that_delta_covers_has_a_positive_epsilon():
    assert FitBudget(rho=1e-30, delta=DELTA, relation="zero_out_one").total_epsilon > 0


@pytest.mark.parametrize("given", [{}, {"epsilon": 1.0, "rho": 1.0}, {"rho": math.nan}, {"rho": -1.0}])
def test_one_of_the_two_is_given(given):
    with pytest.raises(ValueError, match=r"epsilon or rho must be given|rho must be"):
        FitBudget(delta=DELTA, relation="zero_out_one", **given)
