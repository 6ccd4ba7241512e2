"""Lemma B.1: its reference values, that it holds, and how loose it is."""

import numpy as np
import pytest

from reproductions.tests.symmetric_pareto import SymmetricPareto
from tacita.clipped_sgd import clip_bias_bound, clip_variance_bound
from tacita_reproductions.clipped_sgd import clip
from tacita_reproductions.heavy_tails import OneSidedPareto, StudentT

DRAWS = 400_000


def both(x, c, sigma, alpha, **more):
    settings = {"max_grad_norm": c, "moment_scale": sigma, "moment_order": alpha}
    return clip_bias_bound(x, **settings, **more), clip_variance_bound(x, **settings)


@pytest.mark.parametrize(
    ("settings", "bias", "variance"),
    [
        ((0, 10, 1, 2), 1.2, 20.25),
        ((1, 10, 1, 2), 1.2, 20.25),  # the mean is below C / 2: nothing changes
        ((3, 4, 1, 1.5), 6.51984, 45),
        ((3, 4, 0.5, 1.2), 4.21499, 35.6246),
    ],
)
def test_reference_values(settings, bias, variance):
    assert both(*settings) == pytest.approx((bias, variance), rel=1e-5)


def test_the_skewed_law_shows_how_loose_it_is():
    law = OneSidedPareto(tail=1.5)
    for c, stated, true in ((2, 52.7741, 0.894427), (8, 30.3107, 0.603023), (128, 9.99881, 0.174741)):
        bound, _ = both(0, c, law.moment_scale(1.4), 1.4)
        assert bound == pytest.approx(stated, rel=1e-5)
        assert -law.clipped_mean(c) == pytest.approx(true, rel=1e-5)
        assert 50 < bound / true < 60


@pytest.mark.parametrize("law", [OneSidedPareto(tail=1.5), SymmetricPareto(tail=1.6), StudentT(tail=1.7)], ids=repr)
@pytest.mark.parametrize("shift", [0.0, 2.0, 9.0])
def test_it_holds_in_simulation(law, shift):
    """By far: the allowance for the error of the mean is five standard deviations."""
    x = np.array([shift, 0.0])
    drawn = x + law.draw(np.random.default_rng(0), (DRAWS,), 2)
    for c in (0.5, 3.0, 20.0):
        clipped = clip(drawn, c)
        bias, variance = both(shift, c, law.moment_scale(1.3, 2), 1.3)
        mean, spread = clipped.mean(axis=0), clipped.var(axis=0).sum()
        assert np.linalg.norm(mean - clip(x, c / 2)) < bias + 5 * (spread / DRAWS) ** 0.5
        assert spread < variance * 1.01


def test_it_compares_with_half_the_threshold():
    """A mean between C / 2 and C and no noise: nothing is cut, and the difference from clip(x, C / 2) is the bound."""
    bias, variance = both(3.0, 4.0, 1e-12, 2)
    assert bias >= 3.0 - 2.0
    assert variance >= 0


def test_where_it_says_nothing():
    """Below 4.5 sigma (alpha 2) the variance bound is above the trivial C^2."""
    c = np.array([1.0, 4.4, 4.6, 100.0])
    _, variance = both(0, c, 1.0, 2)
    assert (variance > c**2).tolist() == [True, True, False, False]
    capped = clip_variance_bound(0, max_grad_norm=c, moment_scale=1.0, moment_order=2, capped=True)
    assert np.array_equal(capped, np.minimum(variance, c**2))


def test_the_sharper_constant():
    """8 becomes 2.83 in the first of the two terms at alpha = 2: (8 + 4) / C becomes (2.83 + 4) / C."""
    assert both(0, 10, 1, 2, sharper=True)[0] == pytest.approx((8**0.5 + 4) / 10)


def test_arrays_broadcast():
    bias = clip_bias_bound(np.zeros((3, 1)), max_grad_norm=np.array([1.0, 2.0]), moment_scale=1.0, moment_order=1.5)
    assert bias.shape == (3, 2)
    assert bias[2, 1] == both(0, 2.0, 1, 1.5)[0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"x": -1}, "mean_norm must be finite and >= 0, got -1"),
        ({"c": 0}, "max_grad_norm must be finite and > 0, got 0"),
        ({"sigma": float("nan")}, "moment_scale must be finite and >= 0, got nan"),
        ({"alpha": 1}, r"moment_order must be in \(1, 2\], got 1"),
        ({"alpha": 2.1}, r"moment_order must be in \(1, 2\], got 2.1"),
    ],
)
def test_settings_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        both(**{"x": 0, "c": 1, "sigma": 1, "alpha": 2, **change})
