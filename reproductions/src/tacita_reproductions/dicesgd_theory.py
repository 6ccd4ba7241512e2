r"""The formulas of the DiceSGD paper: its theorems, the weights of its iterates, and its noise beside the rigorous one.

As in the paper, noise is on the mean of a batch; that of the sum is larger by the public divisor.
Rely on neither theorem: a noise-free one-dimensional loss violates 3.6, and 3.7 is false as stated
(docs/derivations/dicesgd.md). The formulas are here for comparison.
Source: Zhang, Bu, Wu, Hong, "Differentially Private SGD Without Clipping Bias: An Error-Feedback Approach".
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._domains import ANY_SIZE, NON_NEGATIVE, POSITIVE, checked
from tacita.accounting import NeighboringRelation, gaussian_mu, moved

__all__ = [
    "DiceBound",
    "constant_of_theorem_3_7",
    "error_norm_bound",
    "feedback_factor_floor",
    "feedback_signal_to_noise",
    "iterate_weights",
    "paper_automatic",
    "paper_epsilon_of_its_own_proof",
    "paper_theorem_3_7",
    "rigorous_mean_noise_std",
    "theorem_3_6",
]

_MU = np.vectorize(gaussian_mu, otypes=[np.float64])


@dataclass(frozen=True)
class DiceBound:
    r"""Theorem 3.6's bound on :math:`E\lVert\nabla f(x^t)\rVert^2`, where t is drawn with the weights :math:`A_t`.

    Attributes:
        noise_energy: :math:`\Gamma = 2C_1^2 + 3C_2^2 + d\sigma_1^2`.
        lr: The theorem's step size.
        value: The theorem's bound: a formula, not a guarantee.
        applies: Whether the theorem's assumption :math:`C_2 \ge 3C_1 + \sigma/B` holds.
    """

    noise_energy: Any
    lr: Any
    value: Any
    applies: Any


@checked()
def theorem_3_6(
    *,
    smoothness: ArrayLike,
    initial_gap: ArrayLike,
    steps: ArrayLike,
    max_grad_norm: ArrayLike,
    max_feedback_norm: ArrayLike,
    dim: ArrayLike,
    mean_noise_std: ArrayLike,
    lr: ArrayLike | None = None,
    deviation_of_the_mean: ArrayLike = 0.0,
) -> DiceBound:
    r"""Return the bound of Theorem 3.6, :math:`2\sqrt{2 L F \Gamma / T}` at :math:`\eta = \sqrt{2F/(T L \Gamma)}`.

    At another step size it is :math:`2F/(\eta T) + \eta L \Gamma`, from the end of the proof. The proof drops a factor
    that is large when the error grows, and a Huber loss far from its minimum exceeds the bound nine to ten times.

    Args:
        smoothness: L.
        initial_gap: F, at least f(x^0) - f*.
        steps: T.
        max_grad_norm: :math:`C_1`.
        max_feedback_norm: :math:`C_2`.
        dim: d.
        mean_noise_std: :math:`\sigma_1`, the noise on the mean.
        lr: Step size; ``None`` for the theorem's.
        deviation_of_the_mean: :math:`\sigma / B`, which only ``applies`` depends on.

    Example:
        >>> found = theorem_3_6(smoothness=1, initial_gap=2, steps=1000, max_grad_norm=1, max_feedback_norm=3.5,
        ...                     dim=10, mean_noise_std=0.1)
        >>> round(found.noise_energy, 2), round(found.lr, 7), round(found.value, 6), found.applies
        (38.85, 0.0101469, 0.788416, True)
    """
    curvature, gap = _arrays.positive("smoothness", smoothness), _arrays.positive("initial_gap", initial_gap)
    t, c1 = _arrays.positive("steps", steps), _arrays.positive("max_grad_norm", max_grad_norm)
    c2 = _arrays.non_negative("max_feedback_norm", max_feedback_norm)
    energy = 2 * c1**2 + 3 * c2**2 + np.asarray(dim) * _arrays.non_negative("mean_noise_std", mean_noise_std) ** 2
    best = np.sqrt(2 * gap / (t * curvature * energy))
    step = best if lr is None else _arrays.positive("lr", lr)
    return DiceBound(
        noise_energy=_arrays.plain(energy),
        lr=_arrays.plain(step),
        value=_arrays.plain(2 * gap / (step * t) + step * curvature * energy),
        applies=_arrays.plain(c2 >= 3 * c1 + np.asarray(deviation_of_the_mean)),
    )


@checked()
def iterate_weights(feedback_factors: ArrayLike) -> Any:
    r"""Return Theorem 3.6's weights :math:`A_t = 1 - \prod_{\tau > t} (1 - \alpha_e^\tau)`, t = 0, ..., T - 1.

    The last weight is 0, so they are not strictly positive as the paper says. They depend on the hidden error, so an
    index drawn with them is not private.

    Args:
        feedback_factors: :math:`\alpha_e^t = \min(1, C_2/\lVert e^t\rVert)`, along the last axis.

    Example:
        >>> iterate_weights([1, 0.5, 0.25, 0.8, 0.5]).round(4).tolist()
        [0.9625, 0.925, 0.9, 0.5, 0.0]
    """
    left = 1 - _arrays.probability("feedback_factors", feedback_factors)
    products = np.cumprod(left[..., ::-1], axis=-1)[..., ::-1]  # over tau >= t
    return 1 - np.concatenate([products[..., 1:], np.ones((*left.shape[:-1], 1))], axis=-1)


@checked(steps=NON_NEGATIVE, max_feedback_norm=POSITIVE)
def feedback_factor_floor(*, steps: ArrayLike, residual_bound: ArrayLike, max_feedback_norm: ArrayLike) -> Any:
    r"""Return bound (9): :math:`\alpha_e^t \ge C_2/(C_2 + t(G' - C_2))`, and 1 where :math:`G' \le C_2`.

    :math:`G' = \max(0, G + \sigma - C_1)` bounds what clipping removes of one sample.

    Example:
        >>> feedback_factor_floor(steps=[1, 2, 10], residual_bound=3, max_feedback_norm=1).round(6).tolist()
        [0.333333, 0.2, 0.047619]
    """
    c2 = _arrays.positive("max_feedback_norm", max_feedback_norm)
    grown = _arrays.non_negative("steps", steps) * np.maximum(0.0, np.asarray(residual_bound) - c2)
    return _arrays.plain(c2 / (c2 + grown))


@checked(max_feedback_norm=POSITIVE)
def error_norm_bound(*, steps: ArrayLike, residual_bound: ArrayLike, max_feedback_norm: ArrayLike) -> Any:
    r"""Return the bound on the error's norm: :math:`t G' - (t-1) C_2` where :math:`G' \ge C_2`, otherwise :math:`G'`.

    It bounds :math:`\lVert e^t\rVert` for t >= 1; G' is that of :func:`feedback_factor_floor`.

    Example:
        >>> error_norm_bound(steps=10, residual_bound=3.0, max_feedback_norm=1.0)
        21.0
    """
    t, c2 = _arrays.positive("steps", steps), _arrays.positive("max_feedback_norm", max_feedback_norm)
    g = _arrays.non_negative("residual_bound", residual_bound)
    return _arrays.plain(g + (t - 1) * np.maximum(0.0, g - c2))


@checked(residual_bound=ANY_SIZE)
def paper_theorem_3_7(
    *,
    num_records: int,
    steps: int,
    epsilon: float,
    delta: float,
    max_grad_norm: float,
    theorem_constant: float,
    residual_bound: float = math.inf,
) -> float:
    r"""Return the noise of Theorem 3.7 on the mean. **Not private as claimed.**

    :math:`\sigma_1 = \sqrt{32 T (C_1^2 + 2\min(C, G')^2) \ln(1/\delta)} / (N\epsilon)`, where C is a constant with
    :math:`C_2 \le C/B`. Where the residual bound G' is smaller than C, the formula also relies on a property of the
    data that nothing enforces.

    Example:
        >>> round(paper_theorem_3_7(num_records=50_000, steps=150, epsilon=2, delta=1e-5, max_grad_norm=1,
        ...                         theorem_constant=1000), 5)
        3.32452
    """
    energy = max_grad_norm**2 + 2 * min(theorem_constant, residual_bound) ** 2
    return math.sqrt(32 * steps * energy * math.log(1 / delta)) / (num_records * epsilon)


@checked()
def paper_automatic(*, num_records: int, steps: int, epsilon: float, delta: float, max_grad_norm: float) -> float:
    r"""Return the noise of the automatic variant on the mean. **Not private as claimed**: too small by about 10^4.

    :math:`\sigma_1 = \sqrt{96 T \ln(1/\delta)}\, C / (N \epsilon)`.

    Example:
        >>> round(paper_automatic(num_records=50_000, steps=150, epsilon=2, delta=1e-5, max_grad_norm=1), 8)
        0.00407168
    """
    return math.sqrt(96 * steps * math.log(1 / delta)) * max_grad_norm / (num_records * epsilon)


@checked()
def paper_epsilon_of_its_own_proof(epsilon: ArrayLike, delta: ArrayLike) -> Any:
    r"""Return the epsilon that the paper's constant 32 would give if the rest of its proof were right.

    It is larger than the epsilon that the paper states.

    The best Rényi order gives :math:`\sqrt 2\, \epsilon + \epsilon^2/(2\ln(1/\delta))`.

    Example:
        >>> round(paper_epsilon_of_its_own_proof(2.0, 1e-5), 5)
        3.00214
    """
    e = _arrays.positive("epsilon", epsilon)
    return _arrays.plain(math.sqrt(2) * e + e**2 / (2 * np.log(1 / _arrays.positive("delta", delta))))


@checked()
def constant_of_theorem_3_7(epsilon: ArrayLike, delta: ArrayLike) -> Any:
    r"""Return the constant that Theorem 3.7 would need instead of 32; it is at least 64.

    :math:`16\epsilon^2/(\ell(\sqrt{\ell+\epsilon}-\sqrt\ell)^2)` with :math:`\ell = \ln(1/\delta)`.

    Example:
        >>> round(constant_of_theorem_3_7(2.0, 1e-5), 4)
        69.4477
    """
    e, log = _arrays.positive("epsilon", epsilon), np.log(1 / _arrays.positive("delta", delta))
    return _arrays.plain(16 * e**2 / (log * (np.sqrt(log + e) - np.sqrt(log)) ** 2))


@checked()
def rigorous_mean_noise_std(
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    steps: ArrayLike,
    max_grad_norm: ArrayLike,
    max_feedback_norm: ArrayLike,
    divisor: ArrayLike,
    relation: NeighboringRelation,
) -> Any:
    r"""Return the noise on the mean that is private for any data-independent batches.

    :math:`S\sqrt T/\mu(\epsilon, \delta)` with :math:`S = s\, C_1/B + 2 C_2`, where s is 1, or 2 under replace-one. The
    first term is the current batch; the second is the error, which remembers all earlier batches. The oracle accounts
    for a little less where sampling allows it.

    Example:
        >>> noise = rigorous_mean_noise_std(epsilon=2, delta=1e-5, steps=150, max_grad_norm=1, max_feedback_norm=1,
        ...                                 divisor=1000, relation="add_or_remove_one")
        >>> round(noise, 4)
        48.8627
    """
    direct = moved(relation) * _arrays.positive("max_grad_norm", max_grad_norm) / _arrays.positive("divisor", divisor)
    sensitivity = direct + 2 * _arrays.non_negative("max_feedback_norm", max_feedback_norm)
    return _arrays.plain(sensitivity * np.sqrt(_arrays.positive("steps", steps)) / _MU(epsilon, delta))


@checked()
def feedback_signal_to_noise(epsilon: ArrayLike, delta: ArrayLike) -> Any:
    r"""Return the farthest that private error feedback can move in one direction over a run, in noise deviations.

    It is :math:`\mu(\epsilon, \delta)/2` standard deviations of its noise, for all thresholds and numbers of steps.

    Example:
        >>> round(feedback_signal_to_noise(2.0, 1e-5), 6)
        0.250776
    """
    return _arrays.plain(_MU(epsilon, delta) / 2)
