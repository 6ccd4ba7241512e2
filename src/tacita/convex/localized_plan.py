"""Plan the localized subgradient method for a convex risk that need not be smooth: all phases, and what they cost.

Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Theorems 41
and 43; see :mod:`tacita.convex.localized_phases`.
"""

import math
from dataclasses import dataclass, replace

from tacita.convex._plan_words import about_lower_bound, left_out, lower_bound_of
from tacita.convex.heavy_tailed_setting import Constants, HeavyTailedSetting
from tacita.convex.localized_phases import (
    LocalizedPhase,
    PhaseSchedule,
    localized_constants,
    localized_phases,
    strongly_convex_phases,
)


@dataclass(frozen=True)
class LocalizedPlan:
    """A plan for the localized method, phase by phase.

    Attributes:
        setting: The inputs.
        order: k.
        phases: One a part of the split.
        rate: The theorem's excess risk up to a constant; there is no explicit bound.
        lower_bound: The minimax lower bound with constant 1.
        messages: What the reader must know.
    """

    setting: HeavyTailedSetting
    order: float
    phases: tuple[LocalizedPhase, ...]
    rate: float
    lower_bound: float
    messages: tuple[str, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes for :func:`tacita.split`, one a phase, and one more for the records that are left out, if any are."""
        used = [phase.num_records for phase in self.phases]
        rest = self.setting.num_records - sum(used)
        return (*used, rest) if rest else tuple(used)

    @property
    def num_queries(self) -> int:
        """Queries of all phases, each with a noise vector of its own."""
        return sum(phase.steps for phase in self.phases)

    @property
    def gradient_evaluations(self) -> int:
        """Per-sample gradients that the run computes."""
        return sum(phase.gradient_evaluations for phase in self.phases)


def plan_localized(
    setting: HeavyTailedSetting, *, schedule: PhaseSchedule | None = None, constants: Constants = "sharp"
) -> LocalizedPlan:
    r"""Return the phases of the localized method, at the order k with the least rate.

    With ``strong_convexity`` > 0 and at least 16 records they are those of the strongly convex reduction.

    Args:
        setting: The public constants, with ``uniform_moment_bounds`` of an order k and of 2k (or higher ones).
        schedule: ``"theory"``, ``"economy"``, or ``None`` for theory up to 512 records and economy above.
        constants: ``"paper"`` takes the theorem's printed, too small, number of steps.

    Example:
        >>> setting = HeavyTailedSetting(num_records=5000, dim=10, rho=0.5, diameter=2, moment_bounds={2: 1.0},
        ...                              uniform_moment_bounds={2: 1.0, 4: 1.0})
        >>> plan = plan_localized(setting)
        >>> len(plan.phases), plan.sizes[:3], plan.sizes[-1], plan.num_queries
        (12, (2048, 1024, 512), 905, 1002)
    """
    highest = max(setting.uniform_moment_bounds, default=0.0)
    orders = [k for k in {*setting.moment_bounds, *setting.uniform_moment_bounds, 2.0} if 2 * k <= highest]
    if not orders:
        raise ValueError(
            "uniform_moment_bounds must hold an order of at least 4 for a localized method: it needs a moment of order "
            f"2k with k >= 2, got {dict(setting.uniform_moment_bounds)}."
        )
    chosen = schedule or ("theory" if setting.num_records <= 512 else "economy")
    order = min(sorted(orders), key=lambda k: localized_constants(setting, order=k).rate)
    reduced = bool(setting.strong_convexity) and setting.num_records >= 16
    if reduced:
        phases = strongly_convex_phases(setting, order=order, schedule=chosen)
    else:
        phases = localized_phases(setting, order=order, schedule=chosen, constants=constants)
    rate = localized_constants(setting, order=order).rate
    used = sum(phase.num_records for phase in phases)
    bounds = {**setting.uniform_moment_bounds, **setting.moment_bounds}
    pointwise = replace(setting, moment_bounds=_ascending(bounds, order))
    return LocalizedPlan(
        setting=setting,
        order=order,
        phases=phases,
        rate=rate**2 / (setting.strong_convexity * setting.diameter**2) if reduced else rate,
        lower_bound=lower_bound_of(pointwise, order, reduced),
        messages=(
            *left_out(setting.num_records, used),
            *about_lower_bound(setting),
            *(() if setting.mu <= math.sqrt(setting.dim) else ("The theorem needs sqrt(2 rho) <= sqrt(dim).",)),
            "The rate is the theorem's with its constant dropped: there is no explicit bound for this method.",
        ),
    )


def _ascending(bounds: dict[float, float], order: float) -> dict[float, float]:
    """Return the bound for ``order`` and the one for order 2, where some of the bounds are uniform."""
    at = min(bound for k, bound in bounds.items() if k >= order)
    return {2.0: min(bounds.get(2.0, at), at), order: at}
