r"""What the DP-Clipped-SGD paper prints where it differs from what its proofs give: for comparison, never for use.

Place: beside [theory.dp_clipped_sgd] and [theory.thresholds], which have the corrected forms; errata and corrections:
docs/derivations/dp-clipped-sgd.md.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita.theory import _arrays
from tacita.theory.problem import Problem
from tacita.theory.thresholds import d_log_factor


def printed_threshold_large(
    problem: Problem, *, epsilon: ArrayLike, delta: ArrayLike, steps: ArrayLike, failure_probability: ArrayLike
) -> Any:
    r"""Corollary 4.3 as printed: :math:`\max\{4g, (\epsilon\sigma^\alpha/(d\Lambda))^{1/\alpha}\}`.

    It does not solve the balance that it is said to solve: the two terms differ by :math:`\sqrt{d\Lambda}`.
    """
    factor = d_log_factor(problem, delta=delta, steps=steps, failure_probability=failure_probability)
    raw = (np.asarray(epsilon) * problem.scale**problem.order / factor) ** (1 / problem.order)
    return _arrays.plain(np.maximum(4 * problem.gradient_scale, raw))


def printed_threshold_small(
    problem: Problem, *, epsilon: ArrayLike, delta: ArrayLike, steps: ArrayLike, failure_probability: ArrayLike
) -> Any:
    r"""Corollary 4.3 as printed: :math:`\min\{4g/3, 2\epsilon g/((d\Lambda)^{1/(2\alpha+2)} + 1)\}`.

    The power of epsilon is wrong, and 1 stands for 1/2.
    """
    factor = d_log_factor(problem, delta=delta, steps=steps, failure_probability=failure_probability)
    g = problem.gradient_scale
    return _arrays.plain(
        np.minimum(4 * g / 3, 2 * np.asarray(epsilon) * g / (factor ** (1 / (2 * problem.order + 2)) + 1))
    )


def printed_bracket(problem: Problem, *, max_grad_norm: ArrayLike) -> Any:
    r"""The bracket W of equations (8) and (24) as printed: it changes when the objective is rescaled.

    :math:`g/C + C^{\alpha-1}\zeta/(\sigma^\alpha+\zeta^\alpha) + (\sigma^\alpha+\zeta^\alpha)^{-1/\alpha}`.
    """
    c, g, alpha = np.asarray(max_grad_norm, dtype=np.float64), problem.gradient_scale, problem.order
    excess = np.maximum(0.0, 2 * g - c / 2)
    total = problem.scale**alpha + excess**alpha
    return _arrays.plain(g / c + c ** (alpha - 1) * excess / total + total ** (-1 / alpha))
