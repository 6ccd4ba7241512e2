"""The arithmetic of a tilted composition, against exact fractions."""

import math
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest

from tacita import accounting as acc
from tacita.accounting._loss_law import LossLaw
from tacita.accounting._tilted import composed, moments
from tacita.accounting.line_pairs import GaussianPair

SMALL = LossLaw(0.5, -1, np.array([0.25, 0.125, 0.5, 0.0, 0.125]), 0.0)


@cache
def exact_total(queries):
    masses, total = [Fraction(float(m)) for m in SMALL.masses], [Fraction(1)]
    for _ in range(queries):
        following = [Fraction(0)] * (len(total) + len(masses) - 1)
        for i, a in enumerate(total):
            for j, b in enumerate(masses):
                following[i + j] += a * b
        total = following
    return total


def exact_delta(queries, epsilon):
    total = exact_total(queries)
    losses = [(-queries + i) * 0.5 for i in range(len(total))]
    return math.fsum(
        float(mass) * -math.expm1(epsilon - loss) for loss, mass in zip(losses, total, strict=True) if loss > epsilon
    )


@pytest.mark.parametrize("theta", [0.0, 0.7, 2.5])
@pytest.mark.parametrize("queries", [1, 7, 60])
def test_a_composition_is_an_upper_bound_with_relative_accuracy(theta, queries):
    total = composed([(SMALL, queries)], theta, -queries / 2, 1024, theta + 1)
    exact = exact_total(queries)
    scale = math.exp(total.log_scale)
    for i in range(0, len(exact), 5):
        true = float(exact[i]) * math.exp(theta * float(total.losses[i])) / scale
        assert true <= total.masses[i] * (1 + 1e-12)
        assert total.masses[i] <= true * (1 + 1e-12) + 2.5 * total.rounding
    middle = float(np.average(total.losses, weights=total.masses))
    assert (
        exact_delta(queries, middle) * (1 - 1e-12) <= total.delta(middle) <= exact_delta(queries, middle) * (1 + 1e-7)
    )


def test_a_tilt_reaches_deltas_below_the_rounding_of_one():
    exact = exact_delta(60, 75.0)
    assert 0 < exact < 1e-25
    plain, tilted = (composed([(SMALL, 60)], theta, -40.0, 1024, theta + 1) for theta in (0.0, 3.0))
    assert exact <= tilted.delta(75.0) <= exact * (1 + 1e-6)
    assert plain.delta(75.0) > 1e6 * exact  # without a tilt the bound on rounding is all there is


@pytest.mark.parametrize("lowest", [-30.0, 0.0, 20.0, 26.0])
def test_a_window_that_is_too_small_is_still_an_upper_bound(lowest):
    """What lies below comes round and adds; what lies above is bounded by its moments."""
    total = composed([(SMALL, 60)], 0.3, lowest, 16, 1.3)
    for epsilon in np.linspace(max(lowest, 0.0) + 0.1, lowest + 7.5, 7):
        if epsilon >= lowest:
            assert total.delta(float(epsilon)) >= exact_delta(60, float(epsilon)) * (1 - 1e-12)


def test_laws_on_a_coarser_grid_compose_with_finer_ones():
    fine = GaussianPair(0.3).law(2.0**-8, (-4.0, 4.0), swapped=False)
    coarse = GaussianPair(0.4).law(2.0**-6, (-5.0, 5.0), swapped=False)
    total = composed([(fine, 1), (coarse, 1)], 5.0, -1.0, 2**11, 9.0)
    for epsilon in (0.0, 1.0, 2.5):
        exact = acc.gaussian_delta(0.5, epsilon)
        assert exact <= total.delta(epsilon) <= exact * 1.003


def test_rounding_of_losses_is_added_to_epsilon():
    law = LossLaw(0.5, -1, np.array([0.25, 0.125, 0.5, 0.0, 0.125]), 0.0, loss_error=1e-3)
    plain, missed = (composed([(x, 10)], 0.5, -10.0, 256, 2.0) for x in (SMALL, law))
    assert missed.delta(5.01) == pytest.approx(plain.delta(5.0), rel=1e-6)


def test_infinite_losses_count_whatever_the_tilt():
    law = LossLaw(0.5, -1, SMALL.masses * 0.99, 0.01)
    for theta in (0.0, 1.0):
        assert composed([(law, 3)], theta, -5.0, 256, theta + 2.0).delta(6.0) >= 1 - 0.99**3


def test_below_a_window_nothing_is_known():
    total = composed([(SMALL, 60)], 0.3, 25.0, 64, 1.3)
    assert total.delta(float(total.losses[0]) + total.loss_error) < 1
    assert total.delta(float(total.losses[0]) - 1e-9) == 1


@pytest.mark.parametrize("theta", [-3.0, 0.0, 0.4, 20.0])
def test_moments_of_a_great_many_queries_are_not_rounded_down(theta):
    """The logarithm of one query's moment is rounded; a million million times that shows."""
    for seed in range(20):
        masses = np.random.default_rng(seed).random(7) * np.array([1e-9, 1e-3, 1e-9, 1.0, 1e-5, 1e-12, 1e-15])
        law = LossLaw(0.01, -3, masses / masses.sum(), 0.0)
        with mpmath.workdps(40):
            terms = [
                mpmath.mpf(float(m)) * mpmath.exp(mpmath.mpf(theta) * x)
                for m, x in zip(law.masses, law.losses, strict=True)
            ]
            exact = 10**12 * mpmath.log(mpmath.fsum(terms))
            assert exact <= moments([(law, 10**12)], theta)[0] <= exact + 0.1
            if theta >= 0:  # what a total's masses were divided by
                assert exact <= composed([(law, 10**12)], theta, -1.0, 64, theta + 1).log_scale <= exact + 0.1
