"""Corollary 4.3 and the comparison with Koloskova et al.: the claims, and the noise that shows what is tight."""

import os

import numpy as np
import pytest

from tacita_reproductions import find
from tacita_reproductions.clipped_sgd import clip
from tacita_reproductions.threshold_claims import noise_terms, resting_gradient, worst_noise

FULL = bool(os.environ.get("TACITA_AUDIT"))


@pytest.mark.parametrize("name", ["corollary-4-3", "koloskova"])
def test_its_claims_hold(name):
    result = find(f"dp-clipped-sgd-{name}")(full=FULL)
    assert result.rows
    assert not [check.says for check in result.checks if not check.held]


@pytest.mark.parametrize(("threshold", "sigma"), [(5.0, 1.0), (101.0, 100.0), (2.0, 2.0)])
def test_the_worst_noise_is_centred_has_its_variance_and_rests_where_it_should(threshold, sigma):
    values, chances = (np.array(pair) for pair in worst_noise(threshold, sigma))
    assert values @ chances == pytest.approx(0.0, abs=1e-12 * threshold)
    assert values**2 @ chances == pytest.approx(sigma**2)
    y = resting_gradient(threshold, sigma)
    assert y == pytest.approx(sigma**2 / (4 * threshold))
    assert clip((values + y)[:, None], threshold)[:, 0] @ chances == pytest.approx(0.0, abs=1e-12 * threshold)
    with pytest.raises(ValueError, match="sigma must be at most"):
        resting_gradient(threshold, 2 * threshold)


def test_no_other_two_point_noise_rests_farther_away():
    """The large value a, instead of 2 C, has y = sigma^2 (a - C) / a^2."""
    best = resting_gradient(5.0, 1.0)
    a = np.linspace(5.0, 100.0, 1000)
    assert ((a - 5.0) / a**2).max() <= best + 1e-12


def test_the_noise_terms_are_those_of_the_formulas():
    assert noise_terms(2.0, 10, 1000, corrected=True) == pytest.approx((1, 1))
    assert noise_terms(2.0, 10, 1000, corrected=False) == pytest.approx((2, 4))
    assert noise_terms(1.0, 10, 1000, corrected=False) == pytest.approx((1, 1))
