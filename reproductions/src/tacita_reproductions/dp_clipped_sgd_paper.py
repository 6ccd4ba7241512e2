r"""Formulas of the DP-Clipped-SGD paper as printed, where its proofs give something else. For comparison only.

The corrected forms are in :mod:`tacita.clipped_sgd.dp_clipped_sgd`, :mod:`tacita.clipped_sgd.thresholds` and
:mod:`tacita.clipped_sgd.regimes`; docs/derivations/dp-clipped-sgd.md lists the errata and derives the corrections.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._domains import checked
from tacita.clipped_sgd.problem import Problem
from tacita.clipped_sgd.thresholds import d_log_factor

__all__ = [
    "printed_bracket",
    "printed_threshold_large",
    "printed_threshold_small",
]


@checked()
def printed_threshold_large(
    problem: Problem, *, epsilon: ArrayLike, delta: ArrayLike, steps: ArrayLike, failure_probability: ArrayLike
) -> Any:
    r"""Return the large threshold of Corollary 4.3 as printed.

    :math:`\max\{4g, (\epsilon\sigma^\alpha/(d\Lambda))^{1/\alpha}\}`. It does not balance the two terms that it is said
    to balance: they differ by :math:`\sqrt{d\Lambda}`.
    """
    factor = d_log_factor(problem, delta=delta, steps=steps, failure_probability=failure_probability)
    raw = (np.asarray(epsilon) * problem.scale**problem.order / factor) ** (1 / problem.order)
    return _arrays.plain(np.maximum(4 * problem.gradient_scale, raw))


@checked()
def printed_threshold_small(
    problem: Problem, *, epsilon: ArrayLike, delta: ArrayLike, steps: ArrayLike, failure_probability: ArrayLike
) -> Any:
    r"""Return the small threshold of Corollary 4.3 as printed.

    :math:`\min\{4g/3, 2\epsilon g/((d\Lambda)^{1/(2\alpha+2)} + 1)\}`. The power of epsilon is wrong, and 1 should be
    1/2.
    """
    factor = d_log_factor(problem, delta=delta, steps=steps, failure_probability=failure_probability)
    g = problem.gradient_scale
    return _arrays.plain(
        np.minimum(4 * g / 3, 2 * np.asarray(epsilon) * g / (factor ** (1 / (2 * problem.order + 2)) + 1))
    )


@checked()
def printed_bracket(problem: Problem, *, max_grad_norm: ArrayLike) -> Any:
    r"""Return the bracket W of equations (8) and (24) as printed.

    :math:`g/C + C^{\alpha-1}\zeta/(\sigma^\alpha+\zeta^\alpha) + (\sigma^\alpha+\zeta^\alpha)^{-1/\alpha}`. It changes
    when the objective is rescaled, which cannot be right.
    """
    c, g, alpha = np.asarray(max_grad_norm, dtype=np.float64), problem.gradient_scale, problem.order
    excess = np.maximum(0.0, 2 * g - c / 2)
    total = problem.scale**alpha + excess**alpha
    return _arrays.plain(g / c + c ** (alpha - 1) * excess / total + total ** (-1 / alpha))
