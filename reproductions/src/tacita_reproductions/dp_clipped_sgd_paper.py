r"""Rules of the DP-Clipped-SGD paper with every hidden constant 1: corrected, and as printed where its proofs differ.

They serve tables and plots, and guarantee nothing. The theorems with their constants are in
:mod:`tacita.clipped_sgd.dp_clipped_sgd`; docs/derivations/dp-clipped-sgd.md lists the errata
and derives the corrections.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._arrays import Numbers
from tacita._domains import checked
from tacita.clipped_sgd.problem import Problem


@checked()
def d_log_factor(problem: Problem, *, delta: ArrayLike, steps: ArrayLike, failure_probability: ArrayLike) -> Any:
    r"""Return :math:`d \ln(K/\delta) \ln(1/\delta) \ln(K/\beta)`, which both balanced rules take the root of."""
    k, d = _arrays.positive("steps", steps), _arrays.positive("delta", delta)
    beta = _arrays.probability("failure_probability", failure_probability)
    return np.asarray(problem.dim) * np.log(k / d) * np.log(1 / d) * np.log(k / beta)


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
def bracket(problem: Problem, *, max_grad_norm: ArrayLike) -> Numbers:
    r"""Return the bracket W of equation (8), corrected so that it has no unit.

    :math:`\zeta/C + 1/2 + C^{\alpha-1}\zeta/s + \sigma s^{-1/\alpha}` with :math:`s = \sigma^\alpha+\zeta^\alpha`.

    Example:
        >>> from tacita.clipped_sgd import ConvexProblem
        >>> bracket(ConvexProblem(smoothness=1, radius=1, moment_scale=0.1, moment_order=1.5), max_grad_norm=5.0)
        1.5
    """
    c, alpha = _arrays.positive("max_grad_norm", max_grad_norm), problem.order
    excess = np.maximum(0.0, problem.grad_cap - c / 2)
    total = problem.scale**alpha + excess**alpha
    tail = problem.scale * total ** (-1 / alpha)
    return _arrays.plain(excess / c + 0.5 + c ** (alpha - 1) * excess / total + tail)


@checked()
def asymptotic_rate(
    problem: Problem,
    *,
    max_grad_norm: ArrayLike,
    steps: ArrayLike,
    failure_probability: ArrayLike,
    mean_noise_std: ArrayLike = 0.0,
) -> dict[str, Any]:
    r"""Return the terms of Corollaries 4.2 and 4.5 with every hidden constant 1. For plots of trends only.

    The bracket is the corrected one.

    Returns:
        The terms ``smooth``, ``stat``, ``bias`` and ``dp`` by name; the rate is the largest.

    Example:
        >>> from tacita.clipped_sgd import ConvexProblem
        >>> p = ConvexProblem(smoothness=1, radius=1, moment_scale=0.1, moment_order=1.5, dim=10)
        >>> rate = asymptotic_rate(p, max_grad_norm=5.0, steps=10**4, failure_probability=0.05)
        >>> max(rate, key=rate.get), round(max(rate.values()), 4)
        ('bias', 0.0212)
    """
    c, k = _arrays.positive("max_grad_norm", max_grad_norm), _arrays.positive("steps", steps)
    noise = _arrays.non_negative("mean_noise_std", mean_noise_std)
    log = np.log(k / _arrays.probability("failure_probability", failure_probability))
    alpha, first, second = problem.order, problem.error_scale, problem.error_scale * problem.gradient_scale
    total = problem.scale**alpha + np.maximum(0.0, problem.grad_cap - c / 2) ** alpha
    bias = total * np.asarray(bracket(problem, max_grad_norm=c)) / c ** (alpha - 1)
    d = np.asarray(problem.dim, dtype=np.float64)
    terms = {
        "smooth": second / k + second * (problem.gradient_scale / (c * k)) ** 2,
        "stat": first * c ** (1 - alpha / 2) * np.sqrt(total * log / k) + second * total * log / (c**alpha * k),
        "bias": first * bias + second * (bias / c) ** 2,
        "dp": first * noise * np.sqrt(d * log / k) + second * noise**2 * d * log / (c**2 * k),
    }
    return {name: _arrays.plain(term) for name, term in terms.items()}


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
