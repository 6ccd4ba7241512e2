"""The rules of the DP-Clipped-SGD paper as printed: what they give, and what is wrong with them."""

import numpy as np
import pytest

from tacita.clipped_sgd import ConvexProblem
from tacita.clipped_sgd.regimes import bracket
from tacita.clipped_sgd.thresholds import d_log_factor
from tacita_reproductions.dp_clipped_sgd_paper import printed_bracket, printed_threshold_large, printed_threshold_small

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
