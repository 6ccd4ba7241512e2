r"""Plans for DP-SGD with a fixed threshold: noise, threshold, step size, expected error, and which changes would help.

Every input is declared from public knowledge; learning L, R, Delta, sigma or alpha from private data would cost
privacy. The planned noise multiplier is exact (the accountant's). An oracle takes it unchanged, and the ledger accounts
for it again.

The theorem is not proved for every way to sample. Where it is not, :func:`no_theorem` says why, and the plan has only
the rule of thumb (docs/derivations/dp-clipped-sgd.md, section 6).
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from tacita._domains import checked
from tacita.accounting import (
    PoissonLaw,
    calibrate,
    gaussian_mu,
    gaussian_sum_event,
    moved,
)
from tacita.clipped_sgd.dp_clipped_sgd import (
    ConvergenceBound,
    average_iterate_bound,
    convergence_bound,
    random_iterate_bound,
)
from tacita.clipped_sgd.plan_setting import PlanSetting, no_theorem
from tacita.clipped_sgd.problem import ConvexProblem, NonConvexProblem, Problem
from tacita.clipped_sgd.regimes import Regime, regime
from tacita.clipped_sgd.rule_of_thumb import RuleOfThumb, rule_of_thumb
from tacita.clipped_sgd.thresholds import BestThreshold, numeric_threshold


@dataclass(frozen=True)
class OracleSettings:
    """The settings of an oracle and an optimizer; noise is on the sum.

    Attributes:
        max_grad_norm: The clipper's threshold.
        noise_multiplier: The mechanism's noise multiplier: noise of the sum over its sensitivity.
        noise_std: The resulting noise of the sum: multiplier times sensitivity.
        planned_queries: The number of steps.
        expected_batch_size: The divisor.
        sample_rate: The rate of a Poisson sampler.
        lr: The step size of SGD on the mean gradient, without momentum.
        skip: The number of first iterates that the average leaves out (:class:`tacita.SuffixAverage`); ``None`` where
            no average has a guarantee and an iterate drawn before training is used (:class:`tacita.RandomIterate`).
    """

    max_grad_norm: float
    noise_multiplier: float
    noise_std: float
    planned_queries: int
    expected_batch_size: int
    sample_rate: float
    lr: float
    skip: int | None


@dataclass(frozen=True)
class Help:
    """The effect of one change of the setting.

    Attributes:
        change: The change in words.
        bound: The theorem's bound after the change, at its best threshold; ``None`` where the theorem is not proved.
        estimate: The rule of thumb's error after the change.
    """

    change: str
    bound: float | None
    estimate: float


@dataclass(frozen=True)
class PlannedTheorem:
    """The theorem's bound for a plan for which it is proved.

    Attributes:
        best: The threshold at which the bound is least, and the bound there.
        regime: The regime of that threshold.
        probability: A lower bound on the probability with which the bound holds.
        of_output: The bound for what can be released: the objective's error at the average of the iterates after the
            start (convex), or the squared gradient norm at one iterate drawn before training (non-convex).
        output_probability: A lower bound on the probability with which ``of_output`` holds. For an iterate drawn before
            training it is half of ``probability``, because Markov's inequality gives 1/2, on the theorem's event only.
        settings: The theorem's threshold and step size; not for practice.
    """

    best: BestThreshold
    regime: Regime
    probability: float
    of_output: float
    output_probability: float
    settings: OracleSettings

    @property
    def is_vacuous(self) -> bool:
        """Whether the bound is no better than the one that holds before any step."""
        return bool(self.best.bound.is_vacuous)


@dataclass(frozen=True)
class ClippedSGDPlan:
    """A plan for DP-SGD: the theorem's settings and bound where it is proved, and those of the rule of thumb.

    Attributes:
        setting: The inputs.
        noise_multiplier: The exact noise multiplier for the budget.
        noise_ratio: Noise on a coordinate of the mean gradient, for a threshold of one.
        theorem: The theorem's part; ``None`` where it is not proved for this setting (:func:`no_theorem`).
        thumb: The rule of thumb.
        thumb_settings: The rule of thumb's threshold and step size, with an average over the last half of the iterates.
        helps: Changes of the setting, sorted by the rule of thumb's error, the most helpful first.
    """

    setting: PlanSetting
    noise_multiplier: float
    noise_ratio: float
    theorem: PlannedTheorem | None
    thumb: RuleOfThumb
    thumb_settings: OracleSettings
    helps: tuple[Help, ...]

    @property
    def is_vacuous(self) -> bool:
        """Whether the theorem is not proved for the setting, or its bound is no better than before any step."""
        return self.theorem is None or self.theorem.is_vacuous


def plan_dp_clipped_sgd(setting: PlanSetting) -> ClippedSGDPlan:
    """Plan DP-SGD for a setting: one exact calibration of the noise, then formulas.

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
    thumb = _thumb(setting, ratio)
    return ClippedSGDPlan(
        setting=setting,
        noise_multiplier=multiplier,
        noise_ratio=ratio,
        theorem=_theorem(setting, multiplier, ratio),
        thumb=thumb,
        thumb_settings=_settings(setting, multiplier, thumb.max_grad_norm, thumb.lr, skip=setting.steps // 2),
        helps=_helps(setting, multiplier),
    )


@checked()
def theorem_bound(setting: PlanSetting, ratio: float, max_grad_norm: ArrayLike) -> ConvergenceBound:
    r"""Return the theorem's bound at a threshold, for the setting's failure probability.

    T updates make the iterates :math:`x^0, \dots, x^T`, so K is ``steps``. ``ratio`` is the plan's ``noise_ratio``.

    Raises:
        ValueError: The theorem is not proved for the setting.
    """
    _check_theorem(setting)
    return convergence_bound(
        setting.problem,
        max_grad_norm=max_grad_norm,
        steps=setting.steps,
        failure_probability=_charged(setting),
        mean_noise_std=np.multiply(ratio, max_grad_norm),
        batch_size=setting.batch_size,
    )


def exact_noise_multiplier(setting: PlanSetting) -> float:
    """Return the noise multiplier for the budget: a closed form, or the accountant's under Poisson sampling."""
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


@checked()
def noise_ratio(setting: PlanSetting, multiplier: float) -> float:
    """Return the noise on a coordinate of the mean gradient, for a threshold of one: multiplier x moved / batch."""
    return multiplier * moved(setting.relation) / setting.batch_size


def rough_noise_multiplier(setting: PlanSetting) -> float:
    r"""Return an approximate noise multiplier by the central limit theorem. **For curves only; not a guarantee.**

    :math:`1/\sqrt{\ln(1 + (\mu/(q\sqrt T))^2)}` under Poisson sampling at rate q; exact where nothing is sampled.
    :func:`rescaled_multiplier` uses its ratios.
    """
    if setting.sampling != "poisson":
        return exact_noise_multiplier(setting)
    mu = gaussian_mu(setting.epsilon, setting.delta)
    return 1 / math.sqrt(math.log1p((mu / (setting.sample_rate * math.sqrt(setting.steps))) ** 2))


@checked()
def rescaled_multiplier(setting: PlanSetting, other: PlanSetting, multiplier: float) -> float:
    """Return the approximate multiplier of ``other``, given the exact ``multiplier`` of ``setting``."""
    return multiplier * rough_noise_multiplier(other) / rough_noise_multiplier(setting)


@checked()
def error_by_epsilon(plan: ClippedSGDPlan, epsilons: list[float]) -> list[tuple[float | None, float]]:
    """Return the theorem's least bound and the rule of thumb's error for each epsilon, with approximate noise.

    The bound is ``None`` where the theorem is not proved for the plan.
    """
    found = []
    for epsilon in epsilons:
        other = replace(plan.setting, epsilon=epsilon)
        ratio = noise_ratio(other, rescaled_multiplier(plan.setting, other, plan.noise_multiplier))
        found.append((_least_bound(other, ratio), _thumb(other, ratio).estimate))
    return found


def _check_theorem(setting: PlanSetting) -> None:
    why = no_theorem(setting)
    if why:
        raise ValueError(
            f"sampling and relation must be ones for which the theorem is proved, got {setting.sampling!r}. {why}"
        )


def _charged(setting: PlanSetting) -> float:
    """Return the failure probability to pass to the bound, so that it fails with at most the one asked for."""
    return setting.failure_probability / setting.problem.union_factor


def _best(setting: PlanSetting, ratio: float) -> BestThreshold:
    _check_theorem(setting)
    return numeric_threshold(
        setting.problem,
        steps=setting.steps,
        failure_probability=_charged(setting),
        noise_ratio=ratio,
        batch_size=setting.batch_size,
    )


def _least_bound(setting: PlanSetting, ratio: float) -> float | None:
    return None if no_theorem(setting) else float(_best(setting, ratio).bound.value)


def _thumb(setting: PlanSetting, ratio: float) -> RuleOfThumb:
    return rule_of_thumb(setting.problem, steps=setting.steps, noise_ratio=ratio, batch_size=setting.batch_size)


def _theorem(setting: PlanSetting, multiplier: float, ratio: float) -> PlannedTheorem | None:
    if no_theorem(setting):
        return None
    best = _best(setting, ratio)
    convex = isinstance(setting.problem, ConvexProblem)
    probability = 1 - float(best.bound.failure_probability)
    return PlannedTheorem(
        best=best,
        regime=regime(setting.problem, max_grad_norm=best.max_grad_norm),
        probability=probability,
        of_output=_of_output(setting, best),
        output_probability=probability if convex else probability / 2,
        settings=_settings(setting, multiplier, best.max_grad_norm, float(best.bound.lr), skip=0 if convex else None),
    )


def _of_output(setting: PlanSetting, best: BestThreshold) -> float:
    """Return the bound for what can be released.

    That is the average of x^1, ..., x^T (convex), or one of x^0, ..., x^(T-1) drawn before training (non-convex). Both
    are T of the T + 1 iterates that the theorem sums over, hence the factor (T + 1) / T.
    """
    at = {"lr": best.bound.lr, "max_grad_norm": best.max_grad_norm, "steps": setting.steps}
    factor = (setting.steps + 1) / setting.steps
    if isinstance(setting.problem, ConvexProblem):
        return factor * float(average_iterate_bound(setting.problem, **at))
    assert isinstance(setting.problem, NonConvexProblem)
    return (factor * float(random_iterate_bound(setting.problem, **at))) ** 2


def _settings(
    setting: PlanSetting, multiplier: float, max_grad_norm: float, lr: float, *, skip: int | None
) -> OracleSettings:
    return OracleSettings(
        max_grad_norm=max_grad_norm,
        noise_multiplier=multiplier,
        noise_std=multiplier * moved(setting.relation) * max_grad_norm,
        planned_queries=setting.steps,
        expected_batch_size=setting.batch_size,
        sample_rate=setting.sample_rate,
        lr=lr,
        skip=skip,
    )


def _helps(setting: PlanSetting, multiplier: float) -> tuple[Help, ...]:
    found = []
    for change, other in _changes(setting):
        ratio = noise_ratio(other, rescaled_multiplier(setting, other, multiplier))
        found.append(Help(change, _least_bound(other, ratio), _thumb(other, ratio).estimate))
    return tuple(sorted(found, key=lambda help: (help.estimate, help.bound or 0.0)))


def _changes(setting: PlanSetting) -> list[tuple[str, PlanSetting]]:
    """Return the changes to compare, in words and as settings, without those that the sampling does not allow."""
    problem, n, b, t = setting.problem, setting.num_records, setting.batch_size, setting.steps
    other: dict[str, PlanSetting] = {}
    if setting.sampling != "full_batch":
        other["4 x the records, same batch"] = replace(setting, num_records=4 * n)
    other |= {
        "4 x the records and the batch": replace(setting, num_records=4 * n, batch_size=4 * b),
        "2 x epsilon": replace(setting, epsilon=2 * setting.epsilon),
        "a quarter of the parameters": replace(
            setting, problem=replace(problem, dim=np.maximum(1.0, np.asarray(problem.dim) / 4))
        ),
        "gradients with half the noise": replace(setting, problem=replace(problem, moment_scale=problem.scale / 2)),
        "a start half as far": replace(setting, problem=_nearer(problem)),
    }
    if setting.sampling != "one_pass":
        other["4 x the steps"] = replace(setting, steps=4 * t)
        other["a quarter of the steps"] = replace(setting, steps=max(2, t // 4))
    if setting.sampling == "poisson" and 4 * b <= n:
        other["4 x the batch"] = replace(setting, batch_size=4 * b)
    if setting.sampling == "poisson" and b * t <= n:
        other["one pass: disjoint batches"] = replace(setting, sampling="one_pass")
    return list(other.items())


def _nearer(problem: Problem) -> Problem:
    """Return the problem with half the radius, or a quarter of the initial gap."""
    if isinstance(problem, ConvexProblem):
        return replace(problem, radius=problem.length / 2)
    assert isinstance(problem, NonConvexProblem)
    return replace(problem, initial_gap=np.asarray(problem.initial_gap) / 4)
