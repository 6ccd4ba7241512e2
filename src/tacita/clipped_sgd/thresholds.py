"""The clipping threshold of theory: the one that minimises the exact bound.

It is of theoretical interest, because the bound is vacuous in most settings. In practice the threshold is tuned, and
tuning on private data costs privacy. Derivation: docs/derivations/dp-clipped-sgd.md.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

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


def _range(problem: Problem, steps: float) -> tuple[float, float]:
    """Return the logarithms of the least and largest threshold to try.

    They are far below the gradients, and far above the noise of all steps.
    """
    gradient, sigma, alpha = float(problem.gradient_scale), float(problem.scale), float(problem.order)
    low = min(gradient, sigma) if sigma > 0 else gradient
    return math.log(1e-2 * low), math.log(1e3 * max(gradient, sigma * steps ** (1 / alpha)))
