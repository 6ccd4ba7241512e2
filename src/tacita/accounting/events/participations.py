r"""Sessions that a record moves by its number of draws, once: what they spend, by the law of that number.

A record that is drawn k times moves the whole transcript by at most :math:`S(k)`, which the session states. There is no
factor for the number of queries: guarantee and cost are those of the whole session. Proof:
docs/derivations/dicesgd.md, "Bounded residuals" (M2).
"""

import math
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.special import logsumexp
from scipy.stats import binom

from tacita.accounting._gaussian_mixture import ShownGaussianPair, mixed_deltas, on_fewer_nodes
from tacita.accounting.events.guarantee import Guarantee, gaussian
from tacita.accounting.sampling_laws import PoissonLaw, SamplingLaw

UNLIKELY = 1e-22  # chance of more participations than are summed over; it is counted as a failure
ROUNDED_UP = 1e-9
EXACT = 4096  # participations up to which each has its own term in a moment
WIDTH = 1000  # beyond EXACT: number of intervals for a factor e of participations
BLOCK = 2**14  # participations in memory at once, for all orders
LOG_ERROR = 4e-15  # of a binomial's logarithm, a multiple of T log T: that of its log-factorials


class MovesByDraws(Protocol):
    """A session that a record moves by its number of draws, once; hashable, because its chances are remembered."""

    @property
    def sampling(self) -> SamplingLaw:
        """How records enter the queries."""
        ...

    @property
    def query_mu(self) -> float:
        """``mu`` of one participation."""
        ...

    def session_mu(self, participations: int) -> float:
        """Return ``mu`` of the whole session; it never falls in the number of participations."""
        ...


def by_most_draws(event: MovesByDraws, queries: int) -> Guarantee:
    """Charge one Gaussian query of sensitivity S(epochs begun): a record is in one query of each epoch."""
    return gaussian(event.session_mu(event.sampling.most_draws(queries)))


def by_chance_of_draws(event: MovesByDraws, queries: int) -> Guarantee:
    r"""Charge a record that is drawn Binomial(T, q) times.

    :math:`\delta(\epsilon) \le \sum_k \mathrm{Binom}(T, q)(k)\, \delta_G(\epsilon; S(k)/s)`. That is the divergence,
    at every epsilon, of the pair in which k is shown and a Gaussian query of :math:`S(k)/s` follows. So that pair
    dominates, and the session composes with others by a privacy loss distribution or by its Rényi curve.
    """
    law = event.sampling
    assert isinstance(law, PoissonLaw)
    if queries == 0 or event.query_mu == 0:
        return gaussian(0.0)
    if law.sample_rate == 1:
        return gaussian(event.session_mu(queries))
    return Guarantee(
        delta=lambda epsilon: _delta(event, queries, epsilon),
        pairs=lambda: ((_pair(event, queries), 1),),
        rdp=lambda orders: _rdp(event, queries, orders),
    )


def _delta(event: MovesByDraws, queries: int, epsilon: float) -> float:
    chances, mus, missed = _session(event, queries)
    return min(1.0, float(mixed_deltas(np.array([epsilon]), chances, mus)[0]) * (1 + ROUNDED_UP) + missed)


def _pair(event: MovesByDraws, queries: int) -> ShownGaussianPair:
    chances, mus, missed = _session(event, queries)
    fewer, nodes = on_fewer_nodes(chances, mus)
    return ShownGaussianPair(tuple(nodes.tolist()), tuple(fewer.tolist()), missed)


def _rdp(event: MovesByDraws, queries: int, orders: np.ndarray) -> np.ndarray:
    a = np.asarray(orders, dtype=float)
    counts, log_chances = _intervals(queries, _chance(event))
    total = np.zeros(len(a))  # log of the moment: 1 and the sum of P(k) (exp(...) - 1)
    for start in range(0, len(counts), BLOCK):
        block = slice(start, start + BLOCK)
        exponents = np.outer(a * (a - 1), _session_mus(event, counts[block]) ** 2 / 2)
        excess = exponents + np.log(-np.expm1(-exponents)) + log_chances[block]
        total = np.logaddexp(total, np.asarray(logsumexp(excess, axis=1)))
    return total / (a - 1) * (1 + ROUNDED_UP)


def _intervals(queries: int, q: float) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of participations from 1 on, and logarithms of upper bounds of their chances.

    Likely numbers stand for themselves. Beyond them, the upper end of an interval stands for its interval, with the
    chance of that interval and all above it. The terms of the sum rise with the participations, so this gives an upper
    bound; likewise, the first likely number stands for all numbers below it.
    """
    least, alone = max(1, _rarely_fewer(queries, q)), min(queries, max(EXACT, _likely(queries, q)))
    ends = [alone]
    while ends[-1] < queries:
        ends.append(min(queries, ends[-1] + max(1, ends[-1] // WIDTH)))
    first = np.array(ends[:-1], dtype=float) + 1  # of each interval
    ratio = (queries - first) / (first + 1) * (q / (1 - q))  # of the next chance to the first; it falls
    counts = np.arange(least, alone + 1)
    likely = binom.logpmf(counts, queries, q)
    likely[0] = np.logaddexp(likely[0], binom.logcdf(least - 1, queries, q)) if least > 1 else likely[0]
    error = LOG_ERROR * queries * math.log(queries + 1)
    log_chances = np.concatenate([likely, binom.logpmf(first, queries, q) - np.log1p(-ratio)])
    return np.concatenate([counts, ends[1:]]).astype(int), log_chances + error


def _participations(queries: int, chance: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return likely numbers of participations, their chances, and the chance of larger numbers.

    The first number also stands for all smaller ones.
    """
    law = (queries, chance)
    least, most = _rarely_fewer(*law), _likely(*law)
    counts = np.arange(least, most + 1)
    chances = binom.pmf(counts, *law)
    chances[0] = binom.cdf(least, *law)
    return counts, chances, float(binom.sf(most, *law))


def _session_mus(event: MovesByDraws, counts: np.ndarray) -> np.ndarray:
    return np.array([event.session_mu(int(k)) for k in counts])


def _chance(event: MovesByDraws) -> float:
    assert isinstance(event.sampling, PoissonLaw)
    return event.sampling.sample_rate


@lru_cache(maxsize=16)
def _session(event: MovesByDraws, queries: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return chances and mus of the likely numbers of participations, and the chance of larger numbers."""
    counts, chances, missed = _participations(queries, _chance(event))
    mus, same = np.unique(_session_mus(event, counts), return_inverse=True)  # rising; a cap makes some of them equal
    return np.bincount(same, chances), mus, missed


def _rarely_fewer(queries: int, chance: float) -> int:
    """Return a number of participations such that fewer have a chance of at most ``UNLIKELY``."""
    low, high = 0, queries
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if binom.cdf(middle - 1, queries, chance) <= UNLIKELY else (low, middle)
    return low


def _likely(queries: int, chance: float) -> int:
    """Return the least number of participations such that more have a chance of at most ``UNLIKELY``.

    By bisection, because SciPy's ``isf`` treats chances below 1e-16 as 0.
    """
    low, high = -1, queries
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if binom.sf(middle, queries, chance) <= UNLIKELY else (middle, high)
    return high
