"""What an attacker can guess: against randomised response, which meets the bound, and the Gaussian mechanism."""

import math
from decimal import Decimal, localcontext

import pytest
from scipy.optimize import linprog
from scipy.stats import norm

from tacita.accounting import attack_accuracy, gaussian_epsilon


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.2])
@pytest.mark.parametrize("prior", [0.5, 0.1, 0.9, 0.999])
def test_it_is_the_most_that_the_guarantee_allows(epsilon, delta, prior):
    """The linear program over both rates is what the definition says, without the formula for its corners."""
    e = math.exp(epsilon)
    rates = linprog(  # a = P(S), b = Q(S); right with prior * a + (1 - prior) * (1 - b)
        c=[-prior, 1 - prior],
        A_ub=[[1, -e], [e, -1], [-e, 1], [-1, e]],
        b_ub=[delta, e - 1 + delta, delta, e - 1 + delta],
        bounds=[(0, 1), (0, 1)],
    )
    most = 1 - prior - rates.fun
    found = attack_accuracy(epsilon, delta, prior=prior)
    assert found == pytest.approx(most, rel=1e-7)
    assert found <= 1


@pytest.mark.parametrize("mu", [0.1, 0.5, 2.0])
def test_the_best_attack_on_gaussian_noise_stays_below(mu):
    best = norm.cdf(mu / 2)  # the likelihood ratio test between N(0, 1) and N(mu, 1)
    for delta in (1e-9, 1e-5, 1e-2):
        assert best <= attack_accuracy(gaussian_epsilon(mu, delta), delta)


def test_randomised_response_meets_it_and_the_bound_is_not_below():
    for epsilon in (0.01, 0.5, 1.0, 7.0):
        true = math.exp(epsilon) / (1 + math.exp(epsilon))
        assert true <= attack_accuracy(epsilon, 0.0) <= true * (1 + 1e-14)


def test_it_is_never_below_the_exact_number():
    """Against forty digits: the float64 operations alone are below it for about half of all arguments."""
    with localcontext(prec=40):
        for epsilon in (k / 7 for k in range(1, 60)):
            for delta in (0.0, 1e-5, 1e-3):
                exact = 1 - (1 - Decimal(delta)) / (1 + Decimal(epsilon).exp())
                assert Decimal(attack_accuracy(epsilon, delta)) >= exact
                assert attack_accuracy(epsilon, delta) == pytest.approx(float(exact), rel=1e-14)


def test_nothing_is_promised_without_an_epsilon():
    assert attack_accuracy(math.inf, 1e-5) == attack_accuracy(1e6, 1e-5) == 1.0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((-0.1, 1e-5), "epsilon"), ((math.nan, 1e-5), "epsilon"), ((1.0, 1.0), "delta"), ((1.0, -0.1), "delta")],
)
def test_wrong_arguments(arguments, named):
    with pytest.raises(ValueError, match=named):
        attack_accuracy(*arguments)
    with pytest.raises(ValueError, match="prior"):
        attack_accuracy(1.0, 1e-5, prior=1.0)


@pytest.mark.parametrize("prior", [0.1, 0.3, 0.5, 0.999])
def test_the_two_data_sets_are_alike(prior):
    """Which of them is called the first says nothing, and a belief is right as often as it is sure."""
    found = attack_accuracy(0.5, 1e-5, prior=prior)
    assert found == pytest.approx(attack_accuracy(0.5, 1e-5, prior=1 - prior), rel=1e-12)
    assert found >= max(prior, 1 - prior)
