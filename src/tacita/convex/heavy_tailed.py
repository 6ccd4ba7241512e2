r"""Plan private learning on heavy-tailed data: public constants in; steps, threshold, step sizes, noise and bound out.

Nothing here reads data. Each method's explicit bound is minimised over the number of steps, the clipping threshold and
the order of the moment. The planned noise is that of full protection in one pass: hand ``noise_multiplier`` to the
mechanism of an oracle with disjoint batches under replace_one, and the ledger accounts for it again.
Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter"; corrections
and constants: docs/derivations/heavy-tailed-sco.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from tacita._arrays import Numbers
from tacita.convex._plan_words import about_lower_bound, left_out, lower_bound_of
from tacita.convex.heavy_tailed_setting import (
    Constants,
    HeavyTailedSetting,
    MeanError,
    bias_constant,
    check_constants,
    clipped_mean_error,
    moment_of_coordinates,
    rho_of_budget,
)
from tacita.convex.localized_phases import (
    LocalizedPhase,
    localized_constants,
    localized_phases,
    reduction_sizes,
    regularized_distance,
    strongly_convex_phases,
)
from tacita.convex.localized_plan import LocalizedPlan, plan_localized
from tacita.convex.minimax import convex_lower_bound, strongly_convex_lower_bound, uniformly_lipschitz_rate
from tacita.convex.one_pass_bounds import (
    OnePassBound,
    StepSchedule,
    accelerated_bound,
    accelerated_risk,
    last_iterate_risk,
    proximal_bound,
    strongly_convex_bound,
    strongly_convex_schedule,
    weighted_risk,
)
from tacita.convex.one_pass_theorems import (
    TheoremSettings,
    accelerated_theorem,
    proximal_theorem,
    strongly_convex_theorem,
)

__all__ = [
    "HeavyTailedPlan",
    "HeavyTailedSetting",
    "LocalizedPhase",
    "LocalizedPlan",
    "MeanError",
    "OnePassBound",
    "StepSchedule",
    "TheoremSettings",
    "accelerated_bound",
    "accelerated_risk",
    "accelerated_theorem",
    "bias_constant",
    "clipped_mean_error",
    "convex_lower_bound",
    "last_iterate_risk",
    "localized_constants",
    "localized_phases",
    "moment_of_coordinates",
    "plan_heavy_tailed",
    "plan_localized",
    "proximal_bound",
    "proximal_theorem",
    "reduction_sizes",
    "regularized_distance",
    "rho_of_budget",
    "strongly_convex_bound",
    "strongly_convex_lower_bound",
    "strongly_convex_phases",
    "strongly_convex_schedule",
    "strongly_convex_theorem",
    "uniformly_lipschitz_rate",
    "weighted_risk",
]

Method = Literal["accelerated", "strongly_convex", "proximal"]
STEPS_ONE_BY_ONE = 300  # up to here every number of steps is tried; then 200 more, evenly spaced in the logarithm
THRESHOLDS = (1e-3, 1e9)  # of the moment bound: where the best threshold is searched
GRID = 281
ZOOMS = 4

_BOUNDS: dict[str, Callable[..., OnePassBound]] = {
    "accelerated": accelerated_bound,
    "strongly_convex": strongly_convex_bound,
    "proximal": proximal_bound,
}


@dataclass(frozen=True)
class HeavyTailedPlan:
    r"""A plan for one pass over disjoint batches.

    Attributes:
        setting: The inputs.
        method: ``"accelerated"`` (:class:`tacita.convex.AcceleratedSGD`), ``"strongly_convex"``
            (:class:`tacita.convex.WeightedSGD`) or ``"proximal"`` (:class:`tacita.convex.ProximalSGD`).
        constants: ``"sharp"`` or ``"paper"``.
        order: k, the order of the moment that gives the least bound.
        steps: T of the method's bound.
        num_queries: Queries of the oracle, each on a batch of its own: T, or T + 1 for ``"strongly_convex"``.
        batch_size: s, whole: floor(n / num_queries). The other records are not used.
        max_grad_norm: C.
        noise_multiplier: Noise of the sum over its sensitivity 2C: :math:`1/\mu`.
        mean_noise_std: The resulting noise on a coordinate of the mean gradient.
        lr: Step size of the first step.
        schedule: Step sizes and weights for ``"strongly_convex"``; ``None`` otherwise.
        bound: The explicit bound on the expected excess risk.
        bias, variance: B and :math:`\Sigma^2` of the mean gradient in that bound.
        theorem: What the paper's theorem prescribes instead.
        lower_bound: The minimax lower bound with constant 1: a formula up to an absolute constant, not a certificate.
        messages: What the reader must know: where the bound is vacuous, records are left out, or theorems do not hold.
    """

    setting: HeavyTailedSetting
    method: Method
    constants: Constants
    order: float
    steps: int
    num_queries: int
    batch_size: int
    max_grad_norm: float
    noise_multiplier: float
    mean_noise_std: float
    lr: float
    schedule: StepSchedule | None
    bound: float
    bias: float
    variance: float
    theorem: TheoremSettings
    lower_bound: float
    messages: tuple[str, ...] = ()

    @property
    def num_records(self) -> int:
        """Records that are used: whole batches of the same size."""
        return self.num_queries * self.batch_size

    @property
    def gradient_evaluations(self) -> int:
        """Per-sample gradients that the run computes: one a record."""
        return self.num_records

    @property
    def ratio_to_lower_bound(self) -> float:
        """The theorem's rate over the lower bound, both with their constants dropped; never a certificate."""
        return self.theorem.rate / self.lower_bound

    @property
    def trivial_bound(self) -> float:
        """A bound that holds at the start, without any step: ``initial_gap``, or r_2 x diameter."""
        return _trivial(self.setting, self.order)

    @property
    def is_vacuous(self) -> bool:
        """Whether the bound is no better than the one that holds before any step."""
        return not self.bound < self.trivial_bound


def plan_heavy_tailed(
    setting: HeavyTailedSetting, *, method: Method = "accelerated", constants: Constants = "sharp"
) -> HeavyTailedPlan:
    r"""Return the plan with the least bound over the steps, the threshold and the orders of the setting's moments.

    A larger order is not always better, because its moment is larger.

    Args:
        setting: The public constants.
        method: ``"accelerated"`` needs nothing but smoothness; ``"strongly_convex"`` and ``"proximal"`` need strong
            convexity, and the last one ``initial_gap``.
        constants: ``"sharp"`` or ``"paper"``: the bound that is minimised.

    Example:
        >>> setting = HeavyTailedSetting(
        ...     num_records=65536, dim=20, rho=0.5, diameter=2, smoothness=1, moment_bounds={2: 3.0})
        >>> plan = plan_heavy_tailed(setting)
        >>> plan.steps, round(plan.max_grad_norm), round(plan.bound, 6), plan.noise_multiplier
        (15, 61, 0.18956, 1.0)
    """
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}.")
    check_constants(constants)
    if not setting.moment_bounds:
        raise ValueError("moment_bounds must hold at least one order and its bound for a one-pass method.")
    if method != "accelerated" and setting.num_records < 2:
        raise ValueError(f"num_records must be at least 2, got {setting.num_records}.")
    found = [(*_least(setting, method, order, constants), order) for order in setting.orders]
    bound, steps, threshold, order = min(found, key=lambda one: one[0])
    at = _BOUNDS[method](setting, steps=steps, max_grad_norm=threshold, order=order, constants=constants)
    weighted = method == "strongly_convex"
    plan = HeavyTailedPlan(
        setting=setting,
        method=method,
        constants=constants,
        order=order,
        steps=steps,
        num_queries=steps + weighted,
        batch_size=int(at.batch_size),
        max_grad_norm=threshold,
        noise_multiplier=1 / setting.mu,
        mean_noise_std=float(at.error.mean_noise_std),
        lr=float(at.lr),
        schedule=strongly_convex_schedule(setting, steps=steps, constants=constants) if weighted else None,
        bound=bound,
        bias=float(at.error.bias),
        variance=float(at.error.variance),
        theorem=_theorem(setting, method, order, constants),
        lower_bound=lower_bound_of(setting, order, method != "accelerated"),
    )
    return replace(plan, messages=_messages(plan))


def _least(setting: HeavyTailedSetting, method: Method, order: float, constants: Constants) -> tuple[float, int, float]:
    """Return the least bound, its steps and its threshold: a grid over both, then four finer ones over thresholds."""
    most = setting.num_records - (method == "strongly_convex")
    steps = np.arange(1, min(most, STEPS_ONE_BY_ONE) + 1)
    if most > STEPS_ONE_BY_ONE:
        steps = np.unique(np.concatenate([steps, np.geomspace(STEPS_ONE_BY_ONE, most, 200).astype(np.int64)]))
    column = steps[:, None].astype(np.float64)

    def bounds(log_thresholds: Numbers) -> Numbers:
        found = _BOUNDS[method](
            setting, steps=column, max_grad_norm=np.exp(log_thresholds), order=order, constants=constants
        )
        return np.asarray(found.value)

    low, high = (math.log(factor * setting.moment(order)) for factor in THRESHOLDS)
    grid = np.broadcast_to(np.linspace(low, high, GRID), (len(steps), GRID))
    for _ in range(ZOOMS):
        values = bounds(grid)
        best = grid[np.arange(len(steps)), values.argmin(axis=1)]
        width = grid[0, 1] - grid[0, 0]
        grid = best[:, None] + np.linspace(-width, width, 21)
    values = bounds(grid)
    row, place = np.unravel_index(values.argmin(), values.shape)
    return float(values[row, place]), int(steps[row]), float(np.exp(grid[row, place]))


def _theorem(setting: HeavyTailedSetting, method: Method, order: float, constants: Constants) -> TheoremSettings:
    if method == "accelerated":
        return accelerated_theorem(setting, order=order)
    theorem = strongly_convex_theorem if method == "strongly_convex" else proximal_theorem
    return theorem(setting, order=order, constants=constants)


def _trivial(setting: HeavyTailedSetting, order: float) -> float:
    slope = setting.risk_lipschitz or setting.second_moment(order)
    return min(setting.initial_gap or math.inf, slope * setting.diameter)


def _messages(plan: HeavyTailedPlan) -> tuple[str, ...]:
    setting, theorem = plan.setting, plan.theorem
    found = [*left_out(setting.num_records, plan.num_records), *about_lower_bound(setting)]
    if plan.is_vacuous:
        found.append("The bound is vacuous: it is no better than the one that holds before any step.")
    if plan.method == "accelerated":
        if theorem.unclamped_steps > setting.num_records:
            found.append("The theorem asks for more steps than there are records: its rate does not hold.")
        if not theorem.optimal:
            found.append("The smoothness is above that for which the method is known to be optimal up to constants.")
    elif setting.condition_number * math.log(setting.num_records) > setting.num_records:
        found.append("The theorem's rate needs smoothness / strong_convexity <= n / ln n, which does not hold.")
    return tuple(found)
