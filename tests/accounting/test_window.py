"""Compositions whose large losses are set apart, capped or read on several grids: upper bounds, and accurate."""

import math

import numpy as np
import pytest

from tacita import accounting as acc
from tacita.accounting import _window
from tacita.accounting._loss_law import LossLaw, set_apart
from tacita.accounting._tilted import composed
from tacita.accounting._window import Window
from tacita.accounting.aim import aim_at_delta
from tacita.accounting.line_pairs import EnvelopePair, MixturePair, ReplacedPair
from tacita.accounting.pld_accountant import EpsilonQuery, _larger, directions
from tests.accounting.characteristic import delta as by_contour

INTERVAL, QUERIES = 0.05, 400
SMALL = np.array([0.02, 0.98 - 0.02 * np.exp(INTERVAL), 0.02 * np.exp(INTERVAL)])  # from -1 on
LARGE = np.array([2e-6, 1e-7, 0.0, 1e-9, 3e-12])  # from 9 on


def exact_deltas(epsilons):
    """By plain convolution of all losses: no term is negative, so every mass is accurate to rounding."""
    one = np.zeros(15)
    one[:3], one[10:] = SMALL * (1 - LARGE.sum()), LARGE
    total = np.ones(1)
    for _ in range(QUERIES):
        total = np.convolve(total, one)
    losses = (np.arange(len(total)) - QUERIES) * INTERVAL
    return [float(total @ np.where(losses > e, -np.expm1(e - np.maximum(losses, e)), 0.0)) for e in epsilons]


@pytest.mark.parametrize("epsilon", [0.0, 0.111, 0.52, 1.0, 1.49, 2.3])
def test_small_and_large_losses_apart_are_the_whole(epsilon):
    """At 1.2 and more two large losses are needed, or many small ones."""
    (exact,) = exact_deltas([epsilon])
    laws = set_apart(
        LossLaw(INTERVAL, -1, SMALL * (1 - LARGE.sum()), 0.0),
        LossLaw(INTERVAL, -1, np.concatenate([np.zeros(10), LARGE]), 0.0),
    )
    total = composed([(law, QUERIES) for law in laws], 5 * epsilon, -1.0, 1024, 20.0)
    assert exact * (1 - 1e-12) <= total.delta(epsilon) <= exact * (1 + 30 / QUERIES)


def law_delta(law, epsilon):
    return law.infinity + float(law.masses @ -np.expm1(np.minimum(0.0, epsilon - law.losses)))


def test_a_large_loss_is_raised_by_what_small_ones_may_take_away():
    """One query: its small losses are all below 0, and a large one has none of them beside it."""
    small, large = LossLaw(0.5, -1, np.array([0.6, 0.1]), 0.0), LossLaw(0.5, -1, np.array([0.0, 0.0, 0.0, 0.3]), 0.0)
    one, other = set_apart(small, large)
    both = LossLaw(0.5, -2, np.convolve(one.masses, other.masses), 0.0)
    for epsilon in (0.0, 0.3, 0.7):
        assert law_delta(both, epsilon) >= law_delta(large, epsilon)


def test_a_coarser_grid_only_adds():
    pair = MixturePair((0.0, 1.0), (0.9, 0.1))
    law = pair.law(2.0**-10, pair.reach(1e-12, swapped=False), swapped=False)
    rough = law.coarsened(16)
    assert rough.interval == 2.0**-6
    for epsilon in (0.0, 0.013, 0.5, 1.7):
        assert law_delta(law, epsilon) * (1 - 1e-12) <= law_delta(rough, epsilon) <= law_delta(law, epsilon) * 1.01
    assert rough.masses.sum() == pytest.approx(law.masses.sum(), rel=1e-12)
    assert rough.masses @ np.exp(-rough.losses) == pytest.approx(law.masses @ np.exp(-law.losses), rel=1e-12)


PAIRS = [MixturePair((0.0, 1.3), (1 - 1e-4, 1e-4)), ReplacedPair(1.3, 1e-4), EnvelopePair(1.3, 1e-4)]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_all_queries_of_a_part_are_composed(pair):
    """A number that is not a square: groups, what is left of them, and large losses have the mean of all queries.

    They have no less than the exponential moments of all, and no law has lost any of its mass.
    """
    queries, delta = 123_456, 1e-9
    for swapped in directions([(pair, queries)]):
        window = Window(((pair, queries),), aim_at_delta(((pair, queries),), delta, swapped=swapped), 0.0, swapped)
        (apart,), (ends,) = [window._apart(0)], window._ends
        laws, fine = apart.laws(ends, apart.fine, window)
        assert fine
        assert len(laws) == 3
        plain = pair.law(ends[1] / 2**17 if not swapped else -ends[0] / 2**21, ends, swapped=swapped)
        mean, square = (queries * float(plain.masses @ plain.losses**k) for k in (1, 2))
        found = math.fsum(n * float(law.masses @ law.losses) for law, n in laws)
        assert found == pytest.approx(mean, abs=2e-3 * math.sqrt(square))
        for theta in (window.aim.theta / 2, window.aim.theta):
            moment = math.fsum(n * law.log_moment(theta)[0] for law, n in laws)
            assert moment >= queries * plain.log_moment(theta)[0]  # those left are 0.002 of it
        assert min(law.masses.sum() + law.infinity for law, _ in laws) >= 1 - 1e-12
        (group, _), (rest, _), _ = laws
        assert group.infinity > 0  # what is above its window
        assert group.loss_error >= apart.size * rest.loss_error > 0


def test_what_is_below_the_window_of_a_group_is_raised_to_it(monkeypatch):
    """A window that begins at the mean of the small losses: what is below counts at its first point, by its bound."""
    pair, queries = PAIRS[0], 123_456
    window = Window(((pair, queries),), aim_at_delta(((pair, queries),), 1e-9, swapped=False), 0.0, False)
    (apart,), (ends,) = [window._apart(0)], window._ends
    known = _window.beside
    monkeypatch.setattr(_window, "beside", lambda *asked: (0.0, known(*asked)[1]))
    (group, _), _, _ = apart.laws(ends, apart.fine, window)[0]
    assert group.masses.sum() + group.infinity >= 1


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_any_points_are_a_grid(pair):
    """Each mass is split between the points beside it, and above the last one between that and infinity."""
    points = np.array([-0.3, -0.01, -2e-4, -1e-4, 0.0, 1e-5, 3e-4, 0.02, 0.5, 1.7])
    for swapped in directions([(pair, 1)]):
        masses, infinity, error = pair.at(points, swapped=swapped)
        fine = pair.law(1e-5, pair.reach(1e-18, swapped=swapped), swapped=swapped)
        for epsilon in (-0.2, -1e-4, 0.0, 2e-4, 0.1, 1.0, 2.0):
            rough = infinity + float(masses @ -np.expm1(np.minimum(0.0, epsilon - points)))
            assert law_delta(fine, epsilon + error) * (1 - 1e-6) - 1e-15 <= rough
        assert masses.sum() + infinity == pytest.approx(1, abs=1e-12)
        assert masses.sum() + infinity >= 1
        if pair.reach(1e-18, swapped=swapped)[0] > points[0]:
            assert masses @ np.exp(-points) == pytest.approx(1, abs=1e-12)


# Sessions in which hardly any query shows the record.


@pytest.mark.parametrize(
    ("rate", "queries", "std", "delta", "printed"),
    [
        (1e-7, 10**9, 0.5, 1e-8, 0.4847),
        (1e-7, 10**9, 0.5, 1e-10, 0.7798),
        (1e-9, 10**9, 0.47, 1e-10, 0.00605),
        (1e-9, 2, 0.3, 1e-10, 2.945e-5),
        (1e-9, 2, 0.47, 1e-10, 1.5895e-7),
    ],
)
def test_tiny_rates_are_tight(rate, queries, std, delta, printed):
    """Against an inversion of the characteristic function; ``printed`` was before losses were capped and set apart."""
    pair = MixturePair((0.0, 1 / std), (1 - rate, rate))
    reading = _larger([EpsilonQuery(((pair, queries),), swapped, delta) for swapped in (False, True)])
    assert reading.resolved
    assert reading.value < 0.97 * printed
    assert by_contour(reading.value, rate, 1 / std, queries) <= delta * (1 + 1e-6)
    assert by_contour(reading.value / 1.002, rate, 1 / std, queries) > delta


# The values are those of transforms in 80 bit arithmetic, on grids that were halved and extrapolated.


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
    reading = _larger([EpsilonQuery(((pair, queries),), False, delta)])
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
