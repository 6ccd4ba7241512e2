r"""The closed forms of the theorems: number of steps, clipping threshold and rate, with constants dropped.

Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Theorems 31,
34 and 48. The planner (:mod:`tacita.convex.heavy_tailed`) minimises the explicit bounds instead, and finds excess risks
1.3 to 8 times smaller; these are for comparison with the paper.
"""

import math
from dataclasses import dataclass

from tacita._domains import checked
from tacita.convex.heavy_tailed_setting import Constants, HeavyTailedSetting, clipped_mean_error
from tacita.convex.one_pass_bounds import need_strong_convexity, step_cap

MOST_ROUNDS = 60  # of the fixed point of Theorem 48


@dataclass(frozen=True)
class TheoremSettings:
    """What a theorem prescribes.

    Attributes:
        steps: T, clamped to what the records allow.
        unclamped_steps: T as the formula says it, before rounding.
        max_grad_norm: C.
        rate: The theorem's bound on the excess risk with its constants dropped.
        gap: The rate over the minimax lower bound's, as the paper states it; constants dropped.
        optimal: Whether the paper's own condition for optimality up to constants holds.
    """

    steps: int
    unclamped_steps: float
    max_grad_norm: float
    rate: float
    gap: float
    optimal: bool


@checked()
def accelerated_theorem(setting: HeavyTailedSetting, *, order: float) -> TheoremSettings:
    r"""Return Theorem 31 for accelerated SGD (Algorithm 2).

    :math:`T = \min\{(\beta D/r_k)^{2k/(5k-1)} (\epsilon n/\sqrt d)^{(2k-2)/(5k-1)}, \sqrt{\beta D/r_k}\,n^{1/4}\}`,
    rounded up and at least 1; :math:`C = r_k (\epsilon n/\sqrt{dT})^{1/k}`.

    Example:
        >>> setting = HeavyTailedSetting(
        ...     num_records=65536, dim=20, rho=0.5, diameter=2, smoothness=1, moment_bounds={2: 3.0})
        >>> found = accelerated_theorem(setting, order=2)
        >>> found.steps, round(found.max_grad_norm, 3), round(found.rate, 6)
        (8, 215.939, 0.153734)
    """
    n, k, r = setting.num_records, order, setting.moment(order)
    signal = setting.mu * n / math.sqrt(setting.dim)  # eps n / sqrt(d)
    curved = setting.smoothness * setting.diameter / r
    first, second = accelerated_branches(setting, order=order)
    wanted = min(first, second)
    steps = max(1, min(n, math.ceil(wanted)))
    x = 1 / signal
    of_noise = min(
        (curved**0.25 * x) ** (4 * (k - 1) / (5 * k - 1)),
        curved ** ((k - 1) / (4 * k)) * x ** ((k - 1) / k) * n ** ((k - 1) / (8 * k)),
    )
    least = x ** ((k - 1) / k)
    return TheoremSettings(
        steps=steps,
        unclamped_steps=wanted,
        max_grad_norm=r * (signal / math.sqrt(steps)) ** (1 / k),
        rate=setting.diameter * (setting.second_moment(order) / math.sqrt(n) + r * (least + of_noise)),
        gap=max(1.0, of_noise / least),
        optimal=setting.smoothness <= optimal_smoothness(setting, order=order),
    )


@checked()
def accelerated_branches(setting: HeavyTailedSetting, *, order: float) -> tuple[float, float]:
    r"""Return both numbers whose smaller one is Theorem 31's T.

    Example:
        >>> setting = HeavyTailedSetting(
        ...     num_records=65536, dim=20, rho=0.5, diameter=2, smoothness=1, moment_bounds={2: 3.0})
        >>> [round(branch, 5) for branch in accelerated_branches(setting, order=2)]
        [7.03894, 13.06395]
    """
    k = order
    signal = setting.mu * setting.num_records / math.sqrt(setting.dim)
    curved = setting.smoothness * setting.diameter / setting.moment(order)
    first = curved ** (2 * k / (5 * k - 1)) * signal ** ((2 * k - 2) / (5 * k - 1))
    return first, math.sqrt(curved) * setting.num_records**0.25


@checked()
def optimal_smoothness(setting: HeavyTailedSetting, *, order: float) -> float:
    r"""Return the smoothness up to which Algorithm 2 is optimal up to constants (Remark 10).

    :math:`\frac{r_k}{D} x^{(k-1)/k} + \frac{r_2}{D\sqrt n}` with :math:`x = \sqrt d/(\epsilon n)`.

    Example:
        >>> setting = HeavyTailedSetting(
        ...     num_records=65536, dim=20, rho=0.5, diameter=2, smoothness=1, moment_bounds={2: 3.0})
        >>> round(optimal_smoothness(setting, order=2), 7)
        0.0182504
    """
    n, r = setting.num_records, setting.moment(order)
    x = math.sqrt(setting.dim) / (setting.mu * n)
    return (r * x ** ((order - 1) / order) + setting.second_moment(order) / math.sqrt(n)) / setting.diameter


@checked()
def strongly_convex_theorem(
    setting: HeavyTailedSetting, *, order: float, constants: Constants = "sharp"
) -> TheoremSettings:
    r"""Return Theorem 34 for SGD with weighted averages (Algorithm 6).

    :math:`T = \frac{4G}{\mu}\ln\big(\frac{\mu\beta D^2}{r_k^2}(n + (\epsilon^2n^2/d)^{(k-1)/k})\big)`, rounded up, and
    :math:`C = r_k(\epsilon^2n^2/(dT))^{1/(2k)}`. G is :func:`~tacita.convex.one_pass_bounds.step_cap`.

    Example:
        >>> setting = HeavyTailedSetting(num_records=65536, dim=20, rho=0.5, diameter=2, smoothness=2,
        ...                              strong_convexity=0.5, moment_bounds={2: 3.0})
        >>> found = strongly_convex_theorem(setting, order=2, constants="paper")
        >>> found.steps, round(found.max_grad_norm, 3), round(found.rate, 8)
        (168, 100.873, 0.00845573)
    """
    need_strong_convexity(setting)
    n, k, r, mu = setting.num_records, order, setting.moment(order), setting.strong_convexity
    signal = (setting.mu * n) ** 2 / setting.dim  # eps^2 n^2 / d
    inside = mu * setting.smoothness * setting.diameter**2 / r**2 * (n + signal ** ((k - 1) / k))
    wanted = 4 * step_cap(setting, constants) / mu * math.log(inside)
    steps = max(1, min(n - 1, math.ceil(wanted))) if n > 1 else 1
    slow = setting.condition_number * math.log(n) if n > 1 else setting.condition_number
    of_noise = r**2 * (slow / signal) ** ((k - 1) / k)
    return TheoremSettings(
        steps=steps,
        unclamped_steps=wanted,
        max_grad_norm=r * (signal / steps) ** (1 / (2 * k)),
        rate=(setting.second_moment(order) ** 2 / n + of_noise) / mu,
        gap=slow ** ((k - 1) / k),
        optimal=False,
    )


@checked()
def proximal_theorem(setting: HeavyTailedSetting, *, order: float, constants: Constants = "sharp") -> TheoremSettings:
    r"""Return Theorem 48 for proximal SGD (Algorithm 8).

    :math:`T = 2\lceil\kappa\ln(\Delta\mu/(B^2 + \Sigma^2))\rceil` and :math:`C = r_k(\epsilon^2n^2/(dT^2))^{1/(2k)}`,
    where B and :math:`\Sigma` depend on T: a fixed point from T = 1, and the smallest T of a cycle.

    Example:
        >>> setting = HeavyTailedSetting(num_records=65536, dim=20, rho=0.5, diameter=2, smoothness=2,
        ...                              strong_convexity=0.5, initial_gap=5, moment_bounds={2: 3.0})
        >>> found = proximal_theorem(setting, order=2, constants="paper")
        >>> found.steps, round(found.max_grad_norm, 4)
        (28, 68.6317)
    """
    need_strong_convexity(setting)
    if setting.initial_gap is None:
        raise ValueError("initial_gap must be given for a proximal method: a bound on F(start) - min F.")
    n, k, r, mu = setting.num_records, order, setting.moment(order), setting.strong_convexity
    kappa, seen = setting.condition_number, [1]
    for _ in range(MOST_ROUNDS):
        error = proximal_error(setting, steps=seen[-1], order=order, constants=constants)
        inside = setting.initial_gap * mu / (error[0] ** 2 + error[1])
        following = max(1, min(n, 2 * math.ceil(kappa * math.log(inside))))
        if following in seen:
            seen = seen[seen.index(following) :]
            break
        seen.append(following)
    steps = min(seen)
    slow = kappa * math.log(n) if n > 1 else kappa
    of_noise = r**2 * (math.sqrt(setting.dim) * slow / (setting.mu * n)) ** ((2 * k - 2) / k)
    return TheoremSettings(
        steps=steps,
        unclamped_steps=float(steps),
        max_grad_norm=_proximal_threshold(setting, steps, order),
        rate=(of_noise + setting.second_moment(order) ** 2 * slow / n) / mu,
        gap=max(slow, slow ** ((2 * k - 2) / k)),
        optimal=False,
    )


@checked()
def proximal_error(
    setting: HeavyTailedSetting, *, steps: float, order: float, constants: Constants = "sharp"
) -> tuple[float, float]:
    r"""Return B and :math:`\Sigma^2` at Theorem 48's threshold, with batches of n / T records, not rounded."""
    error = clipped_mean_error(
        setting,
        batch_size=setting.num_records / steps,
        max_grad_norm=_proximal_threshold(setting, steps, order),
        order=order,
        constants=constants,
    )
    return error.bias, error.variance


def _proximal_threshold(setting: HeavyTailedSetting, steps: float, order: float) -> float:
    signal = (setting.mu * setting.num_records) ** 2 / setting.dim
    return setting.moment(order) * (signal / steps**2) ** (1 / (2 * order))
