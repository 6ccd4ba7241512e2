"""The example on which Clip21-SGD does not converge: the numbers of its closed forms."""

import numpy as np
import pytest

from tacita_reproductions import clip21_example
from tests.theory.clipping import clip

DIGITS = 5e-6


@pytest.mark.parametrize(
    ("steps", "mean"),
    [(1, (-0.00133333, -0.0692667)), (100, (-0.0578254, -0.0381961)), (10_000, (-0.0666667, -0.0333333))],
)
def test_the_ideal_method_is_biased(steps, mean):
    found = clip21_example.ideal_mean((0.0, -0.07), smoothness=2, lr=0.01, max_grad_norm=1, steps=steps)
    assert found == pytest.approx(mean, rel=DIGITS)
    if steps == 100:
        assert np.square(2 * found).sum() == pytest.approx(0.0192108, rel=DIGITS)
    if steps == 10_000:
        assert np.square(2 * found).sum() == pytest.approx(1 / 45, rel=DIGITS)


def test_the_bias_is_that_of_the_clipped_noise():
    z = clip21_example.toy_noise(5.0)
    assert np.linalg.norm(z, axis=1) == pytest.approx([2.59808, 3.46410, 4.33013], rel=DIGITS)
    assert z.mean(axis=0) == pytest.approx([0, 0], abs=1e-12)
    assert clip(z, 1.0).mean(axis=0) == pytest.approx(np.array([2, 1]) / 15)
    assert np.exp(np.square(z).sum(axis=1) / 25).mean() == pytest.approx(1.681013, rel=DIGITS)  # at most e


def test_geometric_median():
    found = clip21_example.geometric_median(clip21_example.toy_noise(5.0))
    assert found == pytest.approx([0.956317, 0.373236], rel=DIGITS)
    assert np.linalg.norm(found) == pytest.approx(1.026571, rel=DIGITS)
    assert np.square(found).sum() == pytest.approx(1.053848, rel=DIGITS)
