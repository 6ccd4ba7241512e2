r"""SGD with per-sample clipping at a fixed threshold and Gaussian noise: what its high-probability theory promises.

Place: numbers in, numbers out. Everything is at the level of the mean of a batch, as in the paper: ``mean_noise_std``
is the noise on one coordinate of the averaged gradient (:mod:`tacita.theory.noise` converts it from and to the sum).
``steps`` is the paper's K: the iterates :math:`x^0, \dots, x^K` count, and the loop as written makes K + 1 queries.
Source: "Differentially Private Clipped-SGD: High-Probability Convergence with Arbitrary Clipping Level", Theorems C.2
and F.2, with all constants. The named maximum, the verdict "vacuous" and the averaged iterate are ours:
docs/derivations/dp-clipped-sgd.md. The bounds explain trends; they are not predictions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita.theory import _arrays
from tacita.theory.clipped_vector import clip_bias_bound, clip_variance_bound
from tacita.theory.problem import ConvexProblem, NonConvexProblem, Problem

TERMS = ("smooth", "stat", "bias", "dp", "jump")  # the limits of the step that can bind, in the paper's order


@dataclass(frozen=True)
class ConvergenceBound:
    """What a theorem promises for the best iterate, with probability at least 1 - ``failure_probability``.

    Attributes:
        value: The bound; arrays if the inputs were.
        terms: Its five named parts; ``value`` is the largest. ``smooth``: too few steps. ``stat``: noise of the
            samples. ``bias``: the neighbourhood, what clipping leaves forever. ``dp``: noise of privacy. ``jump``: the
            largest single step.
        binding_term: The name of the largest.
        lr: The largest step size that the theorem allows; the smallest of ``lr_limits``.
        lr_limits: The seven limits gamma_0 to gamma_6 by name.
        trivial_value: What holds before any step.
        metric: What is bounded.
    """

    value: Any
    terms: Mapping[str, Any]
    binding_term: Any
    lr: Any
    lr_limits: Mapping[str, Any]
    trivial_value: Any
    metric: str

    @property
    def is_vacuous(self) -> Any:
        """Whether the bound says no more than what holds at the start."""
        return _arrays.plain(np.asarray(self.value) >= self.trivial_value)


def lr_limits(
    problem: Problem,
    *,
    max_grad_norm: ArrayLike,
    steps: ArrayLike,
    failure_probability: ArrayLike,
    mean_noise_std: ArrayLike = 0.0,
    batch_size: ArrayLike = 1,
) -> dict[str, Any]:
    r"""The seven limits on the step size of Theorem C.2 (convex) or F.2, by name.

    In the order of the paper: ``smooth`` (gamma_0), ``stat``, ``bias``, ``dp``, ``ball``, ``jump``, ``energy``
    (gamma_6). With B and V of Lemma B.1 at the largest gradient norm, the convex ``stat`` is
    :math:`R / (28 \sqrt{6 (K+1) V \ln(8(K+1)/\beta)})` and ``bias`` is :math:`R / (28 (K+1) B)`; without noise ``dp``
    and ``energy`` are infinite. ``ball`` and ``energy`` never bind; ``jump`` does in realistic settings, so that the
    paper's corollaries, which drop it for "large K", are not used here.

    Args:
        problem: What is assumed of the objective.
        max_grad_norm: Threshold C (the paper's lambda), > 0.
        steps: K >= 1.
        failure_probability: beta in (0, 1].
        mean_noise_std: Privacy noise on a coordinate of the mean gradient, >= 0.
        batch_size: Independent samples a step. The paper has 1; more is an extension of ours: clip each, average,
            and V is divided by the batch.
    """
    c = _arrays.positive("max_grad_norm", max_grad_norm)
    n = _arrays.positive("steps", steps) + 1
    beta = _arrays.probability("failure_probability", failure_probability)
    noise = _arrays.non_negative("mean_noise_std", mean_noise_std)
    moments = {"max_grad_norm": c, "moment_scale": problem.moment_scale, "moment_order": problem.moment_order}
    bias = np.asarray(clip_bias_bound(problem.grad_cap, **moments))
    variance = np.asarray(clip_variance_bound(problem.grad_cap, **moments)) / _arrays.positive("batch_size", batch_size)
    k, length, d = _CONSTANTS[type(problem)], problem.length, np.asarray(problem.dim, dtype=np.float64)
    log8, log4, log1 = (np.log(factor * n / beta) for factor in (8, 4, 1))
    phi = np.sqrt(3 * log4)
    with np.errstate(divide="ignore"):
        limits = {
            "smooth": k.smooth / np.asarray(problem.smoothness, dtype=np.float64),
            "stat": length / (k.stat * np.sqrt(6 * n * variance * log8)),
            "bias": length / (k.stat * n * bias),
            "dp": length / (k.dp * noise * np.sqrt(d * n) * math.sqrt(2) * (1 + phi)),
            "ball": k.ball * length / (c + noise * (np.sqrt(d) + np.sqrt(2 * log1))),
            "jump": length / (k.jump * c * log8),
            "energy": length / (k.energy * noise * np.sqrt(7 * (n * d + 2 * np.sqrt(n * d * log4) + 2 * log4))),
        }
    return {name: _arrays.plain(limit) for name, limit in limits.items()}


def bound_at_lr(problem: Problem, *, lr: ArrayLike, max_grad_norm: ArrayLike, steps: ArrayLike) -> Any:
    r"""The right-hand side of the theorem at a step size that its limits allow.

    Convex: :math:`\frac{4R^2}{\gamma(K+1)} + \frac{64 L R^4}{C^2 \gamma^2 (K+1)^2}`; non-convex:
    :math:`\frac{8\Delta}{\gamma(K+1)} + \frac{128 \Delta^2}{C^2\gamma^2(K+1)^2}`. Zero where lr is infinite.
    """
    progress = _progress(lr, steps)
    energy = problem.length * problem.length  # R^2, or Delta / L
    curvature = np.asarray(problem.smoothness, dtype=np.float64)
    if isinstance(problem, ConvexProblem):
        first, second = 4 * energy, 64 * curvature
    else:
        energy = energy * curvature
        first, second = 8 * energy, 128.0
    return _arrays.plain(first / progress + second * (energy / (progress * np.asarray(max_grad_norm))) ** 2)


def convergence_bound(
    problem: Problem,
    *,
    max_grad_norm: ArrayLike,
    steps: ArrayLike,
    failure_probability: ArrayLike,
    mean_noise_std: ArrayLike = 0.0,
    batch_size: ArrayLike = 1,
) -> ConvergenceBound:
    r"""Theorem C.2 or F.2 at its largest step size, as a maximum of named terms.

    The right-hand side falls with the step size, so at the smallest limit it is the largest of its values at the
    limits: one term each. The term ``bias`` does not depend on ``steps``.

    For a non-convex problem the printed constants are proved with probability 1 - 2 ``failure_probability`` (an event
    of the proof is not charged); to be strict hand in half. For a convex one they hold as stated.

    Args:
        problem, max_grad_norm, steps, failure_probability, mean_noise_std, batch_size: As in :func:`lr_limits`.

    Example:
        >>> bound = convergence_bound(
        ...     ConvexProblem(smoothness=1, radius=1, moment_scale=0.1, moment_order=1.5, dim=10),
        ...     max_grad_norm=5.0, steps=9999, failure_probability=0.05)
        >>> round(bound.value, 4), bound.binding_term, bound.trivial_value, bound.is_vacuous
        (23.9542, 'bias', 0.5, True)
    """
    limits = lr_limits(
        problem,
        max_grad_norm=max_grad_norm,
        steps=steps,
        failure_probability=failure_probability,
        mean_noise_std=mean_noise_std,
        batch_size=batch_size,
    )
    terms = {name: bound_at_lr(problem, lr=limits[name], max_grad_norm=max_grad_norm, steps=steps) for name in TERMS}
    stacked = np.stack(np.broadcast_arrays(*terms.values()))
    return ConvergenceBound(
        value=_arrays.plain(stacked.max(axis=0)),
        terms=terms,
        binding_term=_arrays.plain(np.asarray(TERMS)[stacked.argmax(axis=0)]),
        lr=_arrays.plain(np.stack(np.broadcast_arrays(*limits.values())).min(axis=0)),
        lr_limits=limits,
        trivial_value=problem.trivial_value,
        metric=problem.metric,
    )


def neighbourhood(problem: Problem, *, max_grad_norm: ArrayLike) -> Any:
    r"""What clipping leaves forever: the limit of the bound for infinitely many steps without privacy noise.

    Convex: :math:`112 R B + 50176\, L R^2 B^2 / C^2`, B the bias of Lemma B.1 at the largest gradient.

    Example:
        >>> p = ConvexProblem(smoothness=1, radius=1, moment_scale=0.1, moment_order=1.5)
        >>> neighbourhood(p, max_grad_norm=[4.0, 50.0, 5000.0]).round(4)
        array([38.8493,  3.0197,  0.3005])
    """
    limits = lr_limits(problem, max_grad_norm=max_grad_norm, steps=1, failure_probability=1.0)
    return bound_at_lr(problem, lr=limits["bias"], max_grad_norm=max_grad_norm, steps=1)


def average_iterate_bound(problem: ConvexProblem, *, lr: ArrayLike, max_grad_norm: ArrayLike, steps: ArrayLike) -> Any:
    r"""What holds for the average of :math:`x^0, \dots, x^K` on the same event, at a step size within the limits.

    :math:`f(\bar x) - f^* \le \frac{2R^2}{\gamma (K+1)} \max(1, 2\sqrt 2\, L R / C)`. Unlike the best iterate the
    average can be released: it is post-processing. For :math:`C \ge \sqrt 2 L R` it is never worse than the theorem.

    Example:
        >>> p = ConvexProblem(smoothness=1, radius=1, moment_scale=0.1, moment_order=1.5, dim=10)
        >>> bound = convergence_bound(p, max_grad_norm=5.0, steps=9999, failure_probability=0.05)
        >>> round(average_iterate_bound(p, lr=bound.lr, max_grad_norm=5.0, steps=9999), 5)
        4.75176
    """
    progress = _progress(lr, steps)
    factor = np.maximum(1.0, 2 * math.sqrt(2) * problem.gradient_scale / np.asarray(max_grad_norm))
    return _arrays.plain(2 * problem.length**2 / progress * factor)


def random_iterate_bound(
    problem: NonConvexProblem, *, lr: ArrayLike, max_grad_norm: ArrayLike, steps: ArrayLike
) -> Any:
    r"""What the gradient norm (not squared) of an iterate drawn uniformly beforehand stays below with probability 1/2.

    Markov's inequality on :math:`\frac{1}{K+1}\sum_t \lVert \nabla f(x^t)\rVert \le
    \sqrt{\frac{4\Delta}{\gamma (K+1)}} + \frac{8\Delta}{C\gamma (K+1)}`: twice the right-hand side, given the event of
    the theorem. The index is drawn before training, so that the choice costs no privacy.

    Example:
        >>> p = NonConvexProblem(smoothness=1, initial_gap=1, moment_scale=1e-6, moment_order=2, dim=10)
        >>> bound = convergence_bound(p, max_grad_norm=4.0, steps=10**8, failure_probability=0.05)
        >>> round(random_iterate_bound(p, lr=bound.lr, max_grad_norm=4.0, steps=10**8) ** 2, 4)
        0.0004
    """
    progress = _progress(lr, steps)
    gap = np.asarray(problem.initial_gap, dtype=np.float64)
    return _arrays.plain(2 * (np.sqrt(4 * gap / progress) + 8 * gap / (np.asarray(max_grad_norm) * progress)))


def _progress(lr: ArrayLike, steps: ArrayLike) -> _arrays.Numbers:
    """gamma (K + 1): how far the steps go together."""
    return np.asarray(lr, dtype=np.float64) * (np.asarray(steps, dtype=np.float64) + 1)


@dataclass(frozen=True)
class _Constants:
    """The numbers in a theorem's step limits; ``bias`` has that of ``stat``."""

    smooth: float
    stat: float
    dp: float
    ball: float
    jump: float
    energy: float


_CONSTANTS: dict[type[Problem], _Constants] = {
    ConvexProblem: _Constants(smooth=1 / 8, stat=28, dp=56, ball=2 - math.sqrt(2), jump=56, energy=2),
    NonConvexProblem: _Constants(smooth=1 / 4, stat=14, dp=14, ball=1 / 20, jump=28, energy=1),
}
