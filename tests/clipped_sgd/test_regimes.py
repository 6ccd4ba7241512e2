"""The regime tables: their edges, their scaling, and what of them is vacuous."""

import numpy as np
import pytest

from tacita.clipped_sgd import ConvexProblem, NonConvexProblem, neighbourhood, regime
from tacita.clipped_sgd.regimes import ROWS


def unit(scale, order=1.5):
    return ConvexProblem(smoothness=1, radius=1, moment_scale=scale, moment_order=order)


@pytest.mark.parametrize(
    ("threshold", "scale", "row"),
    [
        (4.001, 0.1, "1"),
        (4.001, 9.0, "1"),
        (3.0, 4.0, "2"),
        (3.999, 1.0, "3a"),  # the excess is almost 0
        (3.0, 0.6, "3b"),
        (2.0, 0.1, "4"),
        (1.0, 2.0, "5"),
        (1.0, 1.2, "6"),
        (1.0, 0.5, "7"),
    ],
)
def test_rows(threshold, scale, row):
    found = regime(unit(scale), max_grad_norm=threshold)
    assert found.row == row
    assert found.words == ROWS[row]


def test_every_row_is_met_and_its_bias_is_the_leading_part():
    rng = np.random.default_rng(0)
    c, scale = np.exp(rng.uniform(-4, 3, 5000)), np.exp(rng.uniform(-4, 3, 5000))
    found = regime(unit(scale), max_grad_norm=c)
    assert set(found.row) == set(ROWS)
    excess = np.maximum(0, 2 - c / 2)
    parts = [scale**1.5 / c**0.5, excess, scale**1.5 * excess / c**1.5, excess**2.5 / c**1.5]
    assert np.all(found.leading_bias <= np.max(parts, axis=0) * (1 + 1e-12))
    # Exact bias of Lemma B.1 is within a constant of it, everywhere
    from tacita.clipped_sgd import clip_bias_bound

    exact = clip_bias_bound(2.0, max_grad_norm=c, moment_scale=scale, moment_order=1.5)
    ratio = exact / found.leading_bias
    assert ratio.min() > 1
    assert ratio.max() < 30


def test_rows_five_to_seven_are_vacuous():
    """The bias is at least 4 g / 3, so that the neighbourhood is above the trivial value with unit constants."""
    rng = np.random.default_rng(1)
    c, scale = np.exp(rng.uniform(-4, np.log(4 / 3), 2000)), np.exp(rng.uniform(-4, 3, 2000))
    found = regime(unit(scale), max_grad_norm=c)
    assert set(found.row) == {"5", "6", "7"}
    assert np.all(found.neighbourhood >= 4 / 3 * (1 - 1e-12))
    assert np.all(neighbourhood(unit(scale), max_grad_norm=c) > 0.5)


def test_units():
    """Both kinds of problem, objective times 7, parameters times 3."""
    for build in (
        lambda f, x: ConvexProblem(smoothness=f / x**2, radius=2 * x, moment_scale=0.5 * f / x, moment_order=1.3),
        lambda f, x: NonConvexProblem(
            smoothness=f / x**2, initial_gap=4 * f, moment_scale=0.5 * f / x, moment_order=1.3
        ),
    ):
        for c in (0.3, 2.0, 5.0, 40.0):
            base, other = build(1.0, 1.0), build(7.0, 3.0)
            one = regime(base, max_grad_norm=c)
            two = regime(other, max_grad_norm=c * 7 / 3)
            metric = 7.0 if isinstance(base, ConvexProblem) else (7 / 3) ** 2
            assert one.row == two.row
            assert two.leading_bias == pytest.approx(one.leading_bias * 7 / 3)
            assert two.neighbourhood == pytest.approx(one.neighbourhood * metric)
