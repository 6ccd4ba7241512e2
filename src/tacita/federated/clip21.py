r"""Convergence theorems of Clip21-SGDM.

``momentum_weight`` is the weight of the NEW gradient (torch's momentum is one minus that). The theorems' step sizes
are far too small for practice and must not become defaults.
Source: "Momentum and Error Feedback for Clipping with Fast Rates and Differential Privacy", Theorems 5 to 7. Where a
printed constant is wrong, the function uses a corrected one (ours) and says so.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tacita import _arrays
from tacita._domains import checked

__all__ = [
    "Clip21Rule",
    "StochasticConstants",
    "contraction_limit",
    "deterministic_rule",
    "lyapunov_bound",
    "private_rule",
    "stochastic_rule",
]


@dataclass(frozen=True)
class Clip21Rule:
    """The step size and momentum that a theorem allows, and its bound.

    Attributes:
        lr: The step size gamma.
        momentum_weight: The weight beta of the new gradient.
        value: The bound on the mean of the squared gradient norms over the run.
        limits: Every limit by name: on ``lr`` (Theorem 5), or on ``momentum_weight`` (Theorems 6 and 7).
        binding: The name of the smallest limit.
    """

    lr: float
    momentum_weight: float
    value: float
    limits: Mapping[str, float]
    binding: str


@checked()
def lyapunov_bound(*, initial_gap: float, smoothness: float, mean_square_grad: float) -> float:
    r"""Return Delta, a bound on the Lyapunov function at the start that needs neither lr nor threshold (Remark 1).

    :math:`\frac32\delta^0 + \frac1L\big(\frac{1}{6\sqrt2} + \frac29\big)\frac1n\sum_i\lVert\nabla f_i(x^0)\rVert^2`.

    Example:
        >>> round(lyapunov_bound(initial_gap=1.125, smoothness=1, mean_square_grad=(1.5**2 + 4.5**2) / 2), 5)
        5.51333
    """
    return 1.5 * initial_gap + (1 / (6 * math.sqrt(2)) + 2 / 9) * mean_square_grad / smoothness


@checked()
def deterministic_rule(
    *, smoothness: float, max_grad_norm: float, largest_grad: float, lyapunov: float, steps: int, corrected: bool = True
) -> Clip21Rule:
    r"""Return the rule of Theorem 5, for exact gradients without noise.

    Its bound is :math:`\frac1T\sum\lVert\nabla f(x^t)\rVert^2 \le 2\Delta/(\gamma T)`.

    Args:
        smoothness: The smoothness L of every client's loss.
        max_grad_norm: Clipping threshold C; the theorem needs ``largest_grad`` > 3 C.
        largest_grad: The largest norm B of a client's gradient at the start.
        lyapunov: Delta, from :func:`lyapunov_bound`.
        steps: The number of steps T.
        corrected: Use 1/4 in condition (e). The paper's 2/3 needs more momentum than the theorem sets.

    Example:
        >>> rule = deterministic_rule(smoothness=1, max_grad_norm=1, largest_grad=4.5, lyapunov=5.51333, steps=2000)
        >>> round(rule.lr, 8), rule.binding, round(rule.value, 6)
        (0.00887262, 'lyapunov', 0.621387)
    """
    if not largest_grad > 3 * max_grad_norm:
        raise ValueError(f"largest_grad must be > 3 max_grad_norm = {3 * max_grad_norm:g}, got {largest_grad!r}.")
    c, top = max_grad_norm, smoothness
    limits = {
        "smooth": 1 / (12 * top),
        "lyapunov": c / (48 * top * math.sqrt(top * lyapunov)),
        "clipped": c / (30 * top * (largest_grad - c)),
        "contraction": contraction_limit(c / largest_grad, 1 / 4 if corrected else 2 / 3) / top,
    }
    binding = min(limits, key=limits.__getitem__)
    lr = limits[binding]
    return Clip21Rule(lr, 4 * top * lr, 2 * lyapunov / (lr * steps), limits, binding)


@checked()
def contraction_limit(eta: float, room: float) -> float:
    r"""Return the largest :math:`L\gamma` that condition (e) allows at :math:`\beta = 4L\gamma`.

    It solves :math:`256 y^2 + 48 y = \text{room}\,\eta^2` for :math:`y = (L\gamma)^2`.

    Example:
        >>> round(contraction_limit(1 / 4.5, 1 / 4), 7), round(contraction_limit(1 / 4.5, 2 / 3), 7)
        (0.0160265, 0.0261415)
    """
    return math.sqrt(2 * room * eta**2 / (48 + math.sqrt(2304 + 1024 * room * eta**2)))  # no cancellation at small eta


@dataclass(frozen=True, kw_only=True)
class StochasticConstants:
    r"""The constants of the stochastic theorems, equation (28).

    Attributes:
        smoothness, lyapunov: L and Delta.
        max_grad_norm: Clipping threshold C.
        largest_grad: The largest norm of a client's gradient at the start, without noise.
        gradient_noise: The sub-Gaussian scale sigma of the gradient noise.
        num_clients, steps: n and T.
        failure_probability: alpha.
        dim: The number of parameters d.
        noise_std: The standard deviation of the privacy noise of a message; 0 without privacy.
        corrected: Use 12 instead of the printed 6 in the bound on gradient noise.
    """

    smoothness: float
    lyapunov: float
    max_grad_norm: float
    largest_grad: float
    gradient_noise: float
    num_clients: int
    steps: int
    failure_probability: float
    dim: int = 1
    noise_std: float = 0.0
    corrected: bool = True

    def __post_init__(self) -> None:
        _positive_all(
            smoothness=self.smoothness,
            lyapunov=self.lyapunov,
            max_grad_norm=self.max_grad_norm,
            gradient_noise=self.gradient_noise,
            num_clients=self.num_clients,
            steps=self.steps,
        )
        _arrays.probability("failure_probability", self.failure_probability)
        _arrays.positive("dim", self.dim)
        for name in ("largest_grad", "noise_std"):
            _arrays.non_negative(name, getattr(self, name))
        if not self.max_grad_norm < self.B:
            raise ValueError(
                f"max_grad_norm must be < {self.B:g}, which is largest_grad plus its noise, got {self.max_grad_norm!r}."
            )

    @property
    def k(self) -> float:
        r""":math:`\sqrt2 + 2\sqrt{3\ln(6(T+1)/\alpha)}`."""
        return math.sqrt(2) + 2 * math.sqrt(3 * math.log(6 * (self.steps + 1) / self.failure_probability))

    @property
    def a(self) -> float:
        """The high-probability bound on the accumulated mean noise of all rounds."""
        return self.k * math.sqrt(self.dim) * self.noise_std * math.sqrt(self.steps / self.num_clients)

    @property
    def b(self) -> float:
        """The high-probability bound on the gradient noise of every client and round."""
        factor = (12 if self.corrected else 6) * (self.steps + 1) * self.num_clients / self.failure_probability
        return math.sqrt(2 * self.gradient_noise**2 * math.log(factor))

    @property
    def c(self) -> float:
        r"""The high-probability bound on :math:`\sqrt n` times the mean gradient noise."""
        return self.k * self.gradient_noise

    @property
    def b1(self) -> float:
        r""":math:`\sqrt{3\ln(14(T+1)/\alpha)}`."""
        return math.sqrt(3 * math.log(14 * (self.steps + 1) / self.failure_probability))

    @property
    def B(self) -> float:
        """The largest gradient norm at the start, noise included."""
        return self.largest_grad + self.b

    @property
    def eta(self) -> float:
        """The ratio C / B."""
        return self.max_grad_norm / self.B

    @property
    def s(self) -> float:
        r""":math:`\sqrt2\,(1 + b_1)`."""
        return math.sqrt(2) * (1 + self.b1)

    @property
    def X(self) -> float:
        """The paper's abbreviation in (61), (63), (65)."""
        return math.sqrt(4 * self.smoothness * self.lyapunov) + 1.5 * (self.B - self.max_grad_norm) + 2 * self.b

    @property
    def Y(self) -> float:
        """The paper's abbreviation in (62), (64), (66)."""
        return math.sqrt(64 * self.smoothness * self.lyapunov) + 3 * (self.B - self.max_grad_norm + self.b)

    def shared_limits(self) -> dict[str, float]:
        """Return the three limits on the momentum weight that Theorems 6 and 7 share."""
        c = self.max_grad_norm
        return {
            "lyapunov": c / (32 * math.sqrt(self.smoothness * self.lyapunov)),
            "clipped": c / (18 * (self.B - c)),
            "noise": c / (30 * self.b),
        }


def stochastic_rule(constants: StochasticConstants) -> Clip21Rule:
    r"""Return the rule of Theorem 7, for stochastic gradients without privacy noise.

    :math:`\beta = 4L\gamma`, and the bound is :math:`4\Delta/(\gamma T)`. The condition on the contraction is corrected
    (1/4 instead of 2/3).

    Example:
        >>> rule = stochastic_rule(StochasticConstants(smoothness=1, lyapunov=1, max_grad_norm=1, largest_grad=1,
        ...     gradient_noise=0.1, num_clients=4, steps=10_000, failure_probability=0.05))
        >>> rule.binding, round(rule.lr, 9), round(rule.value, 4)
        ('(65)', 3.6134e-05, 11.0699)
    """
    k, energy = constants, constants.smoothness * constants.lyapunov
    t, n, root = k.steps, k.num_clients, math.sqrt(k.num_clients)
    spread = k.s * k.gradient_noise * math.sqrt(t)
    limits = {
        "smooth": 1 / 3,
        **k.shared_limits(),
        "contraction": 4 * contraction_limit(k.eta, 1 / 4),
        "(59) 1": (energy * k.eta / (6 * t * k.b**2)) ** (1 / 3),
        "(59) 2": (energy * k.eta**2 / (24 * t * k.b**2)) ** (1 / 4),
        "(59) 3": (energy * n / (6 * t * k.c**2)) ** (1 / 2),
        "(60)": (energy * root * k.eta / (4 * spread * k.B)) ** (1 / 2),
        "(61)": (energy * k.eta * root / (4 * spread * k.X)) ** (1 / 3),
        "(62)": (energy * k.eta * root / (spread * k.Y)) ** (1 / 4),
        "(63)": (energy * k.eta**2 * root / (16 * spread * k.X)) ** (1 / 3),
        "(64)": (energy * k.eta**2 * root / (4 * spread * k.Y)) ** (1 / 4),
        "(65)": energy * root / (32 * spread * k.X),
        "(66)": (energy * root / (4 * spread * k.Y)) ** (1 / 2),
    }
    binding = min(limits, key=limits.__getitem__)
    beta = limits[binding]
    lr = beta / (4 * k.smoothness)
    return Clip21Rule(lr, beta, 4 * k.lyapunov / (lr * t), limits, binding)


def private_rule(constants: StochasticConstants) -> Clip21Rule:
    r"""Return the rule of Theorem 6, for stochastic gradients with privacy noise.

    :math:`\beta = 3(L\gamma)^{0.2}`, and the bound is :math:`4\Delta/(\gamma T)`. The paper's proof applies a lemma
    that does not hold with noise, so the bound is proved only where :math:`T\gamma a^2 \le \Delta`; elsewhere this
    function adds :math:`2a^2`. Printed constants that are too small are corrected. The step sizes are astronomically
    small.

    Example:
        >>> rule = private_rule(StochasticConstants(smoothness=1, lyapunov=1, max_grad_norm=1, largest_grad=1,
        ...     gradient_noise=0.1, num_clients=4, steps=10_000, failure_probability=0.05, dim=10, noise_std=0.01))
        >>> rule.binding, rule.momentum_weight, f"{rule.lr:.5e}"
        ('lyapunov', 0.03125, '1.22643e-10')
    """
    k, p = constants, 0.8
    limits = {"smooth": 3 * (1 / 12) ** (1 - p), "one": 1.0, **k.shared_limits(), **_private_limits(k, p)}
    limits["contraction"] = 3 * _least_root(k.eta) ** (1 - p)
    binding = min(limits, key=limits.__getitem__)
    beta = limits[binding]
    lr = (beta / 3) ** 5 / k.smoothness
    missing = 0.0 if k.steps * lr * k.a**2 <= k.lyapunov else 2 * k.a**2
    first = 4 * k.lyapunov / (lr * k.steps) if lr else math.inf  # the fifth power may underflow
    return Clip21Rule(lr, beta, first + missing, limits, binding)


def _private_limits(k: StochasticConstants, p: float) -> dict[str, float]:
    """Return the limits of Lemma 15 and of (38) to (45), corrected. Those with ``a`` only apply with privacy noise."""
    energy, t, n, root = k.smoothness * k.lyapunov, k.steps, k.num_clients, math.sqrt(k.num_clients)
    spread = k.s * k.gradient_noise * math.sqrt(t)
    signal, eta = energy * root / spread, k.eta
    found = {
        "(38) 1": 3 * (energy * eta / (216 * t * k.b**2)) ** ((1 - p) / (3 - 2 * p)),
        "(38) 2": 3 * (energy * n / (72 * t * k.c**2)) ** ((1 - p) / (2 - p)),
        "(38) 3": 3 * (energy * eta**2 / (2592 * t * k.b**2)) ** ((1 - p) / (4 - 3 * p)),
        "(39)": 3 * (signal * eta / (48 * k.B)) ** ((1 - p) / (2 - p)),
        "(40)": 3 * (signal * eta / (288 * k.X)) ** ((1 - p) / (3 - 2 * p)),
        "(41)": 3 * (signal * eta / (288 * k.Y)) ** ((1 - p) / (4 - 2 * p)),
        "(42)": 3 * (signal * eta**2 / (1152 * k.X)) ** ((1 - p) / (3 - 2 * p)),
        "(43)": (signal * eta**2 / (1152 * k.Y)) ** ((1 - p) / (4 - 2 * p)),
        "(44)": 3 * (signal / (32 * k.X)) ** (1 - p),
        "(45)": (signal / (32 * k.Y)) ** ((1 - p) / 2),
    }
    if k.a == 0:
        return found
    return found | {
        "Lemma 15": (k.max_grad_norm / (48 * k.a)) ** (1 - p),
        "(40) a": 3 * (signal * eta / (288 * k.a)) ** ((1 - p) / (3 - p)),
        "(41) a": 3 * (signal * eta / (864 * k.a)) ** ((1 - p) / (4 - 2 * p)),
        "(42) a": 3 * (signal * eta**2 / (1152 * k.a)) ** ((1 - p) / (3 - p)),
        "(43) a": (signal * eta**2 / (3456 * k.a)) ** ((1 - p) / (4 - 2 * p)),
        "(44) a": (signal / (32 * k.a)) ** ((1 - p) / (1 + p)),
        "(45) a": (signal / (96 * k.a)) ** ((1 - p) / 2),
    }


def _least_root(eta: float) -> float:
    """Return x = L gamma with 16 (9 x^0.4) x^2 + 48 x^2 = 2 eta^2 / 3: condition (e) of Theorem 6 as an equality."""
    from scipy.optimize import brentq

    def over(x: float) -> float:
        return 144 * x**2.4 + 48 * x**2 - 2 / 3 * eta**2

    return float(brentq(over, 0.0, 1.0, xtol=1e-300))  # type: ignore[arg-type]


def _positive_all(**values: float) -> None:
    for name, value in values.items():
        _arrays.positive(name, value)
