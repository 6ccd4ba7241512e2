"""Events that do not depend on how records are sampled: Laplace noise, and zero-concentrated privacy."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from tacita import _validate
from tacita.accounting._loss_law import LARGEST_LOSS
from tacita.accounting.events.event import Event, over_noise
from tacita.accounting.events.guarantee import Guarantee, curve_of, gaussian, no_guarantee
from tacita.accounting.laplace_pair import LaplacePair


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
        parts = ((LaplacePair(query), queries),)
        return Guarantee(
            pure_epsilon=pure,
            pairs=(lambda: parts) if query <= LARGEST_LOSS else None,
            rdp=curve_of(lambda: parts),
        )


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


def _zcdp_delta(rho: float, epsilon: float) -> float:
    def log_delta(log_order_minus_one: float) -> float:
        a = 1 + math.exp(log_order_minus_one)
        return (a - 1) * (a * rho - epsilon + math.log1p(-1 / a)) - math.log(a)

    centre = math.log(max(1e-3, epsilon / (2 * rho)))
    found = minimize_scalar(log_delta, bounds=(-7.0, centre + 7.0), method="bounded", options={"xatol": 1e-9})
    return min(1.0, math.exp(min(0.0, float(log_delta(found.x)))))  # type: ignore[attr-defined]
