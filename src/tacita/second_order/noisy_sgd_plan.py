r"""Plans for noisy SGD: consistent noise, step size and steps, and which of the paper's conditions hold.

``tacita plan --second-order`` prints them. The paper's epsilon is nominal; the plan also has the accountant's epsilon
of the clipped algorithm.
Source: "Noise is All You Need", Theorems 3.1 to 3.5, Definition B.1, solved in closed form
(docs/derivations/noisy-sgd.md, section 7).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacita import _validate
from tacita.accounting import (
    FullBatchLaw,
    NeighboringRelation,
    PoissonLaw,
    Spend,
    check_relation,
    epsilon,
    gaussian_sum_event,
)
from tacita.second_order.noisy_sgd import (
    EscapeParameters,
    escape_parameters,
    gradient_norm_bound,
    noise_is_enough,
    paper_mean_noise_std,
)

__all__ = [
    "NoisySGDPlan",
    "NoisySGDSetting",
    "plan_noisy_sgd",
]

SAME = 1e-9  # relative tolerance, so that rounding does not break a condition
MOST_STEPS = 1e10  # epsilon is not computed for more steps
GRID = np.linspace(0.0, 230.0, 4601)  # logarithms of numbers of steps


@dataclass(frozen=True, kw_only=True)
class NoisySGDSetting:
    """The inputs of the paper's equations.

    Attributes:
        num_records, dim, batch_size: n, d, B.
        epsilon, delta: The nominal guarantee, which the paper claims for the noise of its formula.
        relation: Neighboring relation, for the accountant's epsilon.
        smoothness, hessian_lipschitz, initial_gap, gradient_noise: L, rho, f_max, sigma; declared, from public
            knowledge.
        accuracy: alpha; ``None`` for the least for which noise, step size and steps are consistent.
        gradient_bound: A public bound C on a gradient, which is the clipping threshold; ``None`` for formula (2).
        concentrated: Assumption B: gradients concentrate about their mean at every point. It cannot be checked.
            ``False`` requires the much larger noise of the paper's Appendix C, and a ``gradient_bound``.
        c, c1, c2, c_lr, steps_multiplier: The paper's unspecified constants.
    """

    num_records: int
    dim: int
    batch_size: int
    epsilon: float
    delta: float
    relation: NeighboringRelation
    smoothness: float
    hessian_lipschitz: float
    initial_gap: float
    gradient_noise: float
    accuracy: float | None = None
    gradient_bound: float | None = None
    concentrated: bool = True
    c: float = 1.0
    c1: float = 1.0
    c2: float = 1.0
    c_lr: float = 1.0
    steps_multiplier: float = 1.0

    def __post_init__(self) -> None:
        for name in ("num_records", "dim", "batch_size"):
            _validate.count(name, getattr(self, name))
        if self.batch_size > self.num_records:
            raise ValueError(f"batch_size must be at most num_records={self.num_records}, got {self.batch_size}.")
        _validate.delta("delta", self.delta)
        check_relation(self.relation)
        _validate.non_negative("gradient_noise", self.gradient_noise)
        _validate.non_negative("c", self.c)
        for name in POSITIVE:
            _validate.positive(name, getattr(self, name))
        for name, value in {"accuracy": self.accuracy, "gradient_bound": self.gradient_bound}.items():
            if value is not None:
                _validate.positive(name, value)
        if not self.concentrated and self.gradient_bound is None:
            raise ValueError(
                "gradient_bound must be given where gradients are not assumed to concentrate, because its default, "
                "formula (2), relies on that assumption."
            )

    def bound_at(self, steps: Any) -> Any:
        """Return the gradient bound C for a number of steps."""
        if self.gradient_bound is not None:
            return np.full(np.shape(steps), self.gradient_bound)[()]
        return gradient_norm_bound(
            smoothness=self.smoothness,
            initial_gap=self.initial_gap,
            gradient_noise=self.gradient_noise,
            num_records=self.num_records,
            steps=np.maximum(steps, 1.0),
            delta=self.delta,
            c=self.c,
        )

    def formula_at(self, steps: Any) -> Any:
        """Return the noise of formula (1), on the mean, for a number of steps."""
        return paper_mean_noise_std(
            gradient_bound=self.bound_at(steps),
            steps=steps,
            delta=self.delta,
            num_records=self.num_records,
            epsilon=self.epsilon,
            c2=self.c2,
        )

    def parameters_at(self, accuracy: float, noise: float) -> EscapeParameters:
        """Return the parameters of Definition B.1 at an accuracy and a noise on the mean."""
        return escape_parameters(
            accuracy=accuracy,
            smoothness=self.smoothness,
            hessian_lipschitz=self.hessian_lipschitz,
            initial_gap=self.initial_gap,
            gradient_noise=self.gradient_noise,
            batch_size=self.batch_size,
            dim=self.dim,
            mean_noise_std=noise,
            c_lr=self.c_lr,
            steps_multiplier=self.steps_multiplier,
        )

    def conditions_at(self, noise: float, found: EscapeParameters) -> dict[str, bool]:
        """Return whether each condition that the paper states or uses holds, by name."""
        sigma, t = self.gradient_noise, found.steps
        asked = "noise^2 >= sigma^2 / B, Theorem 3.4" if self.concentrated else APPENDIX_C
        return {
            "noise >= formula (1)": bool(noise >= self.formula_at(t) * (1 - SAME)),
            asked: bool(
                noise_is_enough(
                    mean_noise_std=noise * (1 + SAME),
                    gradient_noise=sigma,
                    batch_size=self.batch_size,
                    dim=self.dim,
                    delta=self.delta,
                    steps=t,
                    concentrated=self.concentrated,
                )
            ),
            "epsilon < c1 T B^2 / n^2, Theorem 3.1": self.epsilon
            < self.c1 * t * (self.batch_size / self.num_records) ** 2,
            "lr <= 1 / L": found.lr <= 1 / self.smoothness,
            "lr <= 1 / (sigma sqrt(T)), Lemma 3.2": found.lr * sigma * math.sqrt(t) <= 1,
            "delta < 1 / n": self.delta < 1 / self.num_records,
        }


POSITIVE = ("epsilon", "smoothness", "hessian_lipschitz", "initial_gap", "c1", "c2", "c_lr", "steps_multiplier")
APPENDIX_C = "noise^2 >= sigma^2 T / (B delta), Appendix C"


@dataclass(frozen=True)
class NoisySGDPlan:
    """The solution of the paper's equations, which of its conditions hold, and the noise's actual guarantee.

    Attributes:
        setting: The inputs.
        accuracy: alpha, as given or the least.
        least_accuracy: The least feasible accuracy, used for ``accuracy=None``.
        gradient_bound: The clipping threshold C.
        mean_noise_std: Delta, the noise on the mean: the least for which noise and steps are consistent.
        parameters: Definition B.1 at that noise.
        conditions: Whether each condition holds, by name.
        noise_multiplier: Noise of the sum over C.
        real_epsilon: The accountant's epsilon for the algorithm that clips at C, with Poisson batches of expected size
            B (full batches where B is n), at the nominal delta and the stated relation; ``None`` beyond ``MOST_STEPS``
            steps.
    """

    setting: NoisySGDSetting
    accuracy: float
    least_accuracy: float
    gradient_bound: float
    mean_noise_std: float
    parameters: EscapeParameters
    conditions: Mapping[str, bool]
    noise_multiplier: float
    real_epsilon: float | None

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the conditions that do not hold."""
        return tuple(name for name, holds in self.conditions.items() if not holds)


def plan_noisy_sgd(setting: NoisySGDSetting) -> NoisySGDPlan:
    r"""Solve the paper's privacy and convergence equations together, check its conditions, and account for the noise.

    :math:`\Delta` is the least noise that is at least :math:`\sigma/\sqrt B` (Theorem 3.4) and at least formula (1) for
    the steps that it leads to. Both sides are linear in :math:`\Delta^2`; in most settings
    :math:`\Delta^2 = \kappa(1 + \sigma^2/B)/(\alpha^4 - \kappa d)`. The paper never checks
    :math:`\eta \le 1/(\sigma\sqrt T)`, which fails in ordinary settings.

    Raises:
        ValueError: No noise suffices for the accuracy; the message names the least feasible one.

    Example:
        >>> plan = plan_noisy_sgd(NoisySGDSetting(
        ...     num_records=50_000, dim=1000, batch_size=500, epsilon=1, delta=1e-5, relation="add_or_remove_one",
        ...     smoothness=1, hessian_lipschitz=1, initial_gap=1, gradient_noise=1, accuracy=0.25, gradient_bound=2.5))
        >>> round(plan.mean_noise_std, 7), round(plan.parameters.steps, 1), plan.broken
        (0.0447214, 49184.8, ('lr <= 1 / (sigma sqrt(T)), Lemma 3.2',))
        >>> round(plan.real_epsilon, 3)  # 1 is nominal
        0.922
    """
    loop = _Loop(setting)
    least_steps = loop.least_steps()
    least = float(loop.least_accuracy(least_steps))
    accuracy = least if setting.accuracy is None else float(setting.accuracy)
    steps = loop.steps_for(accuracy, least, least_steps)
    noise = math.sqrt(float(loop.noise_variance(steps, accuracy)))
    found = setting.parameters_at(accuracy, noise)
    bound = float(setting.bound_at(found.steps))
    return NoisySGDPlan(
        setting=setting,
        accuracy=accuracy,
        least_accuracy=least,
        gradient_bound=bound,
        mean_noise_std=noise,
        parameters=found,
        conditions=setting.conditions_at(noise, found),
        noise_multiplier=noise * setting.batch_size / bound,
        real_epsilon=_real_epsilon(setting, bound, noise, found.steps),
    )


def _real_epsilon(setting: NoisySGDSetting, bound: float, noise: float, steps: float) -> float | None:
    """Return the accountant's epsilon of clipped SGD at this threshold, noise on the mean and number of steps."""
    if steps > MOST_STEPS:
        return None
    full = setting.batch_size == setting.num_records
    law = FullBatchLaw() if full else PoissonLaw(setting.batch_size / setting.num_records)
    event = gaussian_sum_event(law, (bound,), (noise * setting.batch_size,), setting.relation)
    return epsilon([Spend(event, max(1, math.ceil(steps)))], setting.delta).epsilon


class _Loop:
    r"""The equations of noise and steps, which depend on each other.

    With :math:`s = \sigma^2/B` and :math:`x = \Delta^2` the noise must satisfy :math:`x \ge s` and
    :math:`x \ge w T(x)`, and the steps are :math:`T(x) = \max(a_1 (1 + s + d x),\ a_2 (s + d x))`. The
    weight w depends on the steps only through the logarithms in formula (2).
    """

    def __init__(self, setting: NoisySGDSetting) -> None:
        self.setting = setting
        self.floor = setting.gradient_noise**2 / setting.batch_size
        self.rate = 64 * setting.smoothness * setting.steps_multiplier / setting.c_lr

    def weight(self, steps: Any) -> Any:
        """Return w, the noise variance that each step requires."""
        setting = self.setting
        formula = np.square(setting.formula_at(steps)) / steps
        return formula if setting.concentrated else np.maximum(formula, self.floor / setting.delta)

    def noise_variance(self, steps: Any, accuracy: Any) -> Any:
        """Return the least x for the weight at ``steps``; infinite where there is none."""
        s, d, w = self.floor, float(self.setting.dim), self.weight(steps)
        one = w * self.rate * self.setting.initial_gap / accuracy**4  # w a_1
        two = w * self.rate / accuracy**2  # w a_2
        with np.errstate(divide="ignore", invalid="ignore"):
            needs = [np.where(x * d < 1, x * top / (1 - x * d), np.inf) for x, top in ((one, 1 + s), (two, s))]
        return np.maximum(s, np.maximum(*needs))

    def least_accuracy(self, steps: Any) -> Any:
        r"""Return the least accuracy for the weight at ``steps``.

        It is the least with :math:`w a_1(d + 1) \le 1`, that is :math:`\alpha^4 \ge \kappa(d + 1)`, and
        :math:`w a_2(d + 1) \le 1`.
        """
        share = self.weight(steps) * self.rate * (self.setting.dim + 1.0)
        return np.maximum((share * self.setting.initial_gap) ** 0.25, share**0.5)

    def steps_after(self, steps: Any, accuracy: Any) -> Any:
        """Return the number of steps that follows from the noise that ``steps`` requires."""
        spread = self.floor + self.setting.dim * self.noise_variance(steps, accuracy)
        gap = self.setting.initial_gap
        return np.maximum(self.rate * gap / accuracy**4 * (1 + spread), self.rate / accuracy**2 * spread)

    def least_steps(self) -> float:
        """Return the number of steps at the least accuracy.

        The solution is unique: more steps raise C and with it the least accuracy, which then takes fewer steps.
        """

        def after(steps: Any) -> Any:
            return self.steps_after(steps, self.least_accuracy(steps))

        return self._crossing(after, math.log(max(1.0, float(after(1.0)))))

    def steps_for(self, accuracy: float, least: float, least_steps: float) -> float:
        """Return the smallest number of steps that requires no more than itself. There is one from ``least`` on."""
        candidates = np.sort(np.append(np.exp(GRID), least_steps))
        enough = self.steps_after(candidates, accuracy) <= candidates * (1 + SAME)
        if not enough.any():
            raise ValueError(
                f"accuracy must be at least {least:.4g} for these records, parameters, epsilon and delta, got "
                f"{accuracy:g}: no noise is enough for less. Leave accuracy out to use the least. More records, a "
                "larger epsilon or fewer parameters lower it."
            )
        first = int(np.argmax(enough))
        ends = np.log(candidates[[first, max(first - 1, 0)]])
        return self._crossing(lambda steps: self.steps_after(steps, accuracy), *map(float, ends))

    def _crossing(self, after: Any, high: float, low: float = 0.0) -> float:
        """Return the root of ``after(steps) = steps`` between exp(low) and exp(high)."""
        from scipy.optimize import brentq

        def gap(log_steps: float) -> float:
            return math.log(float(after(math.exp(log_steps)))) - log_steps

        if high <= low or gap(low) <= 0:
            return float(after(math.exp(low)))
        if gap(high) >= 0:
            return math.exp(high)
        return math.exp(float(brentq(gap, low, high, xtol=1e-13)))  # type: ignore[arg-type]
