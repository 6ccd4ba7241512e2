r"""Formulas for escaping a saddle by noise, and for choosing a second-order stationary point privately.

This module has the scales of the mechanism that chooses, and their accuracy; the mechanism itself is not here.
Source: "Noise is All You Need", Appendix B and Section 3.4; scales and accuracies corrected (ours):
docs/derivations/noisy-sgd.md.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._domains import NON_NEGATIVE, checked
from tacita.accounting import NeighboringRelation, moved

__all__ = [
    "SelectionScales",
    "candidates_for",
    "curvature_tolerance",
    "growth",
    "growth_ceiling",
    "paper_selection_scales",
    "saddle_variance",
    "selection_scales",
]


@checked(steps=NON_NEGATIVE)
def growth(curvature_step: ArrayLike, steps: ArrayLike) -> Any:
    r"""Return :math:`\alpha_t = \sqrt{\sum_{\tau<t}(1+\eta\gamma)^{2\tau}}` of Lemma B.8, the growth of noise.

    It is the spread of the noise of t steps along the descent direction of a saddle, for a unit noise in each step.

    Args:
        curvature_step: :math:`\eta\gamma` in (0, 1), step size times negative curvature.
        steps: Number of steps t.

    Example:
        >>> round(growth(0.02, 200), 3)
        261.075
    """
    rate = 1 + _arrays.positive("curvature_step", curvature_step)
    return _arrays.plain(np.sqrt((rate ** (2 * np.asarray(steps, dtype=np.float64)) - 1) / (rate**2 - 1)))


@checked(steps=NON_NEGATIVE)
def growth_ceiling(curvature_step: ArrayLike, steps: ArrayLike) -> Any:
    r"""Return the upper bound of Lemma B.8 on :func:`growth`: :math:`\beta_t = (1+\eta\gamma)^t/\sqrt{\eta\gamma}`.

    It is at most three times the growth from :math:`t = 2/(\eta\gamma)` on.

    Example:
        >>> round(growth_ceiling(0.02, 200), 3)
        371.124
    """
    step = _arrays.positive("curvature_step", curvature_step)
    return _arrays.plain((1 + step) ** np.asarray(steps, dtype=np.float64) / np.sqrt(step))


@checked(steps=NON_NEGATIVE)
def saddle_variance(
    *, lr: ArrayLike, curvature: ArrayLike, mean_noise_std: ArrayLike, steps: ArrayLike, mirrored: bool = False
) -> Any:
    r"""Return the variance along the descent direction t steps after a saddle: :math:`\eta^2\Delta^2\alpha_t^2`.

    For the difference of two runs with mirrored noise (``mirrored``) it is four times that. The paper prints
    :math:`\Delta^2\alpha_t^2`.

    Example:
        >>> round(saddle_variance(lr=0.02, curvature=1, mean_noise_std=0.1, steps=200), 6)
        0.27264
    """
    spread = np.square(growth(np.multiply(lr, curvature), steps))
    return _arrays.plain((4 if mirrored else 1) * np.square(np.multiply(lr, mean_noise_std)) * spread)


@checked()
def curvature_tolerance(accuracy: ArrayLike, hessian_lipschitz: ArrayLike) -> Any:
    r"""Return :math:`\sqrt{\rho\alpha}`; at an alpha-SOSP the smallest eigenvalue of the Hessian is above minus this.

    Example:
        >>> round(curvature_tolerance(0.1, 6.0), 6)
        0.774597
    """
    return _arrays.plain(np.sqrt(np.multiply(accuracy, hessian_lipschitz)))


@dataclass(frozen=True)
class SelectionScales:
    r"""The scales of one AboveThreshold run over candidates, and its accuracy.

    The query of a candidate is :math:`\max(\lVert\bar g\rVert/\alpha, -\lambda_{\min}/\sqrt{\rho\alpha})`, below 1 at
    an alpha-second-order stationary point; its threshold is 1 + ``accuracy``.

    Attributes:
        sensitivity: The query's sensitivity s.
        candidates: The number k of candidates, drawn at random before the run.
        threshold_scale: Laplace scale on the threshold, 2 s / epsilon.
        query_scale: Laplace scale on each query, 4 s / epsilon.
        accuracy: The accuracy a: with probability at least 1 - ``failure_probability`` the chosen point has a query of
            at most 1 + 2 a. Above 1/2 it says little.
    """

    sensitivity: float
    candidates: int
    threshold_scale: float
    query_scale: float
    accuracy: float


@checked()
def candidates_for(failure_probability: float) -> int:
    """Return how many random iterates contain a good one if half of all iterates are good.

    It is the smallest k >= 1 with 2^-k <= ``failure_probability``.

    Example:
        >>> candidates_for(0.01), candidates_for(1e-6)
        (7, 20)
    """
    _arrays.probability("failure_probability", failure_probability)
    return max(1, math.ceil(math.log2(1 / failure_probability)))


@checked()
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
    r"""Return the scales with which the choice costs ``epsilon`` once, for any number of rejected candidates.

    With s = 1, or 2 under replace-one, the gradient query moves by :math:`sC/(n\alpha)` and the eigenvalue query by
    :math:`(sL_i/n + \tau)/\sqrt{\rho\alpha}`.

    Args:
        accuracy: alpha.
        hessian_lipschitz: rho.
        max_grad_norm: The threshold C at which the query clips every per-sample gradient.
        max_hessian_norm: :math:`L_i`, a bound on every *per-sample* Hessian; a bound on their average is not enough.
        num_records: The number of records n, which is public.
        epsilon: The pure epsilon of the choice alone.
        relation: Neighboring relation.
        failure_probability: beta, half for the draw of candidates and half for the Laplace noise.
        eigenvalue_error: tau, a guaranteed one-sided error of the computed eigenvalue.
        candidates: k; ``None`` for as many as half of the failure probability requires.

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


@checked()
def paper_selection_scales(
    *, max_grad_norm: float, smoothness: float, num_records: int, epsilon: float
) -> tuple[float, float]:
    """Return the paper's Laplace scales, C/(n epsilon) and L/(n epsilon): **4 to 8 times too small** for its epsilon.

    They lack the factors 2 and 4 of AboveThreshold and the factor 2 of replacement, and L bounds only the Hessian of
    the average.

    Example:
        >>> scales = paper_selection_scales(max_grad_norm=2.5, smoothness=1, num_records=50_000, epsilon=1)
        >>> [round(x, 7) for x in scales]
        [5e-05, 2e-05]
    """
    return max_grad_norm / (num_records * epsilon), smoothness / (num_records * epsilon)
