"""Events known by their parameters alone: Laplace noise, a share of (epsilon, delta), zero-concentrated privacy.

Place: [accounting.pure_events] -> accountant.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from scipy.optimize import minimize_scalar

from tacita import _validate
from tacita.accounting import _pld
from tacita.accounting._renyi import ROUNDED_UP, SMALL, above_line
from tacita.accounting.events import Event, over_noise

LARGEST_EXPONENT = 700.0  # exp of it is still a float


@dataclass(frozen=True, kw_only=True)
class LaplaceEvent(Event):
    """A value of bounded L1 sensitivity with Laplace noise on every entry.

    Attributes:
        l1_sensitivity: Largest L1 distance between neighbours under ``relation`` (no factor is added to it).
        scale: Scale of the noise, its mean absolute value; 0 is allowed and not private.
    """

    l1_sensitivity: float
    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.non_negative, "l1_sensitivity", "scale")

    @property
    def sampler(self) -> str:
        return "Laplace noise on all records"

    def describe(self) -> str:
        return f"Laplace noise of scale {self.scale:.6g} on a value with L1 sensitivity {self.l1_sensitivity:.6g}"

    def is_private(self) -> bool:
        return self.scale > 0 or self.l1_sensitivity == 0

    def gaussian_mu(self, queries: int) -> float | None:
        return 0.0 if queries == 0 or self.l1_sensitivity == 0 else None

    def pure_epsilon(self, queries: int) -> float:
        return over_noise(queries * self.l1_sensitivity, self.scale)

    def _own_pld(self, queries: int, interval: float) -> _pld.PrivacyLossDistribution | None:
        return _pld.laplace_pld(self.scale / self.l1_sensitivity, queries, interval) if self.is_private() else None

    def _own_rdp(self, queries: int, orders: np.ndarray) -> np.ndarray:
        return queries * _laplace_rdp(self.pure_epsilon(1), tuple(map(float, orders)))

    def loss_range(self, queries: int) -> float:
        return 2 * self.pure_epsilon(1)


@dataclass(frozen=True, kw_only=True)
class ApproximateDPEvent(Event):
    """A share: the whole session is (epsilon, delta)-private, by whatever accounting inside it.

    Attributes:
        epsilon: >= 0, fixed before the first release of any session it is composed with.
        delta: In [0, 1), likewise.
    """

    # Source: composed with others as the pair that dominates all (epsilon, 0)-private mechanisms, randomised response
    # (Kairouz, Oh and Viswanath 2015, https://arxiv.org/abs/1311.0776), delta added.
    epsilon: float
    delta_share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.non_negative, "epsilon")
        self._check(_validate.below_one, "delta_share")

    @property
    def per_query(self) -> bool:
        return False

    @property
    def sampler(self) -> str:
        return "A share of the budget"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("the share was fixed before the first release", "the sessions inside it stay within it")

    def describe(self) -> str:
        return f"A share of epsilon {self.epsilon:.6g} and delta {self.delta_share:.6g}"

    def additive_delta(self, queries: int) -> float:
        return self.delta_share if queries else 0.0

    def gaussian_mu(self, queries: int) -> float | None:
        return 0.0 if queries == 0 or self.epsilon == 0 else None

    def pure_epsilon(self, queries: int) -> float:
        return self.epsilon if queries else 0.0

    def _own_delta(self, epsilon: float, queries: int) -> float:
        above = -math.expm1(min(0.0, epsilon - self.epsilon))  # (e^e0 - e^e) / (e^e0 + 1)
        return max(above / (1 + math.exp(-self.epsilon)), -math.expm1(min(0.0, epsilon)))

    def _own_pld(self, queries: int, interval: float) -> _pld.PrivacyLossDistribution | None:
        return _pld.pure_pld(self.epsilon, interval) if self.epsilon <= LARGEST_EXPONENT else None

    def _own_rdp(self, queries: int, orders: np.ndarray) -> np.ndarray:
        a = np.asarray(orders, dtype=float)
        if self.epsilon > 1:
            moments = np.logaddexp(a * self.epsilon, (1 - a) * self.epsilon) - np.logaddexp(0.0, self.epsilon)
            return np.minimum(self.epsilon, moments / (a - 1))
        half = self.epsilon / 2  # the same, accurate near 1: a difference of cosh as a product of sinh
        with np.errstate(over="ignore"):
            excess = 2 * np.sinh(a * half) * np.sinh((a - 1) * half) / math.cosh(half)
        return np.minimum(self.epsilon, np.log1p(excess) / (a - 1))

    def loss_range(self, queries: int) -> float:
        return 2 * self.epsilon

    def compositions(self, queries: int) -> int:
        return 1


@dataclass(frozen=True, kw_only=True)
class ZCDPEvent(Event):
    r"""Each query is rho-zero-concentrated private: Rényi divergence at most :math:`\rho a` at every order a.

    Source: Bun and Steinke (2016), https://arxiv.org/abs/1605.02065; conversion of Canonne, Kamath and Steinke (2020),
    Proposition 12, https://arxiv.org/abs/2004.00010, minimised over all orders.

    Attributes:
        rho: Of one query, >= 0; queries add up.
    """

    rho: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.non_negative, "rho")

    @property
    def sampler(self) -> str:
        return "Zero-concentrated privacy"

    def describe(self) -> str:
        return f"Zero-concentrated privacy, rho {self.rho:.6g} a query"

    def gaussian_mu(self, queries: int) -> float | None:
        return 0.0 if queries * self.rho == 0 else None

    def _own_rdp(self, queries: int, orders: np.ndarray) -> np.ndarray:
        return queries * self.rho * np.asarray(orders, dtype=float)

    def _own_delta(self, epsilon: float, queries: int) -> float:
        rho = queries * self.rho

        def log_delta(log_order_minus_one: float) -> float:
            a = 1 + math.exp(log_order_minus_one)
            return (a - 1) * (a * rho - epsilon + math.log1p(-1 / a)) - math.log(a)

        centre = math.log(max(1e-3, epsilon / (2 * rho)))
        found = minimize_scalar(log_delta, bounds=(-7.0, centre + 7.0), method="bounded", options={"xatol": 1e-9})
        return min(1.0, math.exp(min(0.0, float(log_delta(found.x)))))  # type: ignore[attr-defined]


@lru_cache(maxsize=64)
def _laplace_rdp(epsilon: float, orders: tuple[float, ...]) -> np.ndarray:
    accountant = rdp_privacy_accountant.RdpAccountant(orders)
    accountant.compose(dp_event.LaplaceDpEvent(1 / epsilon))
    a = np.array(orders)  # a small moment's excess is a sum of what is not negative; the library's difference loses it
    excess = (a * above_line((a - 1) * epsilon) + (a - 1) * above_line(-a * epsilon)) / (2 * a - 1)
    small = np.log1p(np.minimum(excess, SMALL)) * (1 + ROUNDED_UP) / (a - 1)
    return np.where(excess < SMALL, small, accountant.rdp * (1 + ROUNDED_UP))
