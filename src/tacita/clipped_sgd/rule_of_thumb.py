r"""A rule of thumb for threshold and step size where the theorems are vacuous. It is measured, not proved.

The theorems' constants multiply errors by hundreds. The rule balances the same three errors of an averaged gradient
without those constants:

.. math:: \frac{\sigma^\alpha}{16\, C^{\alpha-1}} + r\, C \sqrt{d/T} + \sqrt{\min(C^2, \sigma^\alpha C^{2-\alpha})/(bT)}

Here r is the privacy noise on a coordinate of the mean gradient for a threshold of one. The factor 16 is about the
ratio of the bound on the bias to the bias itself on skewed Pareto noise; docs/theory.md has the measurements.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._domains import checked
from tacita.clipped_sgd.problem import Problem

BIAS = 1 / 16  # factor of sigma^alpha / C^(alpha - 1)
GRID = 2000  # thresholds tried


@dataclass(frozen=True)
class RuleOfThumb:
    """Settings to start tuning from, and the order of magnitude of their error; not a guarantee.

    Attributes:
        max_grad_norm: Clipping threshold.
        lr: Step size for the mean gradient.
        terms: The parts ``smooth``, ``stat``, ``bias`` and ``dp`` of the error, in the metric's units.
        estimate: The sum of the parts, or the trivial value if that is less.
    """

    max_grad_norm: float
    lr: float
    terms: dict[str, float]
    estimate: float


@checked()
def rule_of_thumb(
    problem: Problem, *, steps: float, noise_ratio: float, batch_size: float = 1, max_grad_norm: float | None = None
) -> RuleOfThumb:
    r"""Return the threshold that balances the three errors, and a step size for SGD at that noise.

    :math:`\gamma = \min(1/L,\ \ell/\sqrt{T(V/b + d r^2C^2)})`, where :math:`\ell` is the radius or the root of
    Delta / L, and V is the variance of a clipped gradient.

    Args:
        problem: The assumptions on the objective.
        steps: Number of steps T.
        noise_ratio: Noise r on a coordinate of the mean gradient, for a threshold of one.
        batch_size: Batch size b.
        max_grad_norm: A threshold C to take in place of the best one.

    Example:
        >>> from tacita.clipped_sgd import ConvexProblem
        >>> p = ConvexProblem(smoothness=1, radius=5, moment_scale=6.36, moment_order=1.4, dim=10)
        >>> found = rule_of_thumb(p, steps=2000, noise_ratio=1.2)
        >>> round(found.max_grad_norm, 1), round(found.lr, 3)
        (2.3, 0.013)
    """
    problem.check_single()
    c = max_grad_norm
    if c is None:
        grid = np.geomspace(*_range(problem, steps), GRID)
        parts = error_parts(problem, max_grad_norm=grid, steps=steps, noise_ratio=noise_ratio, batch_size=batch_size)
        c = float(grid[np.argmin(sum(parts.values()))])
    at = error_parts(problem, max_grad_norm=c, steps=steps, noise_ratio=noise_ratio, batch_size=batch_size)
    step_noise = math.sqrt(steps) * math.hypot(at["stat"], at["dp"])  # noise of one step
    length, scale = float(problem.length), float(problem.error_scale)
    limit = math.inf if step_noise == 0 else length / (math.sqrt(steps) * step_noise)
    terms = {"smooth": scale * float(problem.gradient_scale) / steps}
    terms |= {name: scale * float(value) for name, value in at.items()}
    return RuleOfThumb(
        max_grad_norm=c,
        lr=min(1 / float(np.asarray(problem.smoothness)), limit),
        terms=terms,
        estimate=min(sum(terms.values()), float(problem.trivial_value)),
    )


@checked()
def error_parts(
    problem: Problem, *, max_grad_norm: ArrayLike, steps: float, noise_ratio: float, batch_size: float = 1
) -> dict[str, Any]:
    """Return the three errors of an averaged clipped gradient, in gradient units: ``stat``, ``bias``, ``dp``."""
    c, sigma, alpha = _arrays.positive("max_grad_norm", max_grad_norm), problem.scale, problem.order
    variance = np.minimum(c**2, sigma**alpha * c ** (2 - alpha))
    parts = {
        "stat": np.sqrt(variance / (batch_size * steps)),
        "bias": BIAS * sigma**alpha / c ** (alpha - 1),
        "dp": noise_ratio * c * np.sqrt(np.asarray(problem.dim) / steps),
    }
    return {name: _arrays.plain(part) for name, part in parts.items()}


def _range(problem: Problem, steps: float) -> tuple[float, float]:
    """Return the least and the largest threshold to try. From 2 g / T on, T steps of 1 / L can reach the optimum."""
    sigma, alpha, gradient = float(problem.scale), float(problem.order), float(problem.gradient_scale)
    low = min(sigma, gradient) if sigma > 0 else gradient
    return max(1e-3 * low, 2 * gradient / steps), 10 * max(gradient, sigma * steps ** (1 / alpha))
