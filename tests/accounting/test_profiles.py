"""Privacy profiles, and the symmetric pairs that are made of them."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from tacita import accounting as acc
from tacita.accounting import calibration
from tacita.accounting._gaussian_mixture import ShownGaussianPair
from tacita.accounting._tilted import composed
from tacita.accounting._window import Window
from tacita.accounting.aim import aim_at_delta
from tacita.accounting.line_pairs import MixturePair
from tacita.accounting.privacy_profiles import profile
from tacita.accounting.profile_pairs import WorstPair, symmetric_law
from tacita.tables.selection_events import WorstOfEvent
from tests.accounting.library_pld import library_pld

EPSILONS = np.array([0.0, 1e-3, 0.05, 0.3, 1.0, 2.0, 3.5])


def sampled_delta(q, mu, epsilon):
    """One sampled Gaussian query, the larger one of both directions."""
    cut = (math.log(math.expm1(epsilon) / q + 1) / mu + mu / 2) if epsilon > 0 else mu / 2
    forward = q * ndtr(mu - cut) + (1 - math.exp(epsilon) - q) * ndtr(-cut)
    if math.exp(-epsilon) <= 1 - q:
        return forward
    back = math.log((math.exp(-epsilon) - 1 + q) / q) / mu + mu / 2
    return max(forward, ndtr(back) - math.exp(epsilon) * ((1 - q) * ndtr(back) + q * ndtr(back - mu)))


@pytest.mark.parametrize(("q", "mu"), [(0.3, 1.0), (0.01, 2.0), (1e-3, 9.0)])
def test_the_profile_of_one_query_is_just_above_the_exact_one(q, mu):
    exact = np.array([sampled_delta(q, mu, epsilon) for epsilon in EPSILONS])
    found = profile(((MixturePair((0.0, mu), (1 - q, q)), 1),))(EPSILONS)
    assert np.all(found >= exact * (1 - 1e-9))
    assert np.all(found <= exact * 1.01 + 1e-12)


def test_the_profile_of_many_queries_is_that_of_gaussians():
    """Two mus that are one, so that they are composed on a grid."""
    pair = ShownGaussianPair((0.05, 0.05), (0.5, 0.5))
    found = profile(((pair, 400),))(EPSILONS)
    exact = np.array([acc.gaussian_delta(1.0, epsilon) for epsilon in EPSILONS])
    assert np.all(found >= exact)
    assert np.all(found <= exact * 1.005)


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.3])
def test_a_large_delta_is_read_as_accurately_as_a_small_one(epsilon, events):
    """Large losses are rare here, and a large tilt would make the most of them."""
    event = events.poisson(0.01, 1.0)
    exact = library_pld(event.guarantee(1000), 2.0**-13).get_delta_for_epsilon(epsilon)
    found = acc.delta([acc.Spend(event, 1000)], epsilon).delta
    assert exact * 0.99 <= found <= exact * 1.01


def test_a_tilt_that_is_too_steep_for_the_grid_is_not_followed():
    """The weights of the nearest points would underflow to 0, and delta with them."""
    pair = MixturePair((0.0, 9.0), (0.999, 0.001))
    law = pair.law(1e-5, pair.reach(1e-12, swapped=True), swapped=True)
    total = composed([(law, 1)], 1e12, -1e-3, 2**12, 2e12)
    assert total.delta(0.0) >= 0.999e-3
    assert total.theta * total.interval <= 20 * (1 + 1e-9)


@pytest.mark.parametrize("delta", [0.3, 0.1, 0.02])
def test_a_window_of_a_small_tilt_ends_before_what_comes_round(delta):
    parts = ((ShownGaussianPair((0.05, 0.05), (0.5, 0.5)), 400),)
    aim = aim_at_delta(parts, delta, swapped=False)
    total, _ = Window(parts, aim, 0.0, False).total()
    for epsilon in (0.0, 0.2):
        exact = acc.gaussian_delta(1.0, epsilon)
        assert exact <= total.delta(epsilon) <= exact * 1.001


def law_delta(law, epsilon):
    gap = np.minimum(0.0, epsilon - law.losses)
    return float(law.infinity + law.masses @ -np.expm1(gap))


@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-3])
def test_a_symmetric_law_is_above_what_its_points_bound(noise):
    """Points that are bounds, and are not convex by their noise; at g = 1 the bound is useless."""
    interval, mu = 0.01, 0.7
    at = np.arange(600) * interval
    exact = np.array([acc.gaussian_delta(mu, epsilon) for epsilon in at])
    bounds = exact * (1 + noise * np.random.default_rng(0).random(600))
    bounds[:3] = 1.0
    law = symmetric_law(bounds, interval)
    for epsilon in (0.0, 0.0137, 0.5, 1.0, 2.22, 4.0):
        assert acc.gaussian_delta(mu, epsilon) <= law_delta(law, epsilon)
        if epsilon >= 0.5:
            assert law_delta(law, epsilon) <= acc.gaussian_delta(mu, epsilon) * (1.001 + 30 * noise)
        below = 1 - math.exp(-epsilon) + math.exp(-epsilon) * acc.gaussian_delta(mu, epsilon)
        assert below * (1 - 1e-9) <= law_delta(law, -epsilon)
    assert law.masses.sum() + law.infinity == pytest.approx(1, abs=1e-5 + 10 * noise)


def test_the_worst_of_two_is_composed_as_a_pair(events):
    """A Gaussian session beside a sampled one; twice of it is above twice of each."""
    loud, quiet = events.poisson(0.02, 1.0), events.full(2.0)
    parts = (loud.guarantee(150).pairs(), quiet.guarantee(1).pairs())
    worst = WorstOfEvent(relation="add_or_remove_one", parts=(loud, quiet), part_queries=(150, 1))
    assert worst.guarantee(2).pairs() == ((WorstPair(parts), 2),)
    twice = acc.epsilon([acc.Spend(worst, 2)], 1e-6).epsilon
    each = [acc.epsilon([acc.Spend(loud, 300)], 1e-6).epsilon, acc.epsilon([acc.Spend(quiet, 2)], 1e-6).epsilon]
    assert max(each) * (1 - 1e-4) <= twice <= 1.1 * max(each)


def test_calibration_reads_few_times_where_an_estimate_serves(monkeypatch):
    """And what it returns has been accounted, whatever the estimate says."""
    readings = []
    whole = calibration.epsilon
    monkeypatch.setattr(calibration, "epsilon", lambda *given: readings.append(1) or whole(*given))

    def event_at(multiplier):
        return acc.GaussianSumEvent(
            relation="add_or_remove_one",
            max_contribution=(1.0,),
            noise_std=(multiplier,),
            sampling=acc.PoissonLaw(0.01),
        )

    found = acc.calibrate(event_at, "add_or_remove_one", 3.0, 1e-6, queries=2000)
    assert len(readings) <= 3
    assert 0.999 * 3 <= whole([acc.Spend(event_at(found), 2000)], 1e-6).epsilon <= 3
    monkeypatch.setattr(calibration, "expected_epsilon", lambda *given: 1.0)  # of no use at all
    assert acc.calibrate(event_at, "add_or_remove_one", 3.0, 1e-6, queries=2000) == pytest.approx(found, rel=1e-3)
