"""Laws with heavy tails: their moments are the stated ones, their draws have the stated law."""

import math

import numpy as np
import pytest
from scipy import stats

from reproductions.tests.symmetric_pareto import SymmetricPareto
from tacita_reproductions.heavy_tails import AlphaStable, NoisyQuadratic, OneSidedPareto, StudentT

LAWS = [
    OneSidedPareto(tail=1.5),
    SymmetricPareto(tail=1.5),
    StudentT(tail=1.5),
    AlphaStable(tail=1.5),
    AlphaStable(tail=2.0),
]
N = 200_000
FALSE_ALARM = 1e-6


def draws(law, dim=1, count=N, seed=0):
    return law.draw(np.random.default_rng(seed), (count,), dim)


def reference(law):
    """The distribution function of one coordinate in one dimension, from another source."""
    if isinstance(law, OneSidedPareto):
        return stats.pareto(1.5, loc=-3).cdf
    if isinstance(law, SymmetricPareto):
        return lambda x: np.where(x > 0, 1 - 0.5 * np.maximum(x, 1) ** -1.5, 0.5 * np.maximum(-x, 1) ** -1.5)
    if isinstance(law, StudentT):
        return stats.t(1.5).cdf
    return stats.norm(scale=math.sqrt(2)).cdf if law.tail == 2 else stats.levy_stable(law.tail, 0).cdf


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_draws_have_the_law(law):
    count = 2000 if isinstance(law, AlphaStable) and law.tail < 2 else N  # scipy's stable law is slow
    assert stats.kstest(draws(law, count=count)[:, 0], reference(law)).pvalue > FALSE_ALARM


def test_the_law_check_can_fail():
    for law in (OneSidedPareto(tail=1.56), SymmetricPareto(tail=1.56), StudentT(tail=1.8)):
        whole = type(law)(tail=1.5)
        assert stats.kstest(draws(law)[:, 0], reference(whole)).pvalue < FALSE_ALARM


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("dim", [1, 3])
def test_moments_are_those_of_the_draws(law, dim):
    """Of order 0.7, whose draws have a finite variance; the formula holds for it too."""
    norms = np.linalg.norm(draws(law, dim), axis=-1) ** 0.7
    stated = law._moment(0.7, dim)
    assert abs(norms.mean() - stated) < 5 * norms.std() / math.sqrt(N)


def test_reference_moments():
    law = OneSidedPareto(tail=1.5)
    assert law.moment_scale(1.2) == pytest.approx(3.13326, rel=1e-5)
    assert law.moment_scale(1.4) == pytest.approx(6.36049, rel=1e-5)
    assert law.moment_scale(1.2) ** 1.2 == pytest.approx(3.93728, rel=1e-5)
    assert law.moment_scale(1.4) ** 1.4 == pytest.approx(13.3318, rel=1e-5)
    assert OneSidedPareto(tail=1.5, size=2).moment_scale(1.4) == pytest.approx(2 * law.moment_scale(1.4))


@pytest.mark.parametrize(("threshold", "mean"), [(2, -0.894427), (8, -0.603023), (128, -0.174741)])
def test_the_clipped_mean_is_exact(threshold, mean):
    assert OneSidedPareto(tail=1.5).clipped_mean(threshold) == pytest.approx(mean, rel=1e-5)
    clipped = np.clip(draws(OneSidedPareto(tail=1.5))[:, 0], -threshold, threshold)
    assert abs(clipped.mean() - mean) < 5 * clipped.std() / math.sqrt(N)


@pytest.mark.parametrize("law", [StudentT(tail=1.5), AlphaStable(tail=1.5)], ids=repr)
def test_isotropic_laws_have_no_direction(law):
    x = draws(law, 2)
    angles = np.arctan2(x[:, 1], x[:, 0])
    assert stats.kstest(angles, stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > FALSE_ALARM


def test_settings_are_refused():
    with pytest.raises(ValueError, match=r"tail must be > 1, or the mean does not exist, got 1\.0"):
        StudentT(tail=1.0)
    with pytest.raises(ValueError, match=r"tail must be in \(1, 2\] for a stable distribution, got 2\.5"):
        AlphaStable(tail=2.5)
    with pytest.raises(ValueError, match="size must be a finite number > 0"):
        SymmetricPareto(tail=1.5, size=0)
    with pytest.raises(ValueError, match=r"order must be in \(1, 1\.5\), where moments are finite, got 1\.5"):
        StudentT(tail=1.5).moment_scale(1.5)
    with pytest.raises(
        ValueError,
        match=r"threshold must be >= 2, so that only the right tail is cut.*got threshold 1\.0",
    ):
        OneSidedPareto(tail=1.5).clipped_mean(1.0)
    with pytest.raises(ValueError, match=r"order must be in \(1, inf\)"):
        AlphaStable(tail=2.0).moment_scale(1.0)


def test_the_quadratic_is_what_the_theory_is_told():
    toy = NoisyQuadratic(noise=StudentT(tail=1.5), start=(3.0, 4.0), smoothness=2.0)
    told = toy.problem(1.2)
    assert (told.smoothness, told.radius, told.dim) == (2.0, 5.0, 2)
    assert told.moment_scale == StudentT(tail=1.5).moment_scale(1.2, 2)
    assert toy.gap(np.array([3.0, 4.0])) == 25.0 == told.trivial_value
    points = np.ones((N, 2))
    noise = toy.gradients(points, np.random.default_rng(0)) - 2 * points
    assert np.array_equal(noise, 2 * points + draws(StudentT(tail=1.5), 2) - 2 * points)
    assert toy.records(7, np.random.default_rng(0)).shape == (7, 2)
