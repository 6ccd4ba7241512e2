r"""How noise leaves a saddle, and how a second-order stationary point is chosen privately, in formulas.

Place: numbers in, numbers out; beside [theory.noisy_sgd]. The mechanism that chooses is elsewhere; here are its scales
and what they promise.
Source: "Noise is All You Need", Appendix B and Section 3.4; scales and accuracies corrected (ours):
docs/derivations/noisy-sgd.md.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita.accounting import NeighboringRelation, moved
from tacita.theory import _arrays


def growth(curvature_step: ArrayLike, steps: ArrayLike) -> Any:
    r"""Lemma B.8: :math:`\alpha_t = \sqrt{\sum_{\tau<t}(1+\eta\gamma)^{2\tau}}`, the spread along the way down.

    Args:
        curvature_step: :math:`\eta\gamma` in (0, 1), step size times negative curvature.
        steps: t.

    Example:
        >>> round(growth(0.02, 200), 3)
        261.075
    """
    rate = 1 + _arrays.positive("curvature_step", curvature_step)
    return _arrays.plain(np.sqrt((rate ** (2 * np.asarray(steps, dtype=np.float64)) - 1) / (rate**2 - 1)))


def growth_ceiling(curvature_step: ArrayLike, steps: ArrayLike) -> Any:
    r"""Lemma B.8: :math:`\beta_t = (1+\eta\gamma)^t/\sqrt{\eta\gamma}`, never below the growth.

    At most three times the growth from :math:`t = 2/(\eta\gamma)` on.

    Example:
        >>> round(growth_ceiling(0.02, 200), 3)
        371.124
    """
    step = _arrays.positive("curvature_step", curvature_step)
    return _arrays.plain((1 + step) ** np.asarray(steps, dtype=np.float64) / np.sqrt(step))


def saddle_variance(
    *, lr: ArrayLike, curvature: ArrayLike, mean_noise_std: ArrayLike, steps: ArrayLike, mirrored: bool = False
) -> Any:
    r"""Variance along the descent direction t steps after a saddle: :math:`\eta^2\Delta^2\alpha_t^2`.

    For the difference of two runs with mirrored noise four times that; the paper prints :math:`\Delta^2\alpha_t^2`.

    Example:
        >>> round(saddle_variance(lr=0.02, curvature=1, mean_noise_std=0.1, steps=200), 6)
        0.27264
    """
    spread = np.square(growth(np.multiply(lr, curvature), steps))
    return _arrays.plain((4 if mirrored else 1) * np.square(np.multiply(lr, mean_noise_std)) * spread)


def expected_decrease(
    *, lr: ArrayLike, smoothness: ArrayLike, grad_norm: ArrayLike, total_noise_variance: ArrayLike
) -> Any:
    r"""What a step gains in expectation.

    At least :math:`(\eta - L\eta^2)\lVert\nabla f\rVert^2 - \frac{L}{2}\eta^2\tilde\sigma^2`; that is at least
    :math:`\eta\alpha^2/4` for :math:`\eta \le \min(1, \alpha^2/\tilde\sigma^2)/(2L)` and a gradient of at least alpha.
    """
    step, bend = np.asarray(lr, dtype=np.float64), np.multiply(smoothness, np.square(lr))
    return _arrays.plain((step - bend) * np.square(grad_norm) - bend / 2 * np.asarray(total_noise_variance))


def curvature_tolerance(accuracy: ArrayLike, hessian_lipschitz: ArrayLike) -> Any:
    r""":math:`\sqrt{\rho\alpha}`: at an alpha-SOSP the smallest eigenvalue is above minus this.

    Example:
        >>> round(curvature_tolerance(0.1, 6.0), 6)
        0.774597
    """
    return _arrays.plain(np.sqrt(np.multiply(accuracy, hessian_lipschitz)))


@dataclass(frozen=True)
class SelectionScales:
    r"""Scales of one AboveThreshold run over candidates, and what it promises.

    The query of a candidate is :math:`\max(\lVert\bar g\rVert/\alpha, -\lambda_{\min}/\sqrt{\rho\alpha})`, below 1 at
    an alpha-second-order stationary point; its threshold is 1 + ``accuracy``.

    Attributes:
        sensitivity: Of that query.
        candidates: k, drawn at random beforehand.
        threshold_scale: Laplace scale on the threshold, 2 s / epsilon.
        query_scale: Laplace scale on each query, 4 s / epsilon.
        accuracy: a: with probability 1 - failure the chosen point has a query of at most 1 + 2 a. Above 1/2 it says
            little.
    """

    sensitivity: float
    candidates: int
    threshold_scale: float
    query_scale: float
    accuracy: float


def candidates_for(failure_probability: float) -> int:
    """How many random iterates hold a good one, if half are good: the smallest k with 2^-k <= the failure probability.

    Example:
        >>> candidates_for(0.01), candidates_for(1e-6)
        (7, 20)
    """
    _arrays.probability("failure_probability", failure_probability)
    return max(1, math.ceil(math.log2(1 / failure_probability)))


def selection_scales(
    *,
    accuracy: float,
    hessian_lipschitz: float,
    max_grad_norm: float,
    max_hessian_norm: float,
    num_records: int,
    epsilon: float,
    relation: NeighboringRelation,
    failure_probability: float,
    eigenvalue_error: float = 0.0,
    candidates: int | None = None,
) -> SelectionScales:
    r"""The scales with which choosing costs ``epsilon`` once, however many candidates are rejected.

    With s = 1, or 2 under replace-one, the gradient query moves by :math:`sC/(n\alpha)` and the eigenvalue query by
    :math:`(sL_i/n + \tau)/\sqrt{\rho\alpha}`.

    Args:
        accuracy: alpha.
        hessian_lipschitz: rho.
        max_grad_norm: C, by which every per-sample gradient is clipped in the query.
        max_hessian_norm: :math:`L_i`, a bound on every *per-sample* Hessian; that of the average is not enough.
        num_records: Public n.
        epsilon: Of the choice alone, pure.
        relation: Neighboring relation.
        failure_probability: beta, half for the draw of candidates and half for the Laplace noise.
        eigenvalue_error: tau, a guaranteed one-sided error of the computed eigenvalue.
        candidates: k; by default enough for half of the failure probability.

    Example:
        >>> scales = selection_scales(accuracy=0.1, hessian_lipschitz=1, max_grad_norm=2.5, max_hessian_norm=10,
        ...     num_records=50_000, epsilon=1, relation="replace_one", failure_probability=0.05, candidates=20)
        >>> round(scales.sensitivity, 8), round(scales.accuracy, 7)
        (0.00126491, 0.0676435)
    """
    n, moves = float(_arrays.positive("num_records", num_records)), moved(relation)
    tolerance = curvature_tolerance(_arrays.positive("accuracy", accuracy), hessian_lipschitz)
    of_gradient = moves * float(_arrays.positive("max_grad_norm", max_grad_norm)) / (n * accuracy)
    of_hessian = moves * float(_arrays.positive("max_hessian_norm", max_hessian_norm)) / n
    s = max(of_gradient, (of_hessian + float(_arrays.non_negative("eigenvalue_error", eigenvalue_error))) / tolerance)
    half = failure_probability / 2
    k = candidates_for(half) if candidates is None else candidates
    budget = float(_arrays.positive("epsilon", epsilon))
    return SelectionScales(
        sensitivity=s,
        candidates=k,
        threshold_scale=2 * s / budget,
        query_scale=4 * s / budget,
        accuracy=8 * s * (math.log(k) + math.log(1 / half)) / budget,
    )


def paper_selection_scales(
    *, max_grad_norm: float, smoothness: float, num_records: int, epsilon: float
) -> tuple[float, float]:
    """The paper's Laplace scales, C/(n epsilon) and L/(n epsilon): **4 to 8 times too small** for the stated epsilon.

    Missing are the factors 2 and 4 of AboveThreshold, the 2 of replacement, and that L bounds the average's Hessian
    only.

    Example:
        >>> scales = paper_selection_scales(max_grad_norm=2.5, smoothness=1, num_records=50_000, epsilon=1)
        >>> [round(x, 7) for x in scales]
        [5e-05, 2e-05]
    """
    return max_grad_norm / (num_records * epsilon), smoothness / (num_records * epsilon)


def paper_selection_needs(
    *, max_grad_norm: float, smoothness: float, hessian_lipschitz: float, initial_gap: float, dim: int
) -> tuple[float, float]:
    r"""n epsilon from which the paper's scales are accurate to half: for the gradient, and for the eigenvalue.

    :math:`4C^2/(f^2\sqrt d)` and :math:`(2L)^{4/3}\rho^{-2/3}f^{-2/3}d^{-1/6}`; the second is missing in the paper, and
    does not follow from the first.
    """
    gradient = 4 * max_grad_norm**2 / (initial_gap**2 * math.sqrt(dim))
    eigenvalue = (2 * smoothness) ** (4 / 3) * (hessian_lipschitz * initial_gap) ** (-2 / 3) * dim ** (-1 / 6)
    return gradient, eigenvalue
