"""Totals by the number of rare large losses: upper bounds, and accurate where no single tilt is."""

import mpmath
import numpy as np
import pytest

from tacita import accounting as acc
from tacita.accounting._line_pairs import EnvelopePair, MixturePair, ReplacedPair
from tacita.accounting._loss_law import LossLaw, Stretch
from tacita.accounting._pld_accountant import EpsilonAt, _larger
from tacita.accounting._rare_losses import coarsened, divergence, rare_total
from tacita.accounting._several_rare_losses import STEEPEST_EXPONENT, Rare, _exp_two, _log_moments
from tacita.accounting._totals import _rare

INTERVAL, QUERIES = 0.05, 400
BULK = np.array([0.02, 0.98 - 0.02 * np.exp(INTERVAL), 0.02 * np.exp(INTERVAL)])  # from -1 on; as likely in both worlds
LARGE = np.array([2e-6, 1e-7, 0.0, 1e-9, 3e-12])  # from 9 on


def exact_deltas(epsilons):
    """By plain convolution of all losses: no term is negative, so every mass is accurate to rounding."""
    one = np.zeros(15)
    one[:3], one[10:] = BULK * (1 - LARGE.sum()), LARGE
    total = np.ones(1)
    for _ in range(QUERIES):
        total = np.convolve(total, one)
    losses = (np.arange(len(total)) - QUERIES) * INTERVAL
    return [float(total @ np.where(losses > e, -np.expm1(e - np.maximum(losses, e)), 0.0)) for e in epsilons]


def total_by_number(epsilon, delta, fine=1):
    bulk = LossLaw(INTERVAL, -1, BULK * (1 - LARGE.sum()), 0.0)
    rare = _rare(bulk, Stretch(INTERVAL, 9, LARGE, 0.0, 0.0, 0.0), QUERIES)
    return rare_total([(bulk, QUERIES)], rare, 0.0, (epsilon, delta), np.inf)


@pytest.mark.parametrize("epsilon", [0.0, 0.111, 0.52, 1.0, 1.49, 2.3])
def test_the_sum_over_numbers_of_large_losses_is_the_whole(epsilon):
    (exact,) = exact_deltas([epsilon])
    total = total_by_number(epsilon, exact)
    assert exact * (1 - 1e-12) <= total.delta(epsilon) <= exact * (1 + 30 / QUERIES)
    assert total.rounding_share(epsilon) < 1e-6


def test_where_it_is_read_changes_no_more_than_how_tight_it_is():
    for epsilon, exact in zip((0.3, 1.0, 2.0), exact_deltas((0.3, 1.0, 2.0)), strict=True):
        for elsewhere in (0.1, 5.0):
            assert total_by_number(elsewhere, 1e-12).delta(epsilon) >= exact * (1 - 1e-12)


def test_each_number_counts():
    """At 1.2 two large losses are needed; they make what a bulk alone and one large loss do not."""
    (exact,) = exact_deltas([1.2])
    total = total_by_number(1.2, exact)
    assert total.more.delta(1.2) > 1e-3 * exact
    assert total.delta(1.2) > exact - 1e-12 * exact


def test_a_coarser_grid_only_adds():
    law = MixturePair((0.0, 1.0), (0.9, 0.1)).law(2.0**-10, 1e-12, swapped=False)
    rough = coarsened(law, 2.0**-6)
    for epsilon in (0.0, 0.013, 0.5, 1.7):
        gaps = [np.maximum(x.losses - epsilon, 0.0) for x in (law, rough)]
        fine, coarse = (float(-np.expm1(-gap) @ x.masses) for gap, x in zip(gaps, (law, rough), strict=True))
        assert fine * (1 - 1e-12) <= coarse <= fine * 1.01
    assert rough.masses.sum() == pytest.approx(law.masses.sum(), rel=1e-12)
    assert rough.masses @ np.exp(-rough.losses) == pytest.approx(law.masses @ np.exp(-law.losses), rel=1e-12)


def test_a_divergence_on_a_grid_is_exact_at_its_points():
    masses = np.array([1e-3, 0.0, 1e-12, 1e-20])
    found = divergence(5, masses, 0.1, -3)
    for i, value in zip(range(-3, 9), found.values, strict=True):
        gaps = (np.arange(5, 9) - i) * 0.1
        assert value == pytest.approx(float(masses @ -np.expm1(-np.maximum(gaps, 0.0))), rel=1e-13, abs=0)


@pytest.mark.parametrize("first", [5, 3 * 10**9])
def test_a_divergence_far_below_its_masses_needs_no_memory(first):
    masses = np.array([1e-3, 0.0, 1e-12])
    found = divergence(first, masses, 1e-10, -2)
    for start in (-2, 3):
        for i, value in zip(range(start, 5), found.between(start, 5), strict=True):
            exact = float(masses @ -np.expm1(-(np.arange(first, first + 3) - i) * 1e-10))
            assert exact * (1 - 1e-12) <= value <= exact * (1 + 1e-9)


def test_a_divergence_is_infinite_where_masses_were_left_out():
    assert np.all(np.isinf(divergence(5, np.ones(4), 0.1, 7).between(5, 7)))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_moment_of_two_and_more_is_not_cut_off(share):
    """At exp(600) it was, so that Chernoff's bound could be below what it bounds."""
    rare = Rare(0.01, 50, np.array([1e-4, 0.0, 1e-250]), 0.0)
    theta = share * STEEPEST_EXPONENT / float(rare.losses[-1])
    bulk = LossLaw(0.01, -1, np.array([0.3, 0.3, 0.4]), 0.0)
    with mpmath.workdps(60):
        number = mpmath.fsum(
            mpmath.mpf(m) * mpmath.exp(theta * loss) for m, loss in zip(rare.masses, rare.losses, strict=True)
        )
        exact = mpmath.log(mpmath.exp(number) - 1 - number) + bulk.log_moment(theta)[0]
        assert exact - abs(exact) * mpmath.mpf(1e-9) <= _log_moments(bulk, rare)(theta)


def test_the_series_of_two_and_more_meets_the_closed_form():
    z = 0.5 * np.exp(1j * np.linspace(0, 6, 50)) * np.array([[0.999], [1.001]])
    assert np.abs(_exp_two(z) / (np.exp(z) - 1 - z) - 1).max() < 1e-13
    assert _exp_two(np.array([1e-9]))[0] == pytest.approx(5e-19, rel=1e-8)


@pytest.mark.parametrize(
    "pair", [MixturePair((0.0, 1.3), (0.99, 0.01)), ReplacedPair(1.3, 0.01), EnvelopePair(1.3, 0.01)], ids=str
)
@pytest.mark.parametrize("swapped", [False, True])
def test_two_stretches_are_the_whole_law(pair, swapped):
    if swapped and pair.symmetric:
        return
    law = pair.law(0.01, 1e-12, swapped=swapped)
    last = law.first + len(law.masses) - 1
    cut = max(1, law.first + 2, last // 3)
    low = pair.stretch(0.01, law.first, cut, swapped=swapped).without_above()
    high = pair.stretch(0.01, cut, last, swapped=swapped)
    masses = np.concatenate([low.masses, np.zeros(last - cut)])
    masses[cut - law.first :] += high.masses
    np.testing.assert_allclose(masses, law.masses, rtol=1e-12, atol=1e-300)
    assert high.above == pytest.approx(law.infinity, rel=1e-12)


# Sessions in which hardly any query shows the record: the values are those of transforms in 80 bit arithmetic, on
# grids that were halved and extrapolated.


@pytest.mark.parametrize(
    ("rate", "queries", "std", "delta", "exact"),
    [
        (1e-6, 10**6, 0.6, 1e-10, 0.10199),
        (1e-5, 10**5, 0.7, 1e-13, 0.53525),
        (1e-4, 10**6, 0.8, 1e-15, 2.1963),
    ],
)
def test_sparse_sessions(rate, queries, std, delta, exact):
    """No single tilt resolves these: 0.1047 and 2.1982 were printed, say."""
    pair = MixturePair((0.0, 1 / std), (1 - rate, rate))
    reading = _larger([EpsilonAt(((pair, queries),), False, delta)])
    assert reading.resolved
    assert exact * (1 - 1e-5) <= reading.value <= exact * 1.001


@pytest.mark.parametrize(
    ("sampled", "queries", "delta", "relation", "ends"),
    [
        ((8.77e-5, 0.721), 46, 5.5e-7, "replace_one", (0.02211, 0.022135)),
        ((1.63e-5, 0.958), 1231, 4e-7, "add_or_remove_one", (0.0026800, 0.0026808)),
    ],
)
def test_tiny_epsilons_of_few_queries(sampled, queries, delta, relation, ends):
    """0.02234 and 0.00272 were printed: two large losses were taken to be infinite."""
    event = acc.GaussianSumEvent(
        relation=relation, max_contribution=(1.0,), noise_std=(sampled[1],), sampling=acc.PoissonLaw(sampled[0])
    )
    assert ends[0] <= acc.epsilon([acc.Spend(event, queries)], delta).epsilon <= ends[1]


@pytest.mark.parametrize(
    ("rate", "queries", "std", "delta"),
    [(1e-6, 10**6, 0.6, 1e-10), (1e-5, 10**5, 0.7, 1e-13), (0.02, 150, 1.0, 1e-5), (0.1, 100, 4.0, 0.1)],
)
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_delta_and_epsilon_are_inverse(rate, queries, std, delta, relation):
    event = acc.GaussianSumEvent(
        relation=relation, max_contribution=(1.0,), noise_std=(std,), sampling=acc.PoissonLaw(rate)
    )
    epsilon = acc.epsilon([acc.Spend(event, queries)], delta).epsilon
    assert acc.delta([acc.Spend(event, queries)], epsilon).delta == pytest.approx(delta, rel=2e-3)


def test_a_large_delta_at_a_small_epsilon():
    """0.00169 was printed where a window began.

    dp_accounting's optimistic estimate is 0.00126 (interval 5e-7), its pessimistic one 0.00129 (interval 2e-6).
    """
    event = acc.GaussianSumEvent(
        relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(4.0,), sampling=acc.PoissonLaw(0.1)
    )
    assert acc.epsilon([acc.Spend(event, 100)], 0.1).epsilon < 0.001290
