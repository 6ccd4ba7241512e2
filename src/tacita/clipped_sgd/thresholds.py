r"""The clipping thresholds of theory: the one that minimises the exact bound, and those that balance two of its terms.

They are of theoretical interest, because the bound is vacuous in most settings. In practice the threshold is tuned, and
tuning on private data costs privacy.
Source: "Differentially Private Clipped-SGD", Corollary 4.3; the balanced rules are corrected (ours):
docs/derivations/dp-clipped-sgd.md.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from tacita import _arrays
from tacita._domains import checked
from tacita.clipped_sgd.dp_clipped_sgd import ConvergenceBound, convergence_bound
from tacita.clipped_sgd.problem import Problem

GRID = 400  # thresholds tried, before a search between the neighbours of the best


@dataclass(frozen=True)
class BestThreshold:
    """The threshold at which the exact bound is least.

    Attributes:
        max_grad_norm: The threshold.
        bound: The bound at that threshold.
    """

    max_grad_norm: float
    bound: ConvergenceBound


@checked()
def numeric_threshold(
    problem: Problem, *, steps: float, failure_probability: float, noise_ratio: float = 0.0, batch_size: float = 1
) -> BestThreshold:
    """Return the threshold that minimises the exact bound, by a grid over its logarithm and then a bounded search.

    Args:
        problem, steps, failure_probability, batch_size: As in :func:`tacita.clipped_sgd.convergence_bound`.
        noise_ratio: Noise on a coordinate of the mean gradient, for a threshold of 1; the noise at other thresholds is
            proportional. 0 means no privacy.

    Example:
        >>> from tacita.clipped_sgd import ConvexProblem
        >>> p = ConvexProblem(smoothness=1, radius=1, moment_scale=0.1, moment_order=1.5, dim=10)
        >>> best = numeric_threshold(p, steps=9999, failure_probability=0.05)
        >>> round(best.max_grad_norm, 3), round(best.bound.value, 4)
        (17.413, 14.7395)
    """
    problem.check_single()

    def at(log_threshold: Any) -> ConvergenceBound:
        threshold = np.exp(log_threshold)
        return convergence_bound(
            problem,
            max_grad_norm=threshold,
            steps=steps,
            failure_probability=failure_probability,
            mean_noise_std=noise_ratio * threshold,
            batch_size=batch_size,
        )

    grid = np.linspace(*_range(problem, steps), GRID)
    i = int(np.argmin(at(grid).value))
    bracket = (grid[max(i - 1, 0)], grid[min(i + 1, GRID - 1)])
    found: Any = minimize_scalar(lambda x: at(x).value, bounds=bracket, method="bounded", options={"xatol": 1e-10})
    return BestThreshold(float(np.exp(found.x)), at(float(found.x)))


@checked()
def balanced_threshold_large(
    problem: Problem, *, epsilon: ArrayLike, delta: ArrayLike, steps: ArrayLike, failure_probability: ArrayLike
) -> Any:
    r"""Return the threshold above 4 g that balances bias and privacy noise (Corollary 4.3, corrected).

    With all constants 1 it is :math:`\max\{4g, (\epsilon \sigma^\alpha / \sqrt{d\Lambda})^{1/\alpha}\}` with g = L R
    (convex) or the root of L Delta, and :math:`\Lambda = \ln(K/\delta)\ln(1/\delta)\ln(K/\beta)`. The paper prints
    :math:`d\Lambda` instead of its root. The noise is the paper's, by K-fold composition.

    Example:
        >>> from tacita.clipped_sgd import ConvexProblem
        >>> p = ConvexProblem(smoothness=1, radius=1, moment_scale=1000, moment_order=1.5, dim=10)
        >>> round(balanced_threshold_large(p, epsilon=1, delta=1e-5, steps=1000, failure_probability=0.05), 4)
        36.2443
    """
    root = np.sqrt(d_log_factor(problem, delta=delta, steps=steps, failure_probability=failure_probability))
    raw = (np.asarray(epsilon) * problem.scale**problem.order / root) ** (1 / problem.order)
    return _arrays.plain(np.maximum(4 * problem.gradient_scale, raw))


@checked()
def balanced_threshold_small(
    problem: Problem, *, epsilon: ArrayLike, delta: ArrayLike, steps: ArrayLike, failure_probability: ArrayLike
) -> Any:
    r"""Return the threshold up to 4 g / 3 that balances bias and privacy noise (Corollary 4.3, corrected).

    It is :math:`4g/(2A+1)` if A >= 1, otherwise 4 g / 3, where :math:`A = (\sqrt{d\Lambda}/\epsilon)^{1/(\alpha+1)}`
    solves :math:`R\zeta^{\alpha+1}/C^\alpha = (RC/\epsilon) \sqrt{d\Lambda}` with :math:`\zeta = 2g - C/2`. In this
    regime the bound is vacuous for all constants.

    Example:
        >>> from tacita.clipped_sgd import ConvexProblem
        >>> p = ConvexProblem(smoothness=1, radius=1, moment_scale=1000, moment_order=1.5, dim=10)
        >>> round(balanced_threshold_small(p, epsilon=8, delta=1e-5, steps=1000, failure_probability=0.05), 6)
        0.542622
    """
    root = np.sqrt(d_log_factor(problem, delta=delta, steps=steps, failure_probability=failure_probability))
    a = (root / np.asarray(epsilon)) ** (1 / (problem.order + 1))
    return _arrays.plain(np.where(a >= 1, 4 * problem.gradient_scale / (2 * a + 1), 4 * problem.gradient_scale / 3))


@checked()
def growing_threshold(problem: Problem, *, steps: ArrayLike, failure_probability: ArrayLike) -> Any:
    r"""Return the threshold for training without privacy, :math:`\sigma (K / \ln(K/\beta))^{1/\alpha}`.

    It grows with K and gives exact convergence. With privacy it is a mistake, because the noise grows with the
    threshold.

    Example:
        >>> from tacita.clipped_sgd import ConvexProblem
        >>> p = ConvexProblem(smoothness=1, radius=1, moment_scale=1, moment_order=1.5)
        >>> growing_threshold(p, steps=[1e4, 1e6], failure_probability=0.05).round(2)
        array([  87.56, 1523.82])
    """
    k = _arrays.positive("steps", steps)
    log = np.log(k / _arrays.probability("failure_probability", failure_probability))
    return _arrays.plain(problem.scale * (k / log) ** (1 / problem.order))


@checked()
def d_log_factor(problem: Problem, *, delta: ArrayLike, steps: ArrayLike, failure_probability: ArrayLike) -> Any:
    r"""Return :math:`d \ln(K/\delta) \ln(1/\delta) \ln(K/\beta)`, which both balanced rules take the root of."""
    k, d = _arrays.positive("steps", steps), _arrays.positive("delta", delta)
    beta = _arrays.probability("failure_probability", failure_probability)
    return np.asarray(problem.dim) * np.log(k / d) * np.log(1 / d) * np.log(k / beta)


def _range(problem: Problem, steps: float) -> tuple[float, float]:
    """Return the logarithms of the least and largest threshold to try.

    They are far below the gradients, and far above the noise of all steps.
    """
    gradient, sigma, alpha = float(problem.gradient_scale), float(problem.scale), float(problem.order)
    low = min(gradient, sigma) if sigma > 0 else gradient
    return math.log(1e-2 * low), math.log(1e3 * max(gradient, sigma * steps ** (1 / alpha)))
