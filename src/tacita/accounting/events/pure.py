"""Events that do not depend on how records are sampled: Laplace noise, shares, zCDP."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant
from scipy.optimize import minimize_scalar

from tacita import _validate
from tacita.accounting._loss_law import LARGEST_LOSS
from tacita.accounting._pairs import LaplacePair, ResponsePair
from tacita.accounting._renyi import ROUNDED_UP, SMALL, above_line
from tacita.accounting.events.event import Event, over_noise
from tacita.accounting.events.guarantee import Guarantee, gaussian, no_guarantee


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

    @property
    def query_epsilon(self) -> float:
        """Epsilon of one query."""
        return over_noise(self.l1_sensitivity, self.scale)

    def _guarantee(self, queries: int) -> Guarantee:
        pure, query = over_noise(queries * self.l1_sensitivity, self.scale), self.query_epsilon
        if pure == 0:
            return gaussian(0.0, pure_epsilon=pure)
        if math.isinf(query):
            return no_guarantee()
        return Guarantee(
            pure_epsilon=pure,
            pairs=(lambda: ((LaplacePair(query), queries),)) if query <= LARGEST_LOSS else None,
            rdp=lambda orders: queries * _laplace_rdp(query, tuple(map(float, orders))),
        )


@dataclass(frozen=True, kw_only=True)
class ApproximateDPEvent(Event):
    """A share: the whole session is (epsilon, delta)-private, however the sessions inside it are accounted.

    Attributes:
        epsilon: >= 0, fixed before the first release of any session that it is composed with.
        delta_share: The delta of the share, in [0, 1), likewise fixed.
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

    def _guarantee(self, queries: int) -> Guarantee:
        return pure_guarantee(self.epsilon if queries else 0.0, self.delta_share if queries else 0.0)


@dataclass(frozen=True, kw_only=True)
class ZCDPEvent(Event):
    r"""Each query is rho-zero-concentrated private: Rényi divergence at most :math:`\rho a` at every order a.

    Source: Bun and Steinke (2016), https://arxiv.org/abs/1605.02065; conversion of Canonne, Kamath and Steinke (2020),
    Proposition 12, https://arxiv.org/abs/2004.00010, minimised over all orders.

    Attributes:
        rho: The cost of one query, >= 0; the costs of queries add up.
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

    def _guarantee(self, queries: int) -> Guarantee:
        if queries * self.rho == 0:
            return gaussian(0.0)
        return Guarantee(
            rdp=lambda orders: queries * self.rho * np.asarray(orders, dtype=float),
            delta=lambda epsilon: _zcdp_delta(queries * self.rho, epsilon),
        )


def pure_guarantee(epsilon: float, additive_delta: float = 0.0) -> Guarantee:
    """Return the guarantee of an (epsilon, 0)-private session, with ``additive_delta`` added to delta.

    The dominating pair is randomised response. Source: Kairouz, Oh and Viswanath (2015),
    https://arxiv.org/abs/1311.0776.
    """
    if epsilon == 0:
        return gaussian(0.0, pure_epsilon=0.0, additive_delta=additive_delta)
    return Guarantee(
        pure_epsilon=epsilon,
        additive_delta=additive_delta,
        pairs=(lambda: ((ResponsePair(epsilon), 1),)) if epsilon <= LARGEST_LOSS else None,
        delta=lambda at: _response_delta(epsilon, at),
        rdp=lambda orders: _response_rdp(epsilon, orders),
    )


def _response_delta(epsilon: float, at: float) -> float:
    above = -math.expm1(min(0.0, at - epsilon))  # (e^e0 - e^e) / (e^e0 + 1)
    return max(above / (1 + math.exp(-epsilon)), -math.expm1(min(0.0, at)))


def _response_rdp(epsilon: float, orders: np.ndarray) -> np.ndarray:
    a = np.asarray(orders, dtype=float)
    if epsilon > 1:
        moments = np.logaddexp(a * epsilon, (1 - a) * epsilon) - np.logaddexp(0.0, epsilon)
        return np.minimum(epsilon, moments / (a - 1))
    half = epsilon / 2  # the same, accurate near 1: a difference of cosh as a product of sinh
    with np.errstate(over="ignore"):
        excess = 2 * np.sinh(a * half) * np.sinh((a - 1) * half) / math.cosh(half)
    return np.minimum(epsilon, np.log1p(excess) / (a - 1))


def _zcdp_delta(rho: float, epsilon: float) -> float:
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
    a = np.array(
        orders
    )  # a small excess of a moment is a sum without negative terms; the library's difference loses it
    excess = (a * above_line((a - 1) * epsilon) + (a - 1) * above_line(-a * epsilon)) / (2 * a - 1)
    small = np.log1p(np.minimum(excess, SMALL)) * (1 + ROUNDED_UP) / (a - 1)
    return np.where(excess < SMALL, small, accountant.rdp * (1 + ROUNDED_UP))
