r"""The tight event of a hidden error under Poisson sampling: until a record is first drawn, nothing shows it.

Proof: docs/derivations/dicesgd.md, "The first draw" (O3). The whole session is dominated, in each direction on its own,
by

.. math:: P: y^t = b_t C + D \cdot 1[b_s = 1 \text{ for some } s < t] + N(0, s^2), \qquad Q: y^t = N(0, s^2),

with independent coins :math:`b_t` of chance q. Its Rényi divergences of whole orders from P to Q are sums over how
many of :math:`\alpha` replicas were drawn already. Those from Q to P are bounded by the mean of the exponents.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from tacita.accounting.events.guarantee import Guarantee, gaussian
from tacita.accounting.events.wrapped import OuterEvent
from tacita.accounting.sampling_laws import PoissonLaw
from tacita.error_feedback.hidden_errors import HiddenErrorEvent
from tacita.errors import UnsupportedEventError

WHOLE_ORDERS = (*range(2, 33), 40, 48, 56, 64)  # at these, moments are computed; in between they are interpolated
ROUNDING = 2.0**-46  # of a log-moment, per query, relative to the exponents in it


@dataclass(frozen=True, kw_only=True)
class FirstDrawEvent(OuterEvent):
    """A hidden error under Poisson sampling, accounted by the first draw of a record: a Rényi curve, both directions.

    Attributes:
        inner: The same session charged query by query: a :class:`HiddenErrorEvent` under a :class:`PoissonLaw` with an
            amplified batch.
    """

    inner: HiddenErrorEvent

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = self.inner
        if not (isinstance(inner, HiddenErrorEvent) and isinstance(inner.sampling, PoissonLaw) and inner.amplified):
            raise UnsupportedEventError(
                "FirstDrawEvent has a guarantee for a HiddenErrorEvent under a PoissonLaw, and add_or_remove_one or "
                f"zero_out_one; got {self.inner!r}."
            )

    @property
    def per_query(self) -> bool:
        return False

    def describe(self) -> str:
        return f"{self.inner.describe()}; by the first draw"

    def _guarantee(self, queries: int) -> Guarantee:
        each_query = self.inner.guarantee(queries)
        if each_query.mu is not None:
            return gaussian(each_query.mu)
        return Guarantee(rdp=lambda orders: self._rdp(queries, orders))

    def _rdp(self, queries: int, orders: np.ndarray) -> np.ndarray:
        inner = self.inner
        assert isinstance(inner.sampling, PoissonLaw)
        jump, step = inner.max_error_change / inner.noise_std, inner.max_contribution / inner.noise_std
        key = (inner.sampling.sample_rate, jump, step, queries)
        forward = forward_divergences(*key, tuple(map(float, orders)))
        backward = backward_divergences(*key, np.asarray(orders, dtype=float))
        each_query = inner.guarantee(queries).rdp
        assert each_query is not None
        return np.minimum(
            each_query(orders), np.maximum(forward, backward)
        )  # both are valid; the first is smaller at large orders


@lru_cache(maxsize=64)
def forward_divergences(chance: float, jump: float, step: float, queries: int, orders: tuple[float, ...]) -> np.ndarray:
    """Return upper bounds of the divergences of P from Q, in units of the noise; infinite beyond the largest order.

    They are exact at whole orders up to rounding. Moments are log-convex in the order, so between two whole orders the
    logarithm lies below the chord.
    """
    needed = [a for a in WHOLE_ORDERS if a - 1 < max(orders)]
    known = [float(a) for a in (*needed, *[a for a in WHOLE_ORDERS if a >= max(orders)][:1])]
    known = sorted(set(known))
    logs = [_log_moment(chance, jump, step, queries, int(a)) for a in known]
    between = np.interp(orders, [1.0, *known], [0.0, *logs], right=np.inf)
    return between / (np.array(orders) - 1)


def backward_divergences(chance: float, jump: float, step: float, queries: int, orders: np.ndarray) -> np.ndarray:
    r"""Return upper bounds of the divergences of Q from P.

    Let m be the random mean of P. The likelihood ratio P/Q is at least
    :math:`\exp(\langle \bar m, y \rangle - E|m|^2/2)` (Jensen), hence
    :math:`D_a(Q \Vert P) \le \frac12 ((a - 1) |\bar m|^2 + E |m|^2)`.
    """
    drawn = -np.expm1(np.arange(queries) * np.log1p(-chance))  # the record was drawn before query t
    mean = chance * step + jump * drawn
    square = (1 - drawn) * chance * step**2 + drawn * ((1 - chance) * jump**2 + chance * (jump + step) ** 2)
    return ((orders - 1) * np.sum(mean**2) + np.sum(square)) / 2 * (1 + 1e-9)


def _log_moment(chance: float, jump: float, step: float, queries: int, order: int) -> float:
    """Return log E_Q (P/Q)^order, rounded up, from a power of the transition matrix of replicas drawn so far."""
    moves, largest = _transitions(chance, jump, step, order)
    row = np.full(order + 1, -np.inf)
    row[0] = 0.0
    left, squared = queries, moves
    while left:
        if left & 1:
            row = np.asarray(logsumexp(row[:, None] + squared, axis=0))
        left >>= 1
        if left:
            squared = np.asarray(logsumexp(squared[:, :, None] + squared[None, :, :], axis=1))
    return float(np.asarray(logsumexp(row))) + queries * ROUNDING * (1 + largest)


def _transitions(chance: float, jump: float, step: float, order: int) -> tuple[np.ndarray, float]:
    """Return log weights of the transitions from n to n + m0 replicas drawn, and the largest exponent in them."""
    moves, largest = np.full((order + 1, order + 1), -np.inf), 0.0
    for n in range(order + 1):
        again, new = np.arange(n + 1)[:, None], np.arange(order - n + 1)[None, :]
        total = n * jump + (again + new) * step
        alone = (n - again) * jump**2 + again * (jump + step) ** 2 + new * step**2
        exponents = (total**2 - alone) / 2
        largest = max(largest, float(np.max(np.abs(exponents))))
        weights = _log_binomial(n, again, chance) + _log_binomial(order - n, new, chance)
        moves[n, n:] = logsumexp(weights + exponents, axis=0)
    return moves, largest


def _log_binomial(n: int, k: np.ndarray, chance: float) -> np.ndarray:
    choose = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return choose + k * np.log(chance) + (n - k) * np.log1p(-chance)
