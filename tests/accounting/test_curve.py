"""The whole privacy curve: the risk, the trade-off curve and mu, against exact laws and attacks."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from tacita.accounting import (
    ApproximateDPEvent,
    FixedSizeLaw,
    FullBatchLaw,
    GaussianSumEvent,
    LaplaceEvent,
    PoissonLaw,
    PrivacyCurve,
    Spend,
    ZCDPEvent,
    attack_accuracy,
    curve_accuracy,
    delta,
    epsilon,
    gaussian_delta,
    privacy_curve,
)
from tacita.accounting.curve import worst_curve
from tacita.ledger import Ledger, statement


def sums(law, std, relation="add_or_remove_one"):
    return GaussianSumEvent(relation=relation, sampling=law, max_contribution=(1.0,), noise_std=(std,))


POISSON = sums(PoissonLaw(0.02), 1.0)
FULL = sums(FullBatchLaw(), 2.0)


def test_equal_priors_are_right_by_the_total_variation():
    """One Poisson query: the likelihood ratio test is right with (1 + TV) / 2, and TV is q (2 Phi(C / 2s) - 1)."""
    for rate, std in ((0.02, 1.0), (0.5, 0.7), (1e-6, 2.0)):
        exact = (1 + rate * (2 * norm.cdf(1 / (2 * std)) - 1)) / 2
        found = curve_accuracy(privacy_curve([Spend(sums(PoissonLaw(rate), std), 1)]).deltas)
        assert exact <= found
        assert found - 0.5 == pytest.approx(exact - 0.5, rel=2e-3)


@pytest.mark.parametrize("prior", [0.5, 0.1, 0.9, 0.999])
@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_a_prior_is_met_by_the_best_test_on_gaussian_noise(mu, prior):
    """Name the world whose posterior is larger: the threshold on x is at mu/2 - ln(p/(1-p))/mu."""
    at = mu / 2 - math.log(prior / (1 - prior)) / mu
    exact = prior * norm.sf(at - mu) + (1 - prior) * norm.cdf(at)
    found = curve_accuracy(privacy_curve([Spend(sums(FullBatchLaw(), 1 / mu), 1)]).deltas, prior=prior)
    assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-8)


@pytest.mark.parametrize("swapped", [False, True])
def test_no_prior_is_better_in_the_other_direction(swapped):
    """Poisson sampling is not symmetric: the best test for each prior, by quadrature, in both directions."""
    curve = privacy_curve([Spend(sums(PoissonLaw(0.3), 0.6), 1)])
    mixture = lambda x: 0.7 * norm.pdf(x) + 0.3 * norm.pdf(x - 1 / 0.6)  # noqa: E731
    first, second = (norm.pdf, mixture) if swapped else (mixture, norm.pdf)
    for prior in (0.05, 0.3, 0.5, 0.6, 0.95):
        x = np.linspace(-12, 14, 400_001)
        right = np.trapezoid(np.maximum(prior * first(x), (1 - prior) * second(x)), x)
        assert right <= curve_accuracy(curve.deltas, prior=prior) + 1e-9
    pair = [max(prior * 1, 1 - prior) for prior in (0.05, 0.95)]
    assert all(
        curve_accuracy(curve.deltas, prior=p) >= likelier for p, likelier in zip((0.05, 0.95), pair, strict=True)
    )


def test_known_sessions_are_told_apart_far_less_than_epsilon_alone_says():
    adult, alone = sums(FullBatchLaw(), 1 / 0.26805), attack_accuracy(1.0, 1e-5)
    found = curve_accuracy(privacy_curve([Spend(adult, 1)]).deltas)
    assert (round(alone, 3), round(found, 3)) == (0.731, 0.553)
    poisson = [Spend(sums(PoissonLaw(0.02), 1.4519), 2000)]
    assert attack_accuracy(epsilon(poisson, 1e-5).epsilon, 1e-5) > 0.95
    assert curve_accuracy(privacy_curve(poisson).deltas) < 0.64


def test_the_trade_off_curve_of_gaussian_noise_is_exact():
    """Phi(Phi^-1(a) + mu): the Neyman-Pearson test."""
    rates = np.array([1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9])
    for mu in (0.3, 1.0, 2.0):
        curve = privacy_curve([Spend(sums(FullBatchLaw(), 1 / mu), 1)])
        found = curve.true_positives(rates, np.linspace(0, 12, 4000))
        exact = norm.cdf(norm.ppf(rates) + mu)
        assert np.all(found >= exact)
        assert found == pytest.approx(exact, rel=1e-4)


def test_the_trade_off_curve_of_a_sampled_sum_lies_above_both_tests():
    curve = privacy_curve([Spend(sums(PoissonLaw(0.3), 0.6), 1)])
    cut = np.linspace(-4, 6, 101)  # a threshold on x is the likelihood ratio test, in either direction
    of_noise, shifted = norm.sf(cut), 0.7 * norm.sf(cut) + 0.3 * norm.sf(cut - 1 / 0.6)
    epsilons = np.linspace(0, 15, 3000)
    assert np.all(curve.true_positives(of_noise, epsilons) >= shifted)
    assert np.all(curve.true_positives(1 - shifted, epsilons) >= 1 - of_noise)
    least = np.minimum(curve.true_positives(of_noise, epsilons) - shifted, 1)
    assert np.max(least) < 0.1  # it is the larger direction's, and that one is close


def test_mu_is_that_of_gaussian_noise():
    curve = privacy_curve([Spend(FULL, 9)])
    assert curve.gaussian_mu(3.0) == pytest.approx(1.5, rel=1e-4)
    mu = curve.gaussian_mu(3.0)
    assert mu is not None
    assert mu >= 1.5


@pytest.mark.parametrize(
    "spends",
    [
        [Spend(POISSON, 150)],
        [Spend(sums(PoissonLaw(0.02), 1.0, "replace_one"), 150)],
        [Spend(sums(FixedSizeLaw(batch_size=10, num_records=500), 1.0, "replace_one"), 100)],
        [Spend(LaplaceEvent(relation="add_or_remove_one", l1_sensitivity=1.0, scale=2.0), 3)],
        [Spend(ZCDPEvent(relation="add_or_remove_one", rho=0.1), 1)],
    ],
)
def test_the_curve_of_mu_lies_above_everywhere(spends):
    """Between the points of the grid, too; and a mu that is a percent less does not."""
    value = epsilon(spends, 1e-5).epsilon
    curve = privacy_curve(spends)
    mu = curve.gaussian_mu(value)
    assert mu is not None
    points = np.random.default_rng(3).uniform(0, value, 5000)
    own = curve.deltas(points)
    assert np.all(own <= [gaussian_delta(mu, float(one)) for one in points])
    assert np.any(own > [gaussian_delta(0.99 * mu, float(one)) for one in points])


@pytest.mark.parametrize(
    "spends",
    [
        [Spend(POISSON, 150)],
        [Spend(FULL, 3)],
        [Spend(POISSON, 20), Spend(FULL, 1)],
        [Spend(ApproximateDPEvent(relation="add_or_remove_one", epsilon=0.5, delta_share=1e-6), 1), Spend(POISSON, 20)],
    ],
)
def test_it_is_the_accountants_delta_at_each_epsilon(spends):
    curve = privacy_curve(spends)
    assert curve.whole
    for one in (0.0, 0.3, 1.0, 2.5):
        assert float(curve.deltas(np.array([one]))[0]) == pytest.approx(delta(spends, one).delta, rel=5e-3, abs=1e-12)


def test_a_renyi_curve_falls_back_and_says_so():
    ledger = Ledger(
        neighboring_relation="add_or_remove_one",
        privacy_unit="one row",
        max_epsilon=2.0,
        max_delta=1e-5,
        filter_order=20.0,
    )
    ledger.register(sums(FullBatchLaw(), 20.0), planned_queries=1)
    fields = statement(ledger, 1e-5).to_json()
    assert not ledger.conditional_curve().whole
    assert "Rényi" in fields["attack_accuracy_from"]
    assert fields["attack_accuracy"] == pytest.approx(attack_accuracy(2.0, 1e-5), rel=1e-9)


def test_nothing_and_everything():
    assert curve_accuracy(privacy_curve([]).deltas, prior=0.7) == pytest.approx(0.7)
    exposed = privacy_curve([Spend(sums(FullBatchLaw(), 0.0), 1)])
    assert curve_accuracy(exposed.deltas) == 1.0
    assert exposed.gaussian_mu(math.inf) is None
    with pytest.raises(ValueError, match="prior must be"):
        curve_accuracy(exposed.deltas, prior=1.0)


def test_the_worst_of_several_classes_is_the_largest_at_each_epsilon():
    both = [PrivacyCurve(lambda e: np.exp(-e), True), PrivacyCurve(lambda e: 0.5 / (1 + e), False)]
    found = worst_curve(both)
    assert found.deltas(np.array([0.0, 3.0])).tolist() == [1.0, 0.125]
    assert not found.whole


# --- tiny rates ----------------------------------------------------------------------------------------------------


def exact_delta(rate, std, value):
    """Return delta of one Poisson query by quadrature of q R - (e^eps - 1 + q) Q, with nothing that cancels to 0."""
    shift = 1 / std
    cut = math.log1p(math.expm1(value) / rate) / shift + shift / 2
    return rate * norm.sf(cut - shift) - (math.expm1(value) + rate) * norm.sf(cut)


@pytest.mark.parametrize(
    ("rate", "std", "most_over"),
    [
        *((rate, std, 1.02) for rate in (1e-9, 5e-9, 1e-7, 1e-5, 0.1) for std in (1.0, 30.0)),
        *((rate, std, 1.05) for rate in (1e-5, 0.1) for std in (0.3, 0.47)),
    ],
)
def test_one_query_of_a_tiny_rate_is_exact(rate, std, most_over):
    most = rate * (2 * norm.cdf(1 / (2 * std)) - 1)
    for share in (0.9, 0.3, 0.03):
        wanted = share * most
        low, high = 0.0, 60.0
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if exact_delta(rate, std, middle) > wanted else (low, middle)
        found = epsilon([Spend(sums(PoissonLaw(rate), std), 1)], wanted).epsilon
        assert high * (1 - 1e-6) <= found <= most_over * high


def test_what_an_outside_check_found():
    """It was 2.027, by a Rényi curve; at noise 0.48 it was 0.0004."""
    near, beside = (epsilon([Spend(sums(PoissonLaw(5e-9), std), 10**6)], 1e-8) for std in (0.47, 0.48))
    assert near.accountant.startswith("PLD")
    assert 3.9e-4 < beside.epsilon < near.epsilon < 5.5e-4


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_a_thousand_million_tiny_queries_are_gaussian(relation):
    """Their losses are so small and so many that the central limit is exact to far less than a percent.

    Delta is 10 percent above it, epsilon 2.4: the finest grid has a million points. It was a thousand times as much.
    """
    mu = (1 + (relation == "replace_one")) * 1e-9 * math.sqrt(1e9) / 30.0
    found = delta([Spend(sums(PoissonLaw(1e-9), 30.0, relation), 10**9)], 2 * mu).delta
    assert 0.999 <= found / gaussian_delta(mu, 2 * mu) <= 1.12


def test_losses_far_below_zero_do_not_coarsen_the_grid():
    found = epsilon([Spend(sums(PoissonLaw(1e-6), 0.3), 1000)], 1e-8)
    assert found.accountant.startswith("PLD")
    assert 5.2 < found.epsilon < 5.35  # 8.4 by a Rényi curve


def test_integrals_of_the_reference():
    """The reference above against the definition."""
    mixture = lambda x: 0.9 * norm.pdf(x) + 0.1 * norm.pdf(x - 1)  # noqa: E731
    value = quad(lambda x: max(0.0, mixture(x) - math.exp(0.2) * norm.pdf(x)), -10, 12, limit=200, points=[2.0])[0]
    assert exact_delta(0.1, 1.0, 0.2) == pytest.approx(value, rel=1e-6)
