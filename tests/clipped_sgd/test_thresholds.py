"""Best thresholds: the exact minimum, and the corrected rules."""

import numpy as np
import pytest

from tacita.clipped_sgd import (
    ConvexProblem,
    NonConvexProblem,
    balanced_threshold_large,
    balanced_threshold_small,
    convergence_bound,
    growing_threshold,
    numeric_threshold,
)
from tacita.clipped_sgd.thresholds import d_log_factor

DIGITS = 5e-6


def wide():
    return ConvexProblem(smoothness=1, radius=1.0, moment_scale=1000, moment_order=1.5, dim=10)


AT = {"delta": 1e-5, "steps": 1000, "failure_probability": 0.05}


@pytest.mark.parametrize(
    ("steps", "threshold", "value"),
    [(9999, 17.413, 14.7395), (999_999, 92.7187, 2.20918), (99_999_999, 1727.18, 0.511329)],
)
def test_the_exact_minimum(steps, threshold, value):
    problem = ConvexProblem(smoothness=1, radius=1, moment_scale=0.1, moment_order=1.5, dim=10)
    best = numeric_threshold(problem, steps=steps, failure_probability=0.05)
    assert best.max_grad_norm == pytest.approx(threshold, rel=2e-5)
    assert best.bound.value == pytest.approx(value, rel=DIGITS)
    assert best.bound.is_vacuous  # 0.5 is trivial: even at 10^8 steps


@pytest.mark.parametrize("noise_ratio", [0.0, 0.01, 3.0])
@pytest.mark.parametrize("kind", ["convex", "non-convex"])
def test_no_other_threshold_is_better(kind, noise_ratio):
    shared = {"smoothness": 3, "moment_scale": 0.7, "moment_order": 1.3, "dim": 50}
    problem = ConvexProblem(radius=2, **shared) if kind == "convex" else NonConvexProblem(initial_gap=2, **shared)
    best = numeric_threshold(problem, steps=5000, failure_probability=0.05, noise_ratio=noise_ratio)
    c = np.geomspace(1e-3, 1e8, 20_001)
    others = convergence_bound(
        problem, max_grad_norm=c, steps=5000, failure_probability=0.05, mean_noise_std=noise_ratio * c
    )
    assert best.bound.value <= others.value.min() * (1 + 1e-9)


def test_privacy_lowers_the_best_threshold():
    problem = ConvexProblem(smoothness=1, radius=1, moment_scale=0.1, moment_order=1.5, dim=10)
    found = [
        numeric_threshold(problem, steps=10**6, failure_probability=0.05, noise_ratio=ratio).max_grad_norm
        for ratio in (0.0, 0.1, 1.0, 10.0)
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > 3 * found[-1]


@pytest.mark.parametrize(("epsilon", "corrected"), [(1, 36.2443), (8, 144.977)])
def test_large_rules(epsilon, corrected):
    assert balanced_threshold_large(wide(), epsilon=epsilon, **AT) == pytest.approx(corrected, rel=DIGITS)


@pytest.mark.parametrize(("epsilon", "a", "corrected"), [(1, 7.31907, 0.255785), (8, 3.18581, 0.542622)])
def test_small_rules(epsilon, a, corrected):
    assert balanced_threshold_small(wide(), epsilon=epsilon, **AT) == pytest.approx(corrected, rel=DIGITS)
    assert 4 / (2 * a + 1) == pytest.approx(corrected, rel=DIGITS)


def test_the_rules_balance():
    """Bias term over privacy term, unit constants: 1."""
    root = d_log_factor(wide(), **AT) ** 0.5
    assert d_log_factor(wide(), **AT) / 10 == pytest.approx(2100.29, rel=DIGITS)
    assert root == pytest.approx(144.924, rel=DIGITS)

    def ratio(c, epsilon):
        return (1000**1.5 / c**0.5) / (c * root / epsilon)

    assert ratio(balanced_threshold_large(wide(), epsilon=1, **AT), 1) == pytest.approx(1)
    small = balanced_threshold_small(wide(), epsilon=1, **AT)
    excess = 2 - small / 2
    assert excess**2.5 / small**1.5 == pytest.approx(small * root)


def test_the_small_rule_stops_at_its_regime():
    """With much budget A < 1, and the rule is 4 g / 3."""
    assert balanced_threshold_small(wide(), epsilon=1e6, **AT) == pytest.approx(4 / 3)


@pytest.mark.parametrize(("steps", "threshold"), [(10**4, 87.5554), (10**6, 1523.82)])
def test_the_rule_without_privacy(steps, threshold):
    problem = ConvexProblem(smoothness=1, radius=1, moment_scale=1, moment_order=1.5)
    assert growing_threshold(problem, steps=steps, failure_probability=0.05) == pytest.approx(threshold, rel=DIGITS)


def test_rules_take_arrays():
    epsilon = np.array([0.5, 1.0, 8.0])
    for rule in (balanced_threshold_large, balanced_threshold_small):
        found = rule(wide(), epsilon=epsilon, **AT)
        assert found.shape == (3,)
        assert found[1] == pytest.approx(rule(wide(), epsilon=1.0, **AT))


def test_settings_are_refused():
    with pytest.raises(ValueError, match="noise_ratio must be finite and >= 0, got -1"):
        numeric_threshold(wide(), steps=10, failure_probability=0.1, noise_ratio=-1)
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\), got 0"):
        balanced_threshold_large(wide(), epsilon=1, delta=0, steps=10, failure_probability=0.1)
