r"""A plan of Clip21-SGDM before any data are read: the noise of a message, and what Theorems 2 to 4 say.

Everything is declared by the user. The theorems' constants are large: where a bound says no more than the start does,
the plan calls it vacuous.
Source: "Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy", Theorems 2 to 4 and
Corollary 1, in the full statements and with the corrections of :mod:`tacita.federated.clip21`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tacita import _validate
from tacita.federated.clip21 import (
    Clip21Rule,
    StochasticConstants,
    deterministic_rule,
    lyapunov_bound,
    private_rule,
    stochastic_rule,
)
from tacita.federated.clip21_noise import message_mu, message_noise_std

EXACT, STOCHASTIC, PRIVATE = (
    "Theorem 2: exact gradients, no noise",
    "Theorem 3: stochastic gradients, no noise",
    "Theorem 4: stochastic gradients, privacy noise",
)


@dataclass(frozen=True, kw_only=True)
class FederatedSetting:
    """A federated training, as declared.

    Attributes:
        num_clients: The number of clients n.
        rounds: The number of rounds T; every client sends a message in each.
        dim: The number of parameters d.
        epsilon, delta: What all messages of one client may spend, for any change of its data.
        smoothness: L; the gradient of every client changes by at most L times the distance.
        initial_gap: An upper bound on the objective at the start minus its infimum.
        largest_grad: An upper bound on the norm of a client's gradient at the start.
        gradient_noise: The sub-Gaussian scale sigma of a client's gradient noise.
        max_grad_norm: Threshold C of a message; ``None`` for ``largest_grad`` over ``rounds``, the order of
            Corollary 1's regime, in which a client can still follow its gradient.
        failure_probability: Probability with which the convergence statement may fail.
    """

    num_clients: int
    rounds: int
    dim: int
    epsilon: float
    delta: float
    smoothness: float
    initial_gap: float
    largest_grad: float
    gradient_noise: float
    max_grad_norm: float | None = None
    failure_probability: float = 0.05

    def __post_init__(self) -> None:
        for name in ("num_clients", "rounds", "dim"):
            _validate.count(name, getattr(self, name))
        for name in ("epsilon", "smoothness", "initial_gap", "largest_grad", "gradient_noise"):
            _validate.positive(name, getattr(self, name))
        _validate.delta("delta", self.delta)
        _validate.inside("failure_probability", self.failure_probability)
        if self.max_grad_norm is not None:
            _validate.threshold("max_grad_norm", self.max_grad_norm)
        _validate.threshold("largest_grad / rounds", self.threshold)

    @property
    def threshold(self) -> float:
        """The threshold C: the declared one, or the rule's."""
        return self.max_grad_norm or self.largest_grad / self.rounds

    @property
    def noise_std(self) -> float:
        """The exact noise of a message, per coordinate."""
        return message_noise_std(
            epsilon=self.epsilon, delta=self.delta, max_grad_norm=self.threshold, messages=self.rounds
        )

    @property
    def lyapunov(self) -> float:
        """The bound Delta on the Lyapunov function at the start."""
        return lyapunov_bound(
            initial_gap=self.initial_gap, smoothness=self.smoothness, mean_square_grad=self.largest_grad**2
        )

    @property
    def trivial(self) -> float:
        """The square of the gradient's norm that the start cannot pass: a bound above it says nothing."""
        return min(self.largest_grad**2, 2 * self.smoothness * self.initial_gap)


@dataclass(frozen=True)
class FederatedPlan:
    """What theory says of a federated training.

    Attributes:
        setting: What was declared.
        max_grad_norm: Threshold C.
        noise_std: Standard deviation of the noise of one message, per coordinate.
        mean_noise: Norm of the noise in the server's estimate after all rounds, :math:`s \\sqrt{T d / n}`.
        sum_mu: The Gaussian-DP parameter against whoever sees the models alone, where a client is replaced.
        rate: Corollary 1's leading term, :math:`L \\Delta \\sqrt d / (\\sqrt n \\epsilon)`, without its constant.
        rules: By theorem, its step size, momentum and bound; ``None`` where its conditions cannot be met.
    """

    setting: FederatedSetting
    max_grad_norm: float
    noise_std: float
    mean_noise: float
    sum_mu: float
    rate: float
    rules: Mapping[str, Clip21Rule | None]

    @property
    def noise_multiplier(self) -> float:
        """The noise over 2 C, which ``GaussianMechanism`` takes."""
        return self.noise_std / (2 * self.max_grad_norm)

    def vacuous(self, rule: Clip21Rule) -> bool:
        """Return whether the theorem's bound says no more than is known of the start."""
        return not rule.value < self.setting.trivial


def plan_clip21(setting: FederatedSetting) -> FederatedPlan:
    """Plan Clip21-SGDM with local privacy.

    Example:
        >>> found = plan_clip21(FederatedSetting(num_clients=100, rounds=1000, dim=10, epsilon=2, delta=1e-5,
        ...     smoothness=1, initial_gap=1, largest_grad=1, gradient_noise=0.1, max_grad_norm=0.01))
        >>> round(found.noise_std, 3), round(found.noise_multiplier, 2), found.vacuous(found.rules[PRIVATE])
        (1.261, 63.05, True)
    """
    bound, noise, n = setting.threshold, setting.noise_std, setting.num_clients
    return FederatedPlan(
        setting=setting,
        max_grad_norm=bound,
        noise_std=noise,
        mean_noise=noise * math.sqrt(setting.rounds * setting.dim / n),
        sum_mu=message_mu(max_grad_norm=bound, noise_std=noise, messages=setting.rounds, shares=n),
        rate=setting.smoothness * setting.lyapunov * math.sqrt(setting.dim / n) / setting.epsilon,
        rules=theorem_rules(setting),
    )


def theorem_rules(setting: FederatedSetting) -> dict[str, Clip21Rule | None]:
    """Return what each theorem says; ``None`` where its condition on threshold and gradients does not hold.

    The condition is taken without the gradient noise that the stochastic theorems add to ``largest_grad``, which is a
    little more than they ask.
    """
    exact = stochastic = private = None
    if setting.largest_grad > 3 * setting.threshold:
        exact = deterministic_rule(
            smoothness=setting.smoothness,
            max_grad_norm=setting.threshold,
            largest_grad=setting.largest_grad,
            lyapunov=setting.lyapunov,
            steps=setting.rounds,
        )
        stochastic = stochastic_rule(_constants(setting, 0.0))
    if setting.largest_grad > setting.threshold:
        private = private_rule(_constants(setting, setting.noise_std))
    return {EXACT: exact, STOCHASTIC: stochastic, PRIVATE: private}


def _constants(setting: FederatedSetting, noise_std: float) -> StochasticConstants:
    return StochasticConstants(
        smoothness=setting.smoothness,
        lyapunov=setting.lyapunov,
        max_grad_norm=setting.threshold,
        largest_grad=setting.largest_grad,
        gradient_noise=setting.gradient_noise,
        num_clients=setting.num_clients,
        steps=setting.rounds,
        failure_probability=setting.failure_probability,
        dim=setting.dim,
        noise_std=noise_std,
    )
