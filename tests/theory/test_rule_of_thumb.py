"""The rule of thumb, in simulation: near the best threshold under skewed, symmetric and light noise."""

import math

import numpy as np
import pytest

from tacita.experiments.clipped_sgd import run
from tacita.experiments.heavy_tails import AlphaStable, NoisyQuadratic, OneSidedPareto
from tacita.theory import ConvexProblem, NonConvexProblem, one_pass_noise, rule_of_thumb
from tacita.theory.rule_of_thumb import error_parts

STEPS = 2000
LAWS = {
    "skewed": (OneSidedPareto(tail=1.5), 1.4),
    "stable": (AlphaStable(tail=1.7), 1.6),
    "Gaussian": (AlphaStable(tail=2.0, size=20**-0.5), 2.0),
}


def gaps(name, epsilon, factors):
    """The rule's problem, and the median gap at its threshold times each factor, each with the rule's step size."""
    law, order = LAWS[name]
    toy = NoisyQuadratic(noise=law, start=(5 / math.sqrt(10),) * 10)
    ratio = one_pass_noise(epsilon=epsilon, delta=1e-5, max_grad_norm=1, relation="replace_one")
    found = rule_of_thumb(toy.problem(order), steps=STEPS, noise_ratio=ratio)
    c = found.max_grad_norm * np.asarray(factors)
    parts = error_parts(toy.problem(order), max_grad_norm=c, steps=STEPS, noise_ratio=ratio)
    lr = np.minimum(1.0, 5 / (STEPS * np.hypot(parts["stat"], parts["dp"])))
    assert found.lr == pytest.approx(lr[list(factors).index(1.0)])
    runs = run(
        toy, max_grad_norm=c, noise_std=ratio * c, lr=lr, steps=STEPS, runs=60, skip=STEPS // 2,
        generator=np.random.default_rng(0),
    )  # fmt: skip
    return found, np.median(runs.average, axis=1)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("epsilon", [32.0, 8.0, 2.0])
def test_it_is_near_the_best(name, epsilon):
    """Within a factor 3.5 of the best of 13 thresholds over six decades; its estimate is not below what comes out."""
    factors = [1.0, *(4.0 ** np.arange(-6, 7, dtype=float)[np.arange(13) != 6])]
    found, medians = gaps(name, epsilon, factors)
    assert medians[0] < 3.5 * medians.min()
    assert medians[0] < found.estimate <= 12.5


def test_a_threshold_far_off_would_be_seen():
    """With privacy, 16 times the threshold is over five times worse; without tails to speak of, too."""
    for name in ("skewed", "Gaussian"):
        _, (at, above) = gaps(name, 8.0, [1.0, 16.0])
        assert above > 5 * at


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
