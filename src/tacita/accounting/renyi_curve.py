r"""The Rényi accountant: the divergences of sessions, and the epsilon or delta that follows from them.

Place: dominating_pairs, _renyi, _fixed_size_renyi -> [accounting.renyi_curve] -> accountant.
It is loaded where a curve is asked for: by a filter, by sessions that have no privacy loss distribution, and where the
grid of one is too coarse.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, singledispatch

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant

from tacita.accounting._fixed_size_renyi import fixed_size_divergences
from tacita.accounting._renyi import ROUNDED_UP, SMALL, Mixture, above_line, mixed_divergences, renyi_divergences
from tacita.accounting.dominating_pairs import DominatingPair, Part, ResponsePair
from tacita.accounting.laplace_pair import LaplacePair
from tacita.accounting.line_pairs import EnvelopePair, GaussianPair, MixturePair, ReplacedPair
from tacita.accounting.mixed_pair import MixedPair

ORDERS = np.array([*rdp_privacy_accountant.DEFAULT_RDP_ORDERS, 2048.0])
LOST_MOMENT = 1e-12  # stands for the logarithm of a moment that was rounded to 0

Orders = tuple[float, ...]  # each > 1
Curve = Callable[[np.ndarray], np.ndarray]  # orders -> divergences


class RenyiCurve:
    """The divergences of sessions together, at :data:`ORDERS`.

    Attributes:
        values: The sum of the sessions' own.
    """

    def __init__(self, curves: Sequence[Curve]) -> None:
        self.values = np.sum([curve(ORDERS) for curve in curves], axis=0)

    def epsilon(self, delta: float) -> float:
        """Return epsilon at ``delta``; orders without a finite bound are left out."""
        orders, values = self._usable()
        if not len(orders):
            return math.inf
        return float(rdp_privacy_accountant.compute_epsilon(orders.tolist(), values.tolist(), delta)[0])

    def delta(self, epsilon: float) -> float:
        """Return delta: Canonne, Kamath and Steinke (2020), Proposition 12, or sqrt(1 - exp(-divergence)).

        dp_accounting has the same two bounds, but its 1 - exp(-divergence) vanishes below 1e-16.
        """
        orders, values = self._usable()
        if not len(orders):
            return 1.0
        logs = (orders - 1) * (values - epsilon + np.log1p(-1 / orders)) - np.log(orders)
        return min(1.0, math.exp(min(0.0, float(logs.min()))), math.sqrt(-math.expm1(-float(values.min()))))

    def _usable(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the orders with a finite bound, and the bounds. A zero in a curve that is not 0 is a lost moment."""
        finite = np.isfinite(self.values)
        orders, values = ORDERS[finite], self.values[finite]
        return orders, np.where((values > 0) | ~np.any(self.values), values, LOST_MOMENT / (orders - 1))


def composed_divergences(parts: Sequence[Part], orders: np.ndarray) -> np.ndarray:
    """Return the divergences of pairs that are composed, in both directions."""
    of = tuple(np.asarray(orders, dtype=float).tolist())
    return np.sum([np.zeros(len(of)), *(times * _cached(pair, of) for pair, times in parts)], axis=0)


@lru_cache(maxsize=64)
def _cached(pair: DominatingPair, orders: Orders) -> np.ndarray:
    return divergences(pair, orders)


@singledispatch
def divergences(pair: DominatingPair, orders: Orders) -> np.ndarray:
    """Return the Rényi divergences of a pair at ``orders``, at each the larger one of both directions, rounded up."""
    raise NotImplementedError(f"{type(pair).__name__} has no Rényi curve.")


@divergences.register
def _(pair: GaussianPair, orders: Orders) -> np.ndarray:
    return np.array(orders) * pair.mu**2 / 2


@divergences.register
def _(pair: MixturePair, orders: Orders) -> np.ndarray:
    """For the sampled Gaussian mechanism the other direction is never larger.

    Source: Mironov, Talwar and Zhang (2019), Theorem 5, https://arxiv.org/abs/1908.10530.
    """
    mixture, centre = Mixture(pair.shifts, pair.chances), Mixture((0.0,), (1.0,))
    found = renyi_divergences(mixture, centre, orders)
    return found if pair.is_sampled else np.maximum(found, renyi_divergences(centre, mixture, orders))


@divergences.register
def _(pair: ReplacedPair, orders: Orders) -> np.ndarray:
    chances = (1 - pair.chance, pair.chance)  # dp_accounting has no curve for this pair, which is symmetric
    return renyi_divergences(Mixture((0.0, pair.shift), chances), Mixture((0.0, -pair.shift), chances), orders)


@divergences.register
def _(pair: EnvelopePair, orders: Orders) -> np.ndarray:
    """Return the smaller one of two: that of the envelope, and that of a query that contains every record."""
    return np.fmin(fixed_size_divergences(pair.chance, pair.moved, orders), np.array(orders) * pair.moved**2 / 2)


@divergences.register
def _(pair: MixedPair, orders: Orders) -> np.ndarray:
    both = _cached(pair.usual, orders), _cached(pair.rare, orders)
    return mixed_divergences(both, (1 - pair.chance, pair.chance), orders)


@divergences.register
def _(pair: ResponsePair, orders: Orders) -> np.ndarray:
    a, epsilon = np.array(orders), pair.epsilon
    if epsilon > 1:
        moments = np.logaddexp(a * epsilon, (1 - a) * epsilon) - np.logaddexp(0.0, epsilon)
        return np.minimum(epsilon, moments / (a - 1))
    half = epsilon / 2  # the same, accurate near 1: a difference of cosh as a product of sinh
    with np.errstate(over="ignore"):
        excess = 2 * np.sinh(a * half) * np.sinh((a - 1) * half) / math.cosh(half)
    return np.minimum(epsilon, np.log1p(excess) / (a - 1))


@divergences.register
def _(pair: LaplacePair, orders: Orders) -> np.ndarray:
    accountant = rdp_privacy_accountant.RdpAccountant(orders)
    accountant.compose(dp_event.LaplaceDpEvent(1 / pair.epsilon))
    a = np.array(orders)  # a small excess is a sum without negative terms; the library's difference loses it
    excess = (a * above_line((a - 1) * pair.epsilon) + (a - 1) * above_line(-a * pair.epsilon)) / (2 * a - 1)
    small = np.log1p(np.minimum(excess, SMALL)) * (1 + ROUNDED_UP) / (a - 1)
    return np.where(excess < SMALL, small, accountant.rdp * (1 + ROUNDED_UP))
