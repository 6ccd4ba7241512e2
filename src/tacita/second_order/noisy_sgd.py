r"""Parameters, lemmas and conditions of noisy SGD to second-order stationary points.

As in the paper, the noise is on the mean of a batch of size B. Multiplied by B it is the noise of the sum; divided by
the bound C on a gradient as well, it is the noise multiplier. Nothing here is a privacy guarantee. Where the paper's
argument holds, no gradient exceeds C, so the clipped algorithm with an accountant's noise takes the same path.
Source: "Noise is All You Need: Private Second-Order Convergence of Noisy SGD", with the corrections of
docs/derivations/noisy-sgd.md. Constants that the paper does not specify are arguments with default 1, so results are
orders of magnitude.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._domains import ABOVE_ONE, NON_NEGATIVE, checked

__all__ = [
    "EscapeParameters",
    "breaking_dimension",
    "concentrated_mean_sensitivity",
    "concentration_bound",
    "escape_parameters",
    "gradient_norm_bound",
    "honest_delta",
    "kappa",
    "least_accuracy",
    "noise_is_enough",
    "paper_mean_noise_std",
]


@checked()
def gradient_norm_bound(
    *,
    smoothness: ArrayLike,
    initial_gap: ArrayLike,
    gradient_noise: ArrayLike,
    num_records: ArrayLike,
    steps: ArrayLike,
    delta: ArrayLike,
    c: float = 1.0,
) -> Any:
    r"""Return formula (2) for the largest per-sample gradient on the path: a heuristic for choosing C, not a bound.

    :math:`2\sqrt{L f} + c\,(L\sqrt{\ln(T/\delta)} + \sigma\sqrt{\ln(nT)} + \sqrt{\sigma\ln(1/\delta)})`. It adds
    quantities of different units, has an unknown constant, and leaves out the privacy noise, which can make gradients
    exceed it.

    Example:
        >>> round(gradient_norm_bound(smoothness=1, initial_gap=1, gradient_noise=1, num_records=50_000, steps=10_000,
        ...                           delta=1e-5), 4)
        14.4209
    """
    curvature, t = _arrays.positive("smoothness", smoothness), _arrays.positive("steps", steps)
    sigma, d = _arrays.non_negative("gradient_noise", gradient_noise), _arrays.positive("delta", delta)
    n, gap = _arrays.positive("num_records", num_records), _arrays.positive("initial_gap", initial_gap)
    spread = curvature * np.sqrt(np.log(t / d)) + sigma * np.sqrt(np.log(n * t)) + np.sqrt(sigma * np.log(1 / d))
    return _arrays.plain(2 * np.sqrt(curvature * gap) + c * spread)


@checked()
def paper_mean_noise_std(
    *,
    gradient_bound: ArrayLike,
    steps: ArrayLike,
    delta: ArrayLike,
    num_records: ArrayLike,
    epsilon: ArrayLike,
    c2: float = 1.0,
) -> Any:
    r"""Return the noise of formula (1), on the mean. **Not a guarantee**: the constant c2 is unknown.

    :math:`c_2 C \sqrt{T\ln(1/\delta)}/(n\epsilon)`. With c2 = 1 it is below the exact noise even for full batches, and
    far below it for large epsilon.

    Example:
        >>> round(paper_mean_noise_std(gradient_bound=14.4209, steps=10_000, delta=1e-5, num_records=50_000,
        ...                            epsilon=1), 6)
        0.097862
    """
    t, d = _arrays.positive("steps", steps), _arrays.positive("delta", delta)
    top = c2 * _arrays.positive("gradient_bound", gradient_bound) * np.sqrt(t * np.log(1 / d))
    return _arrays.plain(top / (_arrays.positive("num_records", num_records) * _arrays.positive("epsilon", epsilon)))


@checked(epsilon=NON_NEGATIVE)
def honest_delta(
    epsilon: ArrayLike, delta: ArrayLike, event_delta: ArrayLike | None = None, *, capped: bool = True
) -> Any:
    r"""Return the delta of an algorithm that is private only on an event: :math:`\delta + (1 + e^\epsilon)\,\delta_E`.

    The algorithm is compared with one that is always private, and the two may differ outside the event on both data
    sets. With :math:`\delta_E = \delta` the result is :math:`(2 + e^\epsilon)\delta`; the paper says :math:`2\delta`.

    Args:
        epsilon, delta: Guarantee of the algorithm that is always private.
        event_delta: Probability that the two algorithms differ; ``None`` for ``delta``.
        capped: Cap the result at 1, which is no guarantee at all.

    Example:
        >>> round(honest_delta(1.0, 0.01), 7), honest_delta(8.0, 0.01)
        (0.0471828, 1.0)
    """
    d = _arrays.positive("delta", delta)
    event = d if event_delta is None else _arrays.non_negative("event_delta", event_delta)
    total = d + (1 + np.exp(_arrays.non_negative("epsilon", epsilon))) * event
    return _arrays.plain(np.minimum(total, 1.0) if capped else total)


@dataclass(frozen=True)
class EscapeParameters:
    r"""The parameters of Definition B.1, with the correction :math:`\tilde\sigma^2 = \sigma^2/B + d\Delta^2`.

    Attributes:
        total_noise_variance: :math:`\tilde\sigma^2`, the noise of one step.
        lr: :math:`\eta = c_\eta \min(\alpha^2/(L(1+\tilde\sigma^2)), f/(L\tilde\sigma^2))`.
        steps: :math:`T = 64 f/(\eta\alpha^2)`, not rounded.
        escape_steps: Steps to leave a saddle, :math:`c/(\eta\sqrt{\rho\alpha})`.
        escape_radius: Distance moved while leaving it, :math:`c\sqrt{\alpha/\rho}`.
        escape_decrease: Decrease of the objective meanwhile, :math:`c\sqrt{\alpha^3/\rho}`.
    """

    total_noise_variance: Any
    lr: Any
    steps: Any
    escape_steps: Any
    escape_radius: Any
    escape_decrease: Any


@checked()
def escape_parameters(
    *,
    accuracy: ArrayLike,
    smoothness: ArrayLike,
    hessian_lipschitz: ArrayLike,
    initial_gap: ArrayLike,
    gradient_noise: ArrayLike,
    batch_size: ArrayLike,
    dim: ArrayLike,
    mean_noise_std: ArrayLike,
    c_lr: float = 1.0,
    steps_multiplier: float = 1.0,
) -> EscapeParameters:
    r"""Return the step size, steps and escape quantities of Definition B.1 for the accuracy alpha.

    The paper's constants hide polylogarithms and are not given anywhere; those of the escape quantities are 1 here.
    Those of its lemmas contradict one another, so T needs a further factor, ``steps_multiplier`` (1 is the paper's).

    Example:
        >>> found = escape_parameters(accuracy=0.1, smoothness=1, hessian_lipschitz=1, initial_gap=1, gradient_noise=1,
        ...                           batch_size=100, dim=100, mean_noise_std=0.1)
        >>> round(found.lr, 8), round(found.steps), round(found.escape_steps, 3)
        (0.00497512, 1286400, 635.618)
    """
    a, curvature = _arrays.positive("accuracy", accuracy), _arrays.positive("smoothness", smoothness)
    rho, gap = _arrays.positive("hessian_lipschitz", hessian_lipschitz), _arrays.positive("initial_gap", initial_gap)
    variance = np.square(gradient_noise) / np.asarray(batch_size) + np.asarray(dim) * np.square(mean_noise_std)
    with np.errstate(divide="ignore"):
        lr = c_lr * np.minimum(a**2 / (curvature * (1 + variance)), gap / (curvature * variance))
    return EscapeParameters(
        total_noise_variance=_arrays.plain(variance),
        lr=_arrays.plain(lr),
        steps=_arrays.plain(64 * gap / (lr * a**2) * steps_multiplier),
        escape_steps=_arrays.plain(1 / (lr * np.sqrt(rho * a))),
        escape_radius=_arrays.plain(np.sqrt(a / rho)),
        escape_decrease=_arrays.plain(np.sqrt(a**3 / rho)),
    )


@checked()
def kappa(
    *,
    gradient_bound: ArrayLike,
    smoothness: ArrayLike,
    initial_gap: ArrayLike,
    delta: ArrayLike,
    num_records: ArrayLike,
    epsilon: ArrayLike,
    c2: float = 1.0,
    c_lr: float = 1.0,
) -> Any:
    r"""Return kappa, which measures what privacy costs in accuracy.

    :math:`\kappa = 64 c_2^2 C^2 f L \ln(1/\delta)/(c_\eta n^2\epsilon^2)`. An accuracy alpha is feasible if and only if
    :math:`\alpha^4 \ge \kappa(d+1)`.

    Example:
        >>> round(kappa(gradient_bound=2.5, smoothness=1, initial_gap=1, delta=1e-5, num_records=50_000, epsilon=1), 11)
        1.84207e-06
    """
    top = 64 * c2**2 * np.square(gradient_bound) * np.asarray(initial_gap) * np.asarray(smoothness)
    bottom = c_lr * np.square(num_records, dtype=np.float64) * np.square(epsilon)
    return _arrays.plain(top * np.log(1 / _arrays.positive("delta", delta)) / bottom)


@checked()
def least_accuracy(kappa: ArrayLike, dim: ArrayLike) -> Any:
    r"""Return the least feasible accuracy, :math:`(\kappa(d+1))^{1/4}`, for the noise :math:`\Delta = \sigma/\sqrt B`.

    It depends on n, epsilon and d as the paper says, :math:`d^{1/4}/\sqrt{n\epsilon}`. The exponent of the initial gap
    is 1/2, not 1 as printed.

    Example:
        >>> round(least_accuracy(1.84207e-6, 1000), 6)
        0.207222
    """
    return _arrays.plain((np.asarray(kappa) * (np.asarray(dim) + 1.0)) ** 0.25)


@checked()
def noise_is_enough(
    *,
    mean_noise_std: float,
    gradient_noise: float,
    batch_size: int,
    dim: int,
    delta: float,
    steps: int,
    concentrated: bool,
) -> bool:
    r"""Return whether the noise is as large as the convergence theorem requires.

    It requires :math:`\Delta^2 \ge \sigma^2/B` if gradients concentrate. Without that assumption
    (``concentrated=False``, the paper's Appendix C) it requires :math:`\tilde\delta\Delta^2 \ge \sigma^2/B` and
    :math:`d\Delta^2 > \sigma^2/(\tilde\delta B)` with :math:`\tilde\delta = \delta/T`, which is impractically large.
    """
    of_batch = gradient_noise**2 / batch_size
    if concentrated:
        return mean_noise_std**2 >= of_batch
    event = delta / steps
    return mean_noise_std**2 * event >= of_batch and dim * mean_noise_std**2 > of_batch / event


@checked()
def concentration_bound(gradient_noise: ArrayLike, num_records: ArrayLike) -> Any:
    r"""Return how far Assumption B (gradient concentration) lets any record's gradient be from the mean.

    :math:`\sigma\sqrt{1 + \ln N}`.

    Example:
        >>> round(concentration_bound(1.0, 50_000), 5)
        3.43799
    """
    return _arrays.plain(np.asarray(gradient_noise) * np.sqrt(1 + np.log(_arrays.positive("num_records", num_records))))


@checked(num_records=ABOVE_ONE)
def concentrated_mean_sensitivity(gradient_noise: ArrayLike, *, num_records: ArrayLike, batch_size: ArrayLike) -> Any:
    r"""Return how far replacing one record would move a batch mean if Assumption B held for both data sets.

    :math:`\frac{2}{B}\,\sigma\sqrt{1+\ln n}\;\frac{n}{n-1}`. It shows how strong the assumption is; it is no reason to
    skip clipping.

    Example:
        >>> round(concentrated_mean_sensitivity(1.0, num_records=50_000, batch_size=500), 7)
        0.0137522
    """
    n = _arrays.positive("num_records", num_records)
    bound = np.asarray(concentration_bound(gradient_noise, n))
    return _arrays.plain(2 / _arrays.positive("batch_size", batch_size) * bound * n / (n - 1))


@checked()
def breaking_dimension(
    *, num_records: ArrayLike, epsilon: ArrayLike, steps: ArrayLike, delta: ArrayLike, c2: float = 1.0
) -> Any:
    r"""Return the dimension from which the noise of formula (1) alone makes a gradient longer than C.

    :math:`n^2\epsilon^2/(c_2^2 T\ln(1/\delta))`, for step sizes near 1 / L.

    Example:
        >>> round(breaking_dimension(num_records=1000, epsilon=1, steps=2, delta=1e-5), 1)
        43429.4
    """
    top = np.square(num_records, dtype=np.float64) * np.square(epsilon)
    return _arrays.plain(top / (c2**2 * _arrays.positive("steps", steps) * np.log(1 / np.asarray(delta))))
