"""The best threshold: the exact minimum."""

import numpy as np
import pytest

from tacita.clipped_sgd import ConvexProblem, NonConvexProblem, convergence_bound, numeric_threshold

DIGITS = 5e-6


def wide():
    return ConvexProblem(smoothness=1, radius=1.0, moment_scale=1000, moment_order=1.5, dim=10)


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


def test_settings_are_refused():
    with pytest.raises(ValueError, match="noise_ratio must be finite and >= 0, got -1"):
        numeric_threshold(wide(), steps=10, failure_probability=0.1, noise_ratio=-1)
