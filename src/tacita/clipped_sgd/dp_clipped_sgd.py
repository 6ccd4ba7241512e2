r"""High-probability bounds for SGD with per-sample clipping at a fixed threshold and Gaussian noise.

As in the paper, noise is on the mean of a batch: ``mean_noise_std`` is the noise on one coordinate of the averaged
gradient, that of the sum over the batch size. ``steps`` is the paper's K: the bounds are
about the iterates :math:`x^0, \dots, x^K`, and the paper's loop makes K + 1 queries.
Source: "Differentially Private Clipped-SGD: High-Probability Convergence with Arbitrary Clipping Level", Theorems C.2
and F.2, with all constants. The split into named terms, the verdict "vacuous" and the averaged iterate are ours:
docs/derivations/dp-clipped-sgd.md. The bounds explain trends; they do not predict errors.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._domains import MAY_BE_INFINITE, checked
from tacita.clipped_sgd.clipped_vector import clip_bias_bound, clip_variance_bound
from tacita.clipped_sgd.problem import ConvexProblem, NonConvexProblem, Problem

TERMS = ("smooth", "stat", "bias", "dp", "jump")  # the step-size limits that can bind, in the paper's order


@dataclass(frozen=True)
class ConvergenceBound:
    """A theorem's bound for the best iterate, which holds with probability at least 1 - ``failure_probability``.

    It is proved for batches of a fixed size whose samples are independent, clipped one by one, and averaged. It is not
    proved for Poisson sampling of a fixed data set (docs/derivations/dp-clipped-sgd.md, section 6).

    Attributes:
        value: The bound; an array if an input was one.
        terms: The bound's five parts by name; ``value`` is the largest. ``smooth``: the number of steps is finite.
            ``stat``: the samples' noise. ``bias``: the error that clipping leaves after any number of steps. ``dp``:
            the privacy noise. ``jump``: the largest single step.
        binding_term: The name of the largest part.
        lr: The largest step size that the theorem allows, which is the smallest of ``lr_limits``.
        lr_limits: The seven limits gamma_0 to gamma_6 by name.
        trivial_value: The bound that holds before any step.
        metric: The quantity that is bounded.
        failure_probability: The probability with which the bound may fail; for a non-convex problem twice the one that
            was passed in.
    """

    value: Any
    terms: Mapping[str, Any]
    binding_term: Any
    lr: Any
    lr_limits: Mapping[str, Any]
    trivial_value: Any
    metric: str
    failure_probability: Any

    @property
    def is_vacuous(self) -> Any:
        """Whether the bound is no better than the one that holds before any step."""
        return _arrays.plain(np.asarray(self.value) >= self.trivial_value)


@checked()
def lr_limits(
    problem: Problem,
    *,
    max_grad_norm: ArrayLike,
    steps: ArrayLike,
    failure_probability: ArrayLike,
    mean_noise_std: ArrayLike = 0.0,
    batch_size: ArrayLike = 1,
) -> dict[str, Any]:
    r"""Return the seven limits on the step size of Theorem C.2 (convex) or F.2 (non-convex), by name.

    In the paper's order they are ``smooth`` (gamma_0), ``stat``, ``bias``, ``dp``, ``ball``, ``jump`` and ``energy``
    (gamma_6). With the bias B and variance V of Lemma B.1 at the largest gradient norm, the convex ``stat`` is
    :math:`R / (28 \sqrt{6 (K+1) V \ln(8(K+1)/\beta)})` and ``bias`` is :math:`R / (28 (K+1) B)`. Without noise ``dp``
    and ``energy`` are infinite. ``ball`` and ``energy`` never bind. ``jump`` binds in realistic settings, so the
    paper's corollaries, which drop it for "large K", are not used here.

    Args:
        problem: The assumptions on the objective.
        max_grad_norm: Clipping threshold C (the paper's lambda), > 0.
        steps: K >= 1.
        failure_probability: beta in (0, 1].
        mean_noise_std: Privacy noise on a coordinate of the mean gradient, >= 0.
        batch_size: Independent samples per step. The paper has 1; larger batches are our extension, in which each
            sample is clipped, the batch is averaged, and V is divided by the batch size.
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


@checked(lr=MAY_BE_INFINITE)
def bound_at_lr(problem: Problem, *, lr: ArrayLike, max_grad_norm: ArrayLike, steps: ArrayLike) -> Any:
    r"""Return the theorem's bound at a step size that its limits allow.

    Convex: :math:`\frac{4R^2}{\gamma(K+1)} + \frac{64 L R^4}{C^2 \gamma^2 (K+1)^2}`; non-convex:
    :math:`\frac{8\Delta}{\gamma(K+1)} + \frac{128 \Delta^2}{C^2\gamma^2(K+1)^2}`. It is zero where ``lr`` is infinite.
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


@checked()
def convergence_bound(
    problem: Problem,
    *,
    max_grad_norm: ArrayLike,
    steps: ArrayLike,
    failure_probability: ArrayLike,
    mean_noise_std: ArrayLike = 0.0,
    batch_size: ArrayLike = 1,
) -> ConvergenceBound:
    r"""Return the bound of Theorem C.2 or F.2 at its largest step size, as a maximum of named terms.

    The theorem's right-hand side falls as the step size grows. At the smallest limit it is therefore the largest of its
    values at all limits, and each limit gives one term. The term ``bias`` does not depend on ``steps``.

    For a convex problem the bound holds as stated. For a non-convex one the printed constants are proved with
    probability 1 - 2 ``failure_probability`` only, because the proof leaves out the probability of one event; the
    result's ``failure_probability`` says so. Pass half of the wanted probability, as the planner does.

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
        failure_probability=_arrays.plain(np.minimum(1.0, np.multiply(problem.union_factor, failure_probability))),
    )


@checked()
def neighbourhood(problem: Problem, *, max_grad_norm: ArrayLike) -> Any:
    r"""Return the error that clipping leaves: the bound's limit for infinitely many steps without privacy noise.

    Convex: :math:`112 R B + 50176\, L R^2 B^2 / C^2`, where B is the bias of Lemma B.1 at the largest gradient norm.

    Example:
        >>> p = ConvexProblem(smoothness=1, radius=1, moment_scale=0.1, moment_order=1.5)
        >>> neighbourhood(p, max_grad_norm=[4.0, 50.0, 5000.0]).round(4)
        array([38.8493,  3.0197,  0.3005])
    """
    limits = lr_limits(problem, max_grad_norm=max_grad_norm, steps=1, failure_probability=1.0)
    return bound_at_lr(problem, lr=limits["bias"], max_grad_norm=max_grad_norm, steps=1)


@checked(lr=MAY_BE_INFINITE)
def average_iterate_bound(problem: ConvexProblem, *, lr: ArrayLike, max_grad_norm: ArrayLike, steps: ArrayLike) -> Any:
    r"""Return the bound for the average of :math:`x^0, \dots, x^K`, at a step size within the theorem's limits.

    :math:`f(\bar x) - f^* \le \frac{2R^2}{\gamma (K+1)} \max(1, 2\sqrt 2\, L R / C)`, on the same event as the theorem.
    Unlike the best iterate, the average can be released, because it is post-processing. For :math:`C \ge \sqrt 2 L R`
    it is never worse than the theorem's bound. For the average of :math:`x^1, \dots, x^K` multiply by (K + 1)/K. It
    holds for convex problems only; for others nothing is known about an average of iterates.

    Example:
        >>> p = ConvexProblem(smoothness=1, radius=1, moment_scale=0.1, moment_order=1.5, dim=10)
        >>> bound = convergence_bound(p, max_grad_norm=5.0, steps=9999, failure_probability=0.05)
        >>> round(average_iterate_bound(p, lr=bound.lr, max_grad_norm=5.0, steps=9999), 5)
        4.75176
    """
    if not isinstance(problem, ConvexProblem):
        raise ValueError(
            f"problem must be a ConvexProblem, got {type(problem).__name__}: for others, an average of iterates has no "
            "guarantee. Use random_iterate_bound, which is about an iterate drawn before training."
        )
    progress = _progress(lr, steps)
    factor = np.maximum(1.0, 2 * math.sqrt(2) * problem.gradient_scale / np.asarray(max_grad_norm))
    return _arrays.plain(2 * problem.length**2 / progress * factor)


@checked(lr=MAY_BE_INFINITE)
def random_iterate_bound(
    problem: NonConvexProblem, *, lr: ArrayLike, max_grad_norm: ArrayLike, steps: ArrayLike
) -> Any:
    r"""Return a bound on the gradient norm (not squared) of an iterate drawn uniformly before training.

    On the theorem's event it holds with probability at least 1/2, by Markov's inequality: it is twice the right-hand
    side of :math:`\frac{1}{K+1}\sum_t \lVert \nabla f(x^t)\rVert \le
    \sqrt{\frac{4\Delta}{\gamma (K+1)}} + \frac{8\Delta}{C\gamma (K+1)}`. Without conditioning on the event, the
    probability is at least (1 - p)/2, where p is the ``failure_probability`` of :class:`ConvergenceBound`. The index is
    drawn before training, so the choice costs no privacy.

    Example:
        >>> p = NonConvexProblem(smoothness=1, initial_gap=1, moment_scale=1e-6, moment_order=2, dim=10)
        >>> bound = convergence_bound(p, max_grad_norm=4.0, steps=10**8, failure_probability=0.05)
        >>> round(random_iterate_bound(p, lr=bound.lr, max_grad_norm=4.0, steps=10**8) ** 2, 4)
        0.0004
    """
    if not isinstance(problem, NonConvexProblem):
        raise ValueError(
            f"problem must be a NonConvexProblem, got {type(problem).__name__}: use average_iterate_bound."
        )
    progress = _progress(lr, steps)
    gap = np.asarray(problem.initial_gap, dtype=np.float64)
    return _arrays.plain(2 * (np.sqrt(4 * gap / progress) + 8 * gap / (np.asarray(max_grad_norm) * progress)))


def _progress(lr: ArrayLike, steps: ArrayLike) -> _arrays.Numbers:
    """Return gamma (K + 1), the sum of the step sizes."""
    return np.asarray(lr, dtype=np.float64) * (np.asarray(steps, dtype=np.float64) + 1)


@dataclass(frozen=True)
class _Constants:
    """The constants in a theorem's limits on the step size; ``bias`` uses that of ``stat``."""

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
