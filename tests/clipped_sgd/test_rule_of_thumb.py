"""The rule of thumb: what it balances, and its units. In simulation: ``reproductions/tests/theory``."""

import numpy as np
import pytest

from tacita.clipped_sgd import ConvexProblem, NonConvexProblem, rule_of_thumb
from tacita.clipped_sgd.rule_of_thumb import error_parts


def test_it_balances():
    """No other threshold has a smaller sum of the three errors."""
    problem = ConvexProblem(smoothness=2, radius=3, moment_scale=1.5, moment_order=1.3, dim=40)
    found = rule_of_thumb(problem, steps=700, noise_ratio=0.02, batch_size=8)
    c = np.geomspace(1e-2, 1e4, 100_000)
    total = sum(error_parts(problem, max_grad_norm=c, steps=700, noise_ratio=0.02, batch_size=8).values())
    assert found.max_grad_norm == pytest.approx(c[total.argmin()], rel=0.02)
    assert sum(found.terms.values()) == pytest.approx(3 * (total.min() + 6 / 700), rel=1e-4)


def test_units():
    """Objective times 7, parameters times 3: threshold and error follow."""
    for build, metric in (
        (lambda f, x: ConvexProblem(smoothness=f / x**2, radius=2 * x, moment_scale=f / x, moment_order=1.5), 7.0),
        (
            lambda f, x: NonConvexProblem(smoothness=f / x**2, initial_gap=3 * f, moment_scale=f / x, moment_order=1.5),
            (7 / 3) ** 2,
        ),
    ):
        one, two = (rule_of_thumb(build(*c), steps=500, noise_ratio=0.1) for c in ((1.0, 1.0), (7.0, 3.0)))
        assert two.max_grad_norm == pytest.approx(one.max_grad_norm * 7 / 3)
        assert two.lr == pytest.approx(one.lr * 9 / 7)
        assert two.estimate == pytest.approx(one.estimate * metric)


def test_it_can_cross_the_way():
    """Nearly no noise: steps of 1 / L times the threshold still add up to the radius."""
    problem = ConvexProblem(smoothness=1, radius=1, moment_scale=1e-9)
    found = rule_of_thumb(problem, steps=100, noise_ratio=1e-9)
    assert found.lr == 1.0
    assert found.lr * found.max_grad_norm * 100 >= 1.0


def test_the_estimate_is_never_above_the_trivial_value():
    problem = ConvexProblem(smoothness=1, radius=1, moment_scale=1)
    assert rule_of_thumb(problem, steps=10, noise_ratio=1e6).estimate == 0.5


def test_settings_are_refused():
    problem = ConvexProblem(smoothness=1, radius=1, moment_scale=1)
    with pytest.raises(ValueError, match="noise_ratio must be finite and >= 0, got -1"):
        rule_of_thumb(problem, steps=10, noise_ratio=-1)
    with pytest.raises(ValueError, match="steps must be finite and > 0, got 0"):
        rule_of_thumb(problem, steps=0, noise_ratio=1)
