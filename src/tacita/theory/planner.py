r"""Plan DP-SGD with a fixed threshold: noise, threshold, step size, the error to expect, and what would help.

Place: accounting, [theory.dp_clipped_sgd], [theory.rule_of_thumb] -> ``tacita plan``, reports. Every input is public
and declared; L, R, Delta, sigma and alpha can't be learned from private data for free. The planned noise multiplier is
exact (the accountant's); it goes into an oracle as it is, and the ledger accounts for it again.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from tacita import _validate
from tacita.accounting import (
    NeighboringRelation,
    PoissonLaw,
    calibrate,
    check_relation,
    gaussian_mu,
    gaussian_sum_event,
    moved,
)
from tacita.theory.dp_clipped_sgd import average_iterate_bound, random_iterate_bound
from tacita.theory.noise import mean_noise_std
from tacita.theory.problem import ConvexProblem, NonConvexProblem, Problem
from tacita.theory.regimes import Regime, regime
from tacita.theory.rule_of_thumb import RuleOfThumb, rule_of_thumb
from tacita.theory.thresholds import BestThreshold, numeric_threshold

Sampling = Literal["poisson", "full_batch", "one_pass"]
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)


@dataclass(frozen=True, kw_only=True)
class PlanSetting:
    """What is known before any data.

    Attributes:
        problem: Convex or not, and its constants.
        num_records: Public n.
        batch_size: Expected records a step, the divisor; at most ``num_records``.
        steps: Updates, one private query each; at least 2.
        epsilon, delta: Budget.
        relation: Neighboring relation.
        sampling: ``"poisson"``; ``"full_batch"`` (then the batch is all records); ``"one_pass"``: disjoint batches,
            each record in one at most (then steps times batch is at most n).
        failure_probability: Of the convergence statement; privacy holds surely.
    """

    problem: Problem
    num_records: int
    batch_size: int
    steps: int
    epsilon: float
    delta: float
    relation: NeighboringRelation
    sampling: Sampling = "poisson"
    failure_probability: float = 0.05

    def __post_init__(self) -> None:
        _validate.count("num_records", self.num_records)
        _validate.count("batch_size", self.batch_size)
        _validate.count("steps", self.steps, at_least=2)
        _validate.positive("epsilon", self.epsilon)
        _validate.delta("delta", self.delta)
        _validate.probability("failure_probability", self.failure_probability)
        check_relation(self.relation)
        if self.sampling not in SAMPLINGS:
            raise ValueError(f"sampling must be one of {', '.join(SAMPLINGS)}, got {self.sampling!r}.")
        if self.batch_size > self.num_records:
            raise ValueError(f"batch_size must be at most num_records={self.num_records}, got {self.batch_size}.")
        if self.sampling == "full_batch" and self.batch_size != self.num_records:
            raise ValueError(
                f"batch_size must be num_records={self.num_records} under full_batch, got {self.batch_size}."
            )
        if self.sampling == "one_pass" and self.batch_size * self.steps > self.num_records:
            raise ValueError(
                f"steps x batch_size must be at most num_records={self.num_records} under one_pass, got "
                f"{self.steps * self.batch_size}. Give fewer steps, a smaller batch, or poisson sampling."
            )

    @property
    def sample_rate(self) -> float:
        """Batch over records."""
        return self.batch_size / self.num_records


@dataclass(frozen=True)
class OracleSettings:
    """What goes into an oracle and an optimizer, at the level of the sum.

    Attributes:
        max_grad_norm: For the clipper.
        noise_multiplier: For the mechanism: noise of the sum over its sensitivity.
        noise_std: Of the sum, which that makes: multiplier times sensitivity.
        planned_queries: Steps.
        expected_batch_size: The divisor.
        sample_rate: For a Poisson sampler.
        lr: For SGD on the mean gradient, without momentum.
        skip: Iterates that the average leaves out (:class:`tacita.SuffixAverage`).
    """

    max_grad_norm: float
    noise_multiplier: float
    noise_std: float
    planned_queries: int
    expected_batch_size: int
    sample_rate: float
    lr: float
    skip: int


@dataclass(frozen=True)
class Help:
    """One change of the setting, and what it would do.

    Attributes:
        change: In words.
        bound: The theorem's bound at its best threshold then.
        estimate: The rule of thumb's error then.
    """

    change: str
    bound: float
    estimate: float


@dataclass(frozen=True)
class Plan:
    """The answer of the theory, and the rule of thumb beside it.

    Attributes:
        setting: What was asked.
        noise_multiplier: Exact for the budget.
        noise_ratio: Noise on a coordinate of the mean gradient, for a threshold of one.
        best: Threshold at which the theorem's bound is least, and the bound.
        regime: Where that threshold lies.
        of_output: What the theorem says of what can be released: the average iterate (convex), or the squared gradient
            norm of an iterate drawn beforehand, with probability one half (non-convex).
        thumb: The rule of thumb.
        helps: Changes, the most helpful first by the rule of thumb's error.
    """

    setting: PlanSetting
    noise_multiplier: float
    noise_ratio: float
    best: BestThreshold
    regime: Regime
    of_output: float
    thumb: RuleOfThumb
    helps: tuple[Help, ...]

    @property
    def is_vacuous(self) -> bool:
        """Whether the theorem says no more than what holds before the first step."""
        return bool(self.best.bound.is_vacuous)

    @property
    def theory_settings(self) -> OracleSettings:
        """The theorem's threshold and step size, and the average of all iterates. Not for practice."""
        return self._settings(self.best.max_grad_norm, float(self.best.bound.lr), skip=0)

    @property
    def thumb_settings(self) -> OracleSettings:
        """The rule of thumb's, and the average of the last half."""
        return self._settings(self.thumb.max_grad_norm, self.thumb.lr, skip=self.setting.steps // 2)

    def _settings(self, max_grad_norm: float, lr: float, *, skip: int) -> OracleSettings:
        return OracleSettings(
            max_grad_norm=max_grad_norm,
            noise_multiplier=self.noise_multiplier,
            noise_std=self.noise_multiplier * moved(self.setting.relation) * max_grad_norm,
            planned_queries=self.setting.steps,
            expected_batch_size=self.setting.batch_size,
            sample_rate=self.setting.sample_rate,
            lr=lr,
            skip=skip,
        )


def plan_dp_clipped_sgd(setting: PlanSetting) -> Plan:
    """Work out the plan: one exact calibration, then formulas.

    Example:
        >>> plan = plan_dp_clipped_sgd(PlanSetting(
        ...     problem=ConvexProblem(smoothness=1, radius=5, moment_scale=6.36, moment_order=1.4, dim=10),
        ...     num_records=4000, batch_size=1, steps=4000, epsilon=8, delta=1e-5, relation="replace_one",
        ...     sampling="one_pass"))
        >>> round(plan.noise_multiplier, 5), plan.is_vacuous, round(plan.thumb.max_grad_norm, 1)
        (0.60023, True, 2.9)
    """
    multiplier = exact_noise_multiplier(setting)
    ratio = noise_ratio(setting, multiplier)
    best = _best(setting, ratio)
    return Plan(
        setting=setting,
        noise_multiplier=multiplier,
        noise_ratio=ratio,
        best=best,
        regime=regime(setting.problem, max_grad_norm=best.max_grad_norm),
        of_output=_of_output(setting, best),
        thumb=_thumb(setting, ratio),
        helps=_helps(setting, multiplier),
    )


def exact_noise_multiplier(setting: PlanSetting) -> float:
    """Noise of the sum over its sensitivity, for the budget: a closed form, or the accountant's under Poisson."""
    if setting.sampling == "one_pass":
        return 1 / gaussian_mu(setting.epsilon, setting.delta)
    if setting.sampling == "full_batch":
        return math.sqrt(setting.steps) / gaussian_mu(setting.epsilon, setting.delta)
    law, moves = PoissonLaw(setting.sample_rate), moved(setting.relation)
    return calibrate(
        lambda multiplier: gaussian_sum_event(law, (1.0,), (multiplier * moves,), setting.relation),
        setting.relation,
        setting.epsilon,
        setting.delta,
        queries=setting.steps,
    )


def noise_ratio(setting: PlanSetting, multiplier: float) -> float:
    """Noise on a coordinate of the mean gradient for a threshold of one: multiplier x sensitivity / batch."""
    return float(mean_noise_std(multiplier * moved(setting.relation), divisor=setting.batch_size))


def rough_noise_multiplier(setting: PlanSetting) -> float:
    r"""The same by the central limit theorem: **for curves, no guarantee**.

    :math:`1/\sqrt{\ln(1 + (\mu/(q\sqrt T))^2)}` under Poisson sampling at rate q. Exact where nothing is sampled. Used
    in ratios, to move an exact multiplier along.
    """
    if setting.sampling != "poisson":
        return exact_noise_multiplier(setting)
    mu = gaussian_mu(setting.epsilon, setting.delta)
    return 1 / math.sqrt(math.log1p((mu / (setting.sample_rate * math.sqrt(setting.steps))) ** 2))


def moved_along(setting: PlanSetting, other: PlanSetting, multiplier: float) -> float:
    """About the multiplier of ``other``, from the exact one of ``setting``."""
    return multiplier * rough_noise_multiplier(other) / rough_noise_multiplier(setting)


def error_by_epsilon(plan: Plan, epsilons: list[float]) -> list[tuple[float, float]]:
    """For each epsilon: the theorem's least bound, and the rule of thumb's error; noise moved along, not exact."""
    found = []
    for epsilon in epsilons:
        other = replace(plan.setting, epsilon=epsilon)
        ratio = noise_ratio(other, moved_along(plan.setting, other, plan.noise_multiplier))
        found.append((float(_best(other, ratio).bound.value), _thumb(other, ratio).estimate))
    return found


def _best(setting: PlanSetting, ratio: float) -> BestThreshold:
    return numeric_threshold(
        setting.problem,
        steps=setting.steps - 1,
        failure_probability=setting.failure_probability,
        noise_ratio=ratio,
        batch_size=setting.batch_size,
    )


def _thumb(setting: PlanSetting, ratio: float) -> RuleOfThumb:
    return rule_of_thumb(setting.problem, steps=setting.steps, noise_ratio=ratio, batch_size=setting.batch_size)


def _of_output(setting: PlanSetting, best: BestThreshold) -> float:
    at = {"lr": best.bound.lr, "max_grad_norm": best.max_grad_norm, "steps": setting.steps - 1}
    if isinstance(setting.problem, ConvexProblem):
        return float(average_iterate_bound(setting.problem, **at))
    assert isinstance(setting.problem, NonConvexProblem)
    return float(random_iterate_bound(setting.problem, **at)) ** 2


def _helps(setting: PlanSetting, multiplier: float) -> tuple[Help, ...]:
    found = []
    for change, other in _changes(setting):
        ratio = noise_ratio(other, moved_along(setting, other, multiplier))
        found.append(Help(change, float(_best(other, ratio).bound.value), _thumb(other, ratio).estimate))
    return tuple(sorted(found, key=lambda help: (help.estimate, help.bound)))


def _changes(setting: PlanSetting) -> list[tuple[str, PlanSetting]]:
    """Changes worth asking about; those that the sampling does not allow are left out."""
    problem, n, b, t = setting.problem, setting.num_records, setting.batch_size, setting.steps
    other = {
        "4 x the records, same batch": replace(setting, num_records=4 * n)
        if setting.sampling != "full_batch"
        else None,
        "4 x the records and the batch": replace(setting, num_records=4 * n, batch_size=4 * b),
        "2 x epsilon": replace(setting, epsilon=2 * setting.epsilon),
        "a quarter of the parameters": replace(
            setting, problem=replace(problem, dim=np.maximum(1.0, np.asarray(problem.dim) / 4))
        ),
        "gradients with half the noise": replace(setting, problem=replace(problem, moment_scale=problem.scale / 2)),
        "a start half as far": replace(setting, problem=_nearer(problem)),
    }
    if setting.sampling == "poisson":
        other["4 x the steps"] = replace(setting, steps=4 * t)
        other["a quarter of the steps"] = replace(setting, steps=max(2, t // 4))
        if 4 * b <= n:
            other["4 x the batch"] = replace(setting, batch_size=4 * b)
        if b * t <= n:
            other["one pass: disjoint batches"] = replace(setting, sampling="one_pass")
    if setting.sampling == "full_batch":
        other["4 x the steps"] = replace(setting, steps=4 * t)
        other["a quarter of the steps"] = replace(setting, steps=max(2, t // 4))
    return [(change, changed) for change, changed in other.items() if changed is not None]


def _nearer(problem: Problem) -> Problem:
    """Half the radius, or a quarter of the gap."""
    if isinstance(problem, ConvexProblem):
        return replace(problem, radius=problem.length / 2)
    assert isinstance(problem, NonConvexProblem)
    return replace(problem, initial_gap=np.asarray(problem.initial_gap) / 4)
