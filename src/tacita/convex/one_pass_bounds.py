r"""Explicit bounds on the excess risk of one pass with clipped, noisy gradients, and the schedule of Algorithm 6.

Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Propositions
30, 32 and 46 and Lemma 33. ``constants="paper"`` computes the printed constants, ``"sharp"`` the smaller ones that are
proved in docs/derivations/heavy-tailed-sco.md.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacita import _arrays
from tacita._arrays import Numbers
from tacita._domains import checked
from tacita.convex.heavy_tailed_setting import (
    Constants,
    HeavyTailedSetting,
    MeanError,
    check_constants,
    clipped_mean_error,
)


@dataclass(frozen=True)
class OnePassBound:
    """A bound on the expected excess risk, and what it is made of.

    Attributes:
        value: The bound on :math:`E F - F^*`.
        batch_size: s, the records of one query; whole.
        lr: Step size of the first step; for a schedule, the largest one.
        error: The error of one query's gradient.
    """

    value: Any
    batch_size: Any
    lr: Any
    error: MeanError


@checked()
def accelerated_bound(
    setting: HeavyTailedSetting,
    *,
    steps: ArrayLike,
    max_grad_norm: ArrayLike,
    order: float,
    constants: Constants = "sharp",
) -> OnePassBound:
    r"""Return the bound for accelerated SGD (Algorithm 2) after T steps, at the best step size.

    With :math:`V = \Sigma^2 + B^2` and :math:`\eta \ge 2\beta`, sharp:
    :math:`\frac{2\eta D^2}{T(T+1)} + \frac{(2T+1)V}{6\eta} + BD`; paper:
    :math:`\frac{4\eta D^2}{T(T+1)} + \frac{4(T+2)V}{3\eta} + BD`. The step size of step t is :math:`t/(2\eta)`.

    Args:
        setting: The public constants; its ``smoothness`` may be 0.
        steps: T, with batches of floor(n / T) records.
        max_grad_norm: C.
        order: k, one of the setting's moments.
        constants: ``"sharp"`` or ``"paper"``.

    Example:
        >>> setting = HeavyTailedSetting(
        ...     num_records=65536, dim=20, rho=0.5, diameter=2, smoothness=1, moment_bounds={2: 3.0})
        >>> round(accelerated_bound(setting, steps=8, max_grad_norm=215.939, order=2).value, 6)
        0.32352
    """
    t = _arrays.positive("steps", steps)
    size, error = _batch(setting, t, max_grad_norm, order, constants)
    v, d = np.asarray(error.variance) + np.asarray(error.bias) ** 2, setting.diameter
    if check_constants(constants) == "paper":
        eta = np.maximum(2 * setting.smoothness, t**1.5 * np.sqrt(v) / d)
    else:
        eta = np.maximum(2 * setting.smoothness, np.sqrt((2 * t + 1) * t * (t + 1) * v / 12) / d)
    lr = 1 / (2 * eta)
    value = accelerated_risk(setting, steps=t, lr=lr, bias=error.bias, variance=error.variance, constants=constants)
    return OnePassBound(value, _arrays.plain(size), _arrays.plain(lr), error)


@checked()
def accelerated_risk(
    setting: HeavyTailedSetting,
    *,
    steps: ArrayLike,
    lr: ArrayLike,
    bias: ArrayLike,
    variance: ArrayLike,
    constants: Constants = "sharp",
) -> Any:
    r"""Return Proposition 30 for a given oracle; see :func:`accelerated_bound`.

    Args:
        setting: The public constants.
        steps: T.
        lr: Step size of the first step, at most 1 / (4 smoothness).
        bias, variance: B and :math:`\Sigma^2` of the gradient oracle.
        constants: ``"sharp"`` or ``"paper"``.

    Raises:
        ValueError: ``lr`` is too large for the proposition.

    Example:
        >>> setting = HeavyTailedSetting(num_records=1, dim=1, rho=0.5, diameter=2, smoothness=1, moment_bounds={2: 1})
        >>> round(accelerated_risk(setting, steps=3, lr=0.25, bias=0.0, variance=0.0, constants="paper"), 5)
        2.66667
    """
    t, eta = _arrays.positive("steps", steps), 1 / (2 * _arrays.positive("lr", lr))
    if np.any(eta < 2 * setting.smoothness * (1 - 1e-9)):
        raise ValueError(f"lr must be at most 1 / (4 smoothness) = {1 / (4 * setting.smoothness):g}, got {lr!r}.")
    b, d = np.asarray(bias, dtype=np.float64), setting.diameter
    v = np.asarray(variance) + b**2
    if check_constants(constants) == "paper":
        return _arrays.plain(4 * eta * d**2 / (t * (t + 1)) + 4 * v * (t + 2) / (3 * eta) + b * d)
    return _arrays.plain(2 * eta * d**2 / (t * (t + 1)) + (2 * t + 1) * v / (6 * eta) + b * d)


@checked()
def strongly_convex_bound(
    setting: HeavyTailedSetting,
    *,
    steps: ArrayLike,
    max_grad_norm: ArrayLike,
    order: float,
    constants: Constants = "sharp",
) -> OnePassBound:
    r"""Return the bound for SGD with weighted averages (Algorithm 6), which makes T + 1 queries.

    Sharp, with :math:`G = \beta + \mu/2`: :math:`\frac G2 D^2 e^{-\mu T/(4G)} + \frac{20\Sigma^2}{\mu T} +
    \frac{c_B B^2}{\mu}`, where c_B is 2 for :math:`T \le 2G/\mu`, else 6. Paper: :math:`32\beta D^2 e^{-\mu T/(4\beta)}
    + \frac{72\Sigma^2}{\mu T} + \frac{2B^2}{\mu}`.

    Args:
        setting: The public constants; ``smoothness`` and ``strong_convexity`` must be > 0.
        steps: T, with batches of floor(n / (T + 1)) records.
        max_grad_norm, order, constants: As in :func:`accelerated_bound`.

    Example:
        >>> setting = HeavyTailedSetting(num_records=65536, dim=20, rho=0.5, diameter=2, smoothness=2,
        ...                              strong_convexity=0.5, moment_bounds={2: 3.0})
        >>> round(strongly_convex_bound(setting, steps=189, max_grad_norm=97.9464, order=2).value, 5)
        1.38461
    """
    t = _arrays.positive("steps", steps)
    size, error = _batch(setting, t + 1, max_grad_norm, order, constants)
    value = weighted_risk(setting, steps=t, bias=error.bias, variance=error.variance, constants=constants)
    lr = np.broadcast_to(1 / step_cap(setting, constants), np.shape(value))
    return OnePassBound(value, _arrays.plain(size), _arrays.plain(lr), error)


@checked()
def weighted_risk(
    setting: HeavyTailedSetting,
    *,
    steps: ArrayLike,
    bias: ArrayLike,
    variance: ArrayLike,
    constants: Constants = "sharp",
) -> Any:
    r"""Return Proposition 32 for a given oracle; see :func:`strongly_convex_bound`.

    Args:
        setting: The public constants; ``smoothness`` and ``strong_convexity`` must be > 0.
        steps: T.
        bias, variance: B and :math:`\Sigma^2` of the gradient oracle.
        constants: ``"sharp"`` or ``"paper"``.

    Example:
        >>> setting = HeavyTailedSetting(num_records=1, dim=1, rho=0.5, diameter=2, smoothness=1, strong_convexity=1,
        ...                              moment_bounds={2: 1})
        >>> weighted_risk(setting, steps=10**6, bias=1.0, variance=0.0)
        6.0
    """
    cap = step_cap(setting, constants)
    t, mu, beta, d = _arrays.positive("steps", steps), setting.strong_convexity, setting.smoothness, setting.diameter
    b, v = np.asarray(bias, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    if constants == "paper":
        return _arrays.plain(32 * beta * d**2 * np.exp(-mu * t / (4 * beta)) + 72 * v / (mu * t) + 2 * b**2 / mu)
    of_bias = np.where(t <= 2 * cap / mu, 2.0, 6.0)
    return _arrays.plain(cap / 2 * d**2 * np.exp(-mu * t / (4 * cap)) + 20 * v / (mu * t) + of_bias * b**2 / mu)


@checked()
def proximal_bound(
    setting: HeavyTailedSetting,
    *,
    steps: ArrayLike,
    max_grad_norm: ArrayLike,
    order: float,
    constants: Constants = "sharp",
) -> OnePassBound:
    r"""Return the bound for the last iterate of proximal SGD (Algorithm 8) under the proximal-PL inequality.

    :math:`(1 - \frac{\mu}{2\beta})^T \Delta + c\,\frac{B^2 + \Sigma^2}{\mu}` with the step size
    :math:`1/(2\beta)`; c is 1/2, or 4 with the paper's constants.

    Args:
        setting: The public constants; ``smoothness``, ``strong_convexity`` and ``initial_gap`` must be given.
        steps: T, with batches of floor(n / T) records.
        max_grad_norm, order, constants: As in :func:`accelerated_bound`.

    Example:
        >>> setting = HeavyTailedSetting(num_records=65536, dim=20, rho=0.5, diameter=2, smoothness=2,
        ...                              strong_convexity=0.5, initial_gap=5, moment_bounds={2: 3.0})
        >>> round(proximal_bound(setting, steps=28, max_grad_norm=68.6317, order=2, constants="paper").value, 2)
        0.84
    """
    t = _arrays.positive("steps", steps)
    size, error = _batch(setting, t, max_grad_norm, order, constants)
    value = last_iterate_risk(setting, steps=t, bias=error.bias, variance=error.variance, constants=constants)
    lr = np.broadcast_to(1 / (2 * setting.smoothness), np.shape(value))
    return OnePassBound(value, _arrays.plain(size), _arrays.plain(lr), error)


@checked()
def last_iterate_risk(
    setting: HeavyTailedSetting,
    *,
    steps: ArrayLike,
    bias: ArrayLike,
    variance: ArrayLike,
    constants: Constants = "sharp",
) -> Any:
    r"""Return Proposition 46 for a given oracle: :math:`(1 - \mu/(2\beta))^T \Delta + c\,(B^2 + \Sigma^2)/\mu`.

    Args:
        setting: The public constants; ``smoothness``, ``strong_convexity`` and ``initial_gap`` must be given.
        steps: T.
        bias, variance: B and :math:`\Sigma^2` of the gradient oracle.
        constants: ``"sharp"`` (c = 1/2, which a constant bias reaches) or ``"paper"`` (c = 4).

    Example:
        >>> setting = HeavyTailedSetting(num_records=100, dim=2, rho=0.5, diameter=2, smoothness=2,
        ...                              strong_convexity=1, initial_gap=8, moment_bounds={2: 1.0})
        >>> last_iterate_risk(setting, steps=1, bias=0.0, variance=0.5)
        6.25
    """
    need_strong_convexity(setting)
    if setting.initial_gap is None:
        raise ValueError("initial_gap must be given for a proximal method: a bound on F(start) - min F.")
    factor = 4.0 if check_constants(constants) == "paper" else 0.5
    left = (1 - setting.strong_convexity / (2 * setting.smoothness)) ** np.asarray(steps, dtype=np.float64)
    error = np.asarray(bias) ** 2 + np.asarray(variance)
    return _arrays.plain(left * setting.initial_gap + factor * error / setting.strong_convexity)


@dataclass(frozen=True)
class StepSchedule:
    """Step sizes and averaging weights, one a query, for :class:`tacita.convex.WeightedSGD`.

    Attributes:
        lrs: Step sizes.
        weights: Averaging weights; that of a query goes with the iterate after it.
    """

    lrs: Numbers
    weights: Numbers


@checked()
def strongly_convex_schedule(
    setting: HeavyTailedSetting, *, steps: int, constants: Constants = "sharp"
) -> StepSchedule:
    r"""Return the T + 1 step sizes and weights of Lemma 33, for queries t = 0, ..., T.

    With :math:`a = \mu/2`, cap G and :math:`t_0 = \lceil T/2\rceil`: if :math:`T \le G/a`, :math:`\eta_t = 1/G` and
    :math:`\zeta_t = (1 - a/G)^{-(t+1)}`; else :math:`\eta_t = 1/G,\ \zeta_t = 0` before :math:`t_0` and
    :math:`\eta_t = \frac{2}{a(2G/a + t - t_0)},\ \zeta_t = 2G/a + t - t_0` from then on. The cap is
    :math:`\beta + \mu/2`; the paper's proof loses a term and prints :math:`\beta`.

    Example:
        >>> setting = HeavyTailedSetting(num_records=100, dim=2, rho=0.5, diameter=2, smoothness=1,
        ...                              strong_convexity=1, moment_bounds={2: 1.0})
        >>> schedule = strongly_convex_schedule(setting, steps=4)
        >>> schedule.weights.tolist(), schedule.lrs.round(4).tolist()
        ([0.0, 0.0, 6.0, 7.0, 8.0], [0.6667, 0.6667, 0.6667, 0.5714, 0.5])
    """
    a, cap = setting.strong_convexity / 2, step_cap(setting, constants)
    t = np.arange(steps + 1, dtype=np.float64)
    if steps <= cap / a:
        return StepSchedule(np.full(len(t), 1 / cap), (1 - a / cap) ** -(t + 1))
    since = t - -(-steps // 2)
    x = 2 * cap / a + since
    return StepSchedule(np.where(since < 0, 1 / cap, 2 / (a * np.maximum(x, cap / a))), np.where(since < 0, 0.0, x))


def step_cap(setting: HeavyTailedSetting, constants: Constants = "sharp") -> float:
    r"""Return G, whose inverse is the largest step size of Algorithm 6: :math:`\beta + \mu/2`, or the paper's beta."""
    need_strong_convexity(setting)
    paper = check_constants(constants) == "paper"
    return setting.smoothness if paper else setting.smoothness + setting.strong_convexity / 2


def need_strong_convexity(setting: HeavyTailedSetting) -> None:
    """Raise ``ValueError`` unless the risk is smooth and strongly convex."""
    if not (setting.smoothness and setting.strong_convexity):
        raise ValueError("strong_convexity and smoothness must be > 0 for this bound; got a risk that is only convex.")


def _batch(
    setting: HeavyTailedSetting, batches: Numbers, max_grad_norm: ArrayLike, order: float, constants: Constants
) -> tuple[Numbers, MeanError]:
    """Return floor(n / batches) and the error of one query's mean gradient."""
    size = np.floor(setting.num_records / batches)
    if not np.all(size >= 1):
        raise ValueError(
            f"steps must leave a record for each query, got {batches.max():g} queries of {setting.num_records} records."
        )
    return size, clipped_mean_error(
        setting, batch_size=size, max_grad_norm=max_grad_norm, order=order, constants=constants
    )
