"""A plan's neighbours: the noise and the rule of thumb's error at other epsilons, steps, batches and thresholds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from tacita.clipped_sgd.plan_setting import PlanSetting
from tacita.clipped_sgd.planner import ClippedSGDPlan, exact_noise_multiplier, noise_ratio
from tacita.clipped_sgd.rule_of_thumb import RuleOfThumb, rule_of_thumb

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """One neighbour of a plan.

    Attributes:
        setting: The inputs, all exact.
        noise_multiplier: The exact noise multiplier for the budget.
        mean_noise_std: Noise on a coordinate of the mean gradient, for a threshold of one.
        by_threshold: Clipping threshold -> the rule of thumb there; an order of magnitude, and no guarantee.
    """

    setting: PlanSetting
    noise_multiplier: float
    mean_noise_std: float
    by_threshold: dict[float, RuleOfThumb]


def neighbours(setting: PlanSetting) -> list[PlanSetting]:
    """Return the setting at 1/4 to 4 times its epsilon, steps and batch size, as far as its sampling allows them.

    Example:
        >>> from tacita.clipped_sgd import ConvexProblem
        >>> problem = ConvexProblem(smoothness=1, radius=5, moment_scale=1)
        >>> setting = PlanSetting(problem=problem, num_records=100, batch_size=50, steps=8, epsilon=1, delta=1e-5,
        ...     relation="replace_one")
        >>> sorted({other.batch_size for other in neighbours(setting)}), len(neighbours(setting))
        ([12, 25, 50, 100], 100)
    """
    batches = [min(max(1, int(factor * setting.batch_size)), setting.num_records) for factor in FACTORS]
    if setting.sampling == "full_batch":
        batches = [setting.batch_size]
    steps = [max(2, int(factor * setting.steps)) for factor in FACTORS]
    found = []
    for factor, number, batch in product(FACTORS, dict.fromkeys(steps), dict.fromkeys(batches)):
        if setting.sampling != "one_pass" or number * batch <= setting.num_records:
            found.append(replace(setting, epsilon=factor * setting.epsilon, steps=number, batch_size=batch))
    return found


def what_if(plan: ClippedSGDPlan, show: Callable[[str, float], None] = lambda what, share: None) -> list[WhatIf]:
    """Calibrate the noise of each neighbour of a plan, which takes up to half a minute under Poisson sampling.

    Args:
        plan: The plan; the thresholds are multiples of its rule of thumb's.
        show: Called with words and the share that is done.
    """
    settings = neighbours(plan.setting)
    thresholds = [factor * plan.thumb.max_grad_norm for factor in FACTORS]
    found = []
    for done, setting in enumerate(settings):
        show("computing the noise of other settings", done / len(settings))
        multiplier = exact_noise_multiplier(setting)
        ratio = noise_ratio(setting, multiplier)
        rules = {
            c: rule_of_thumb(
                setting.problem,
                steps=setting.steps,
                noise_ratio=ratio,
                batch_size=setting.batch_size,
                max_grad_norm=c,
            )
            for c in thresholds
        }
        found.append(WhatIf(setting=setting, noise_multiplier=multiplier, mean_noise_std=ratio, by_threshold=rules))
    return found
