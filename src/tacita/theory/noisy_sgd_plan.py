r"""Noisy SGD, put together: noise, step size and steps that agree, and which of the paper's conditions hold.

Place: [theory.noisy_sgd] -> the planner. The epsilon is nominal: account for the clipped algorithm to know the real.
Source: "Noise is All You Need", Theorems 3.1 to 3.5, Definition B.1, in the only order in which they can be computed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tacita.theory.noisy_sgd import (
    EscapeParameters,
    escape_parameters,
    gradient_norm_bound,
    kappa,
    least_accuracy,
    paper_mean_noise_std,
)

PATIENCE = 200  # rounds of the loop over noise and steps; it closes in a few, or never
SAME = 1e-9  # relative: rounding is no broken condition


@dataclass(frozen=True, kw_only=True)
class NoisySGDSetting:
    """What the paper's equations ask for.

    Attributes:
        num_records, dim, batch_size: n, d, B.
        epsilon, delta: Nominal.
        smoothness, hessian_lipschitz, initial_gap, gradient_noise: L, rho, f_max, sigma; public and declared.
        accuracy: alpha; None for the least feasible.
        gradient_bound: A public bound C on a gradient; None for formula (2).
        c, c1, c2, c_lr, steps_multiplier: The paper's unspecified constants.
    """

    num_records: int
    dim: int
    batch_size: int
    epsilon: float
    delta: float
    smoothness: float
    hessian_lipschitz: float
    initial_gap: float
    gradient_noise: float
    accuracy: float | None = None
    gradient_bound: float | None = None
    c: float = 1.0
    c1: float = 1.0
    c2: float = 1.0
    c_lr: float = 1.0
    steps_multiplier: float = 1.0

    def bound_at(self, steps: float) -> float:
        """C for so many steps."""
        if self.gradient_bound is not None:
            return self.gradient_bound
        return gradient_norm_bound(
            smoothness=self.smoothness,
            initial_gap=self.initial_gap,
            gradient_noise=self.gradient_noise,
            num_records=self.num_records,
            steps=steps,
            delta=self.delta,
            c=self.c,
        )

    def formula_at(self, steps: float) -> float:
        """Formula (1), on the mean, for so many steps."""
        return paper_mean_noise_std(
            gradient_bound=self.bound_at(steps),
            steps=steps,
            delta=self.delta,
            num_records=self.num_records,
            epsilon=self.epsilon,
            c2=self.c2,
        )

    def least_accuracy_at(self, steps: float) -> float:
        """The least feasible alpha, with C for so many steps."""
        cost = kappa(
            gradient_bound=self.bound_at(steps),
            smoothness=self.smoothness,
            initial_gap=self.initial_gap,
            delta=self.delta,
            num_records=self.num_records,
            epsilon=self.epsilon,
            c2=self.c2,
            c_lr=self.c_lr,
        )
        return least_accuracy(cost, self.dim)

    def parameters_at(self, accuracy: float, noise: float) -> EscapeParameters:
        """Definition B.1."""
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
        """Every condition that the paper states or uses, by name."""
        sigma, t = self.gradient_noise, found.steps
        return {
            "noise >= formula (1)": noise >= self.formula_at(t) * (1 - SAME),
            "noise^2 >= sigma^2 / B, Theorem 3.4": noise**2 >= sigma**2 / self.batch_size * (1 - SAME),
            "epsilon < c1 T B^2 / n^2, Theorem 3.1": self.epsilon
            < self.c1 * t * (self.batch_size / self.num_records) ** 2,
            "lr <= 1 / L": found.lr <= 1 / self.smoothness,
            "lr <= 1 / (sigma sqrt(T)), Lemma 3.2": found.lr * sigma * math.sqrt(t) <= 1,
            "delta < 1 / n": self.delta < 1 / self.num_records,
        }


@dataclass(frozen=True)
class NoisySGDPlan:
    """What follows from the paper's equations, and which of its conditions hold.

    Attributes:
        accuracy: alpha, as asked for or the least feasible.
        least_accuracy: The least feasible.
        gradient_bound: C.
        mean_noise_std: Delta, on the mean.
        parameters: Definition B.1 at that noise.
        conditions: Name -> whether it holds.
        feasible: Whether the loop over noise and steps closed.
    """

    accuracy: float
    least_accuracy: float
    gradient_bound: float
    mean_noise_std: float
    parameters: EscapeParameters
    conditions: Mapping[str, bool]
    feasible: bool

    @property
    def broken(self) -> tuple[str, ...]:
        """The conditions that do not hold."""
        return tuple(name for name, holds in self.conditions.items() if not holds)


def plan_noisy_sgd(setting: NoisySGDSetting) -> NoisySGDPlan:
    r"""Put privacy and convergence together, and check each condition by name.

    :math:`\Delta = \sigma/\sqrt B` (the least that Theorem 3.4 allows), raised to formula (1) where that is more, until
    noise and steps agree; they never do where the accuracy is infeasible. The paper never checks
    :math:`\eta \le 1/(\sigma\sqrt T)`, and it fails in ordinary settings.

    Example:
        >>> plan = plan_noisy_sgd(NoisySGDSetting(
        ...     num_records=50_000, dim=1000, batch_size=500, epsilon=1, delta=1e-5, smoothness=1, hessian_lipschitz=1,
        ...     initial_gap=1, gradient_noise=1, accuracy=0.25, gradient_bound=2.5))
        >>> round(plan.mean_noise_std, 7), round(plan.parameters.steps, 1), plan.broken
        (0.0447214, 49184.8, ('lr <= 1 / (sigma sqrt(T)), Lemma 3.2',))
    """
    steps, noise = setting.num_records / setting.batch_size, setting.gradient_noise / math.sqrt(setting.batch_size)
    feasible = False
    for _ in range(PATIENCE):
        least = setting.least_accuracy_at(steps)
        accuracy = least if setting.accuracy is None else setting.accuracy
        found = setting.parameters_at(accuracy, noise)
        if not math.isfinite(found.steps):
            break
        needed = setting.formula_at(found.steps)
        closed = needed <= noise * (1 + SAME) and abs(found.steps / steps - 1) < SAME
        steps, noise = found.steps, max(noise, needed)
        if closed:
            feasible = True
            break
    return NoisySGDPlan(
        accuracy=float(accuracy),
        least_accuracy=float(least),
        gradient_bound=float(setting.bound_at(steps)),
        mean_noise_std=float(noise),
        parameters=found,
        conditions=setting.conditions_at(noise, found),
        feasible=feasible,
    )
