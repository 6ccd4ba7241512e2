"""The rules of the DP-Clipped-SGD paper as printed: what they give, and what is wrong with them."""

import numpy as np
import pytest

from tacita.clipped_sgd import ConvexProblem, NonConvexProblem
from tacita_reproductions.dp_clipped_sgd_paper import (
    asymptotic_rate,
    balanced_threshold_large,
    balanced_threshold_small,
    bracket,
    d_log_factor,
    growing_threshold,
    printed_bracket,
    printed_threshold_large,
    printed_threshold_small,
)

DIGITS = 5e-6
TINY = 1e-9  # a radius so small that max{4 L R, ...} is the second
AT = {"delta": 1e-5, "steps": 1000, "failure_probability": 0.05}


def wide(radius=1.0):
    return ConvexProblem(smoothness=1, radius=radius, moment_scale=1000, moment_order=1.5, dim=10)


@pytest.mark.parametrize(("epsilon", "printed"), [(1, 1.31365), (8, 5.25461)])
def test_the_large_rule(epsilon, printed):
    raw = printed_threshold_large(wide(TINY), epsilon=epsilon, **AT)
    assert raw == pytest.approx(printed, rel=DIGITS)
    assert printed_threshold_large(wide(), epsilon=epsilon, **AT) == max(4.0, raw)


@pytest.mark.parametrize(("epsilon", "printed"), [(1, 0.240411), (8, 4 / 3)])
def test_the_small_rule(epsilon, printed):
    assert printed_threshold_small(wide(), epsilon=epsilon, **AT) == pytest.approx(printed, rel=DIGITS)


def test_the_large_rule_does_not_balance():
    """Bias term over privacy term, unit constants: the root of d Lambda, where it should be 1."""
    root, c = d_log_factor(wide(), **AT) ** 0.5, printed_threshold_large(wide(TINY), epsilon=1, **AT)
    assert (1000**1.5 / c**0.5) / (c * root) == pytest.approx(root)


def test_the_bracket_has_a_unit():
    """Multiplying the objective by 10 changes it; the corrected one stays."""
    for times, printed in ((1, 10.2), (10, 1.2)):
        problem = ConvexProblem(smoothness=times, radius=1, moment_scale=0.1 * times, moment_order=1.5)
        assert printed_bracket(problem, max_grad_norm=5 * times) == pytest.approx(printed)
        assert bracket(problem, max_grad_norm=5 * times) == pytest.approx(1.5)


def test_rules_take_arrays():
    epsilon = np.array([0.5, 1.0, 8.0])
    for rule in (printed_threshold_large, printed_threshold_small):
        found = rule(wide(), epsilon=epsilon, **AT)
        assert found.shape == (3,)
        assert found[1] == pytest.approx(rule(wide(), epsilon=1.0, **AT))


# -- corrected


@pytest.mark.parametrize(("epsilon", "corrected"), [(1, 36.2443), (8, 144.977)])
def test_the_corrected_large_rule(epsilon, corrected):
    assert balanced_threshold_large(wide(), epsilon=epsilon, **AT) == pytest.approx(corrected, rel=DIGITS)


@pytest.mark.parametrize(("epsilon", "a", "corrected"), [(1, 7.31907, 0.255785), (8, 3.18581, 0.542622)])
def test_the_corrected_small_rule(epsilon, a, corrected):
    assert balanced_threshold_small(wide(), epsilon=epsilon, **AT) == pytest.approx(corrected, rel=DIGITS)
    assert 4 / (2 * a + 1) == pytest.approx(corrected, rel=DIGITS)


def test_the_corrected_rules_balance():
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


def test_corrected_rules_take_arrays():
    epsilon = np.array([0.5, 1.0, 8.0])
    for rule in (balanced_threshold_large, balanced_threshold_small):
        found = rule(wide(), epsilon=epsilon, **AT)
        assert found.shape == (3,)
        assert found[1] == pytest.approx(rule(wide(), epsilon=1.0, **AT))


def test_rates_have_units():
    """Both kinds of problem, objective times 7, parameters times 3."""
    for build in (
        lambda f, x: ConvexProblem(smoothness=f / x**2, radius=2 * x, moment_scale=0.5 * f / x, moment_order=1.3),
        lambda f, x: NonConvexProblem(
            smoothness=f / x**2, initial_gap=4 * f, moment_scale=0.5 * f / x, moment_order=1.3
        ),
    ):
        for c in (0.3, 2.0, 5.0, 40.0):
            base, other = build(1.0, 1.0), build(7.0, 3.0)
            metric = 7.0 if isinstance(base, ConvexProblem) else (7 / 3) ** 2
            rates = [
                asymptotic_rate(p, max_grad_norm=g * c, steps=999, failure_probability=0.1, mean_noise_std=g * 0.2)
                for p, g in ((base, 1.0), (other, 7 / 3))
            ]
            assert rates[1] == {name: pytest.approx(value * metric) for name, value in rates[0].items()}


def test_rates_have_the_stated_powers():
    p = ConvexProblem(smoothness=1, radius=1, moment_scale=0.1, moment_order=1.5)
    at = {"max_grad_norm": 5.0, "failure_probability": 0.05}
    few, many = (asymptotic_rate(p, steps=k, mean_noise_std=0.0, **at) for k in (10**6, 10**10))
    assert few["bias"] == many["bias"]
    assert few["dp"] == 0
    assert many["smooth"] / few["smooth"] == pytest.approx(1e-4, rel=1e-3)
    assert many["stat"] / few["stat"] == pytest.approx(1e-2 * (np.log(2e11) / np.log(2e7)) ** 0.5, rel=1e-2)
