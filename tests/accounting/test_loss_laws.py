"""One query's law of losses on a grid: never below the divergence, between points of the grid and far in the tails."""

import math

import numpy as np
import pytest

from tacita import accounting as acc
from tacita.accounting._gaussian_mixture import ShownGaussianPair
from tacita.accounting.dominating_pairs import ResponsePair
from tacita.accounting.laplace_pair import LaplacePair
from tacita.accounting.line_pairs import EnvelopePair, GaussianPair, MixturePair, ReplacedPair
from tests.accounting.divergences import envelope, laplace, mixture_divergence, replaced_divergence, response

THREE = ((0.0, 0.7, 1.9), (0.5, 0.3, 0.2))
PAIRS = {
    "gaussian": (GaussianPair(0.8), lambda e: acc.gaussian_delta(0.8, e), False),
    "shown": (
        ShownGaussianPair((0.0, 0.5, 2.0), (0.5, 0.3, 0.15), 0.05),
        lambda e: (
            0.5 * max(0.0, -math.expm1(e)) + 0.3 * acc.gaussian_delta(0.5, e) + 0.15 * acc.gaussian_delta(2.0, e) + 0.05
        ),
        False,
    ),
    "sampled": (MixturePair((0.0, 1.2), (0.9, 0.1)), lambda e: mixture_divergence((0.0, 1.2), (0.9, 0.1), e), False),
    "sampled back": (
        MixturePair((0.0, 1.2), (0.9, 0.1)),
        lambda e: mixture_divergence((0.0, 1.2), (0.9, 0.1), e, swapped=True),
        True,
    ),
    "three": (MixturePair(*THREE), lambda e: mixture_divergence(*THREE, e), False),
    "three back": (MixturePair(*THREE), lambda e: mixture_divergence(*THREE, e, swapped=True), True),
    "replaced": (ReplacedPair(1.1, 0.2), lambda e: replaced_divergence(1.1, 0.2, e), False),
    "envelope": (EnvelopePair(1.4, 0.15), lambda e: envelope(1.4, 0.15, e), False),
    "response": (ResponsePair(1.3), lambda e: response(1.3, e), False),
    "laplace": (LaplacePair(1.3), lambda e: laplace(1.3, e), False),
}


def law_delta(law, epsilon):
    gap = law.losses - epsilon
    return float(law.infinity + law.masses @ np.where(gap > 0, -np.expm1(-np.maximum(gap, 0.0)), 0.0))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("interval", [0.013, 1e-3])
def test_a_law_on_a_grid_is_never_below_the_exact_one(name, interval):
    pair, exact, swapped = PAIRS[name]
    law = pair.law(interval, pair.reach(1e-18, swapped=swapped), swapped=swapped)
    for epsilon in (-2.0, -0.7, -0.0313, 0.0, 0.0007, 0.21, 0.9, 1.2949, 2.718, 4.0):
        found, wanted = law_delta(law, epsilon), exact(epsilon)
        assert wanted * (1 - 1e-9) - 1e-15 <= found <= wanted * (1 + 30 * interval) + 0.2 * interval**2 + 2e-18, epsilon


def test_an_interval_s_mass_is_split_so_that_both_worlds_are_kept():
    pair = MixturePair((0.0, 1.0), (0.5, 0.5))
    law = pair.law(0.25, pair.reach(1e-16, swapped=False), swapped=False)
    assert law.masses.sum() + law.infinity == pytest.approx(1, abs=1e-12)
    assert law.masses @ np.exp(-law.losses) == pytest.approx(1, abs=1e-12)
    assert law.masses.sum() + law.infinity >= 1


@pytest.mark.parametrize("name", PAIRS)
def test_losses_above_a_cap_keep_the_masses_of_both_worlds(name):
    """They are split between the cap and infinity; below the cap the exact divergence changes by little."""
    pair, exact, swapped = PAIRS[name]
    law = pair.law(1e-3, (-0.9, 0.4), swapped=swapped)
    assert law.losses[-1] == pytest.approx(0.4, abs=2e-3)
    for epsilon in (-0.8, -0.3, 0.0, 0.2, 0.39, 0.5, 3.0):
        assert exact(epsilon) * (1 - 1e-9) <= law_delta(law, epsilon)
    assert law_delta(law, float(law.losses[-1])) == pytest.approx(exact(float(law.losses[-1])), rel=1e-2)
    assert law.masses.sum() + law.infinity == pytest.approx(1, abs=1e-9)
