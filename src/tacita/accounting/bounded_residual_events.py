r"""Events of bounded residuals: a record that is drawn k times moves the whole transcript by at most S(k), once.

Place: [accounting.bounded_residual_events] -> accountant.
Proof: docs/derivations/dicesgd.md, "Bounded residuals" (M2).

:math:`S(k) = m (\sqrt{k}\, C + k\, R)`, C the largest contribution to a query's sum, R the largest residual that enters
the hidden error, m = 1 (2 under replace_one); less if every query injects a fixed share of the error
(:mod:`tacita.accounting.transcript`). There is no factor for the number of queries: the guarantee is one of the whole
session, and so is what a session costs.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.special import log_ndtr, logsumexp
from scipy.stats import binom

from tacita import _validate
from tacita.accounting.events import Event, over_noise
from tacita.accounting.gaussian import SMALL_MU, gaussian_delta
from tacita.accounting.gaussian_events import PoissonSampledEvent
from tacita.accounting.relations import moved
from tacita.accounting.transcript import checked_share, moved_by_shares, moved_when_clipped

UNLIKELY = 1e-22  # chance of more participations than are summed up; counted as a failure
ROUNDED_UP = 1e-9
EXACT = 4096  # participations up to which each has its own term in a moment
WIDTH = 1000  # beyond: so many intervals of participations for a factor e
BLOCK = 2**14  # participations in memory at once, for all orders
LOG_ERROR = 4e-15  # of a binomial's logarithm, a multiple of T log T: that of its log-factorials


@dataclass(frozen=True, kw_only=True)
class BoundedResidualEvent(Event):
    """Sums of bounded contributions and a hidden error of bounded residuals; subclasses say how records are drawn.

    Attributes:
        max_contribution: Largest L2 norm C that one record adds to a query's sum.
        max_residual: Largest L2 norm R that one record adds to the error, each time it is drawn.
        noise_std: Standard deviation of the noise on the sum; 0 is allowed and not private.
        injected_share: The share of the error that every query injects, whatever its length, in (0, 1]; None if the
            error is clipped before it is injected.
        leak: Share of the rest that is forgotten, in [0, 1); it matters to the bound with a fixed share alone.
    """

    max_contribution: float
    max_residual: float
    noise_std: float
    injected_share: float | None = None
    leak: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.non_negative, "max_contribution", "max_residual", "noise_std")
        if self.injected_share is not None:
            object.__setattr__(self, "injected_share", checked_share(self.injected_share))
        if not 0 <= self.leak < 1:
            raise ValueError(f"leak must be in [0, 1), got {self.leak!r}.")

    def session_mu(self, participations: int) -> float:
        """``mu`` of the whole session, if the record is drawn so often."""
        return over_noise(moved(self.relation) * self._transcript_moves(participations), self.noise_std)

    def _transcript_moves(self, participations: int) -> float:
        norms = (self.max_contribution, self.max_residual)
        if self.injected_share is None:
            return moved_when_clipped(participations, *norms)
        return moved_by_shares(
            participations,
            *norms,
            share=self.injected_share,
            leak=self.leak,
            queries_per_epoch=self._queries_per_epoch,
        )

    @property
    def _queries_per_epoch(self) -> int:
        """A record is in at most one of so many queries of an epoch."""
        return 1

    @property
    def query_mu(self) -> float:
        """``mu`` of one participation: the unit of the noise multiplier."""
        return self.session_mu(1)

    @property
    def per_query(self) -> bool:
        return False

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            "the divisor, and with it the bound on the error, is public",
            "gradients, residuals and the error are clipped by projection onto a ball",
            "the error itself is never released, logged or shared",
        )

    def is_private(self) -> bool:
        return math.isfinite(self.query_mu)

    def describe(self) -> str:
        shares = "" if self.injected_share is None else f", {self.injected_share:.6g} of it injected in each query"
        shares += f", {self.leak:.6g} of the rest forgotten" if self.injected_share is not None and self.leak else ""
        return (
            f"{self.sampler}, hidden error of bounded residuals{shares}, noise_std {self.noise_std:.6g} on a sum with "
            f"max_contribution {self.max_contribution:.6g} and max_residual {self.max_residual:.6g}"
        )


@dataclass(frozen=True, kw_only=True)
class BoundedResidualGaussianEvent(BoundedResidualEvent):
    """A record is in one query of each epoch: one Gaussian query for the session, of S(epochs begun).

    Attributes:
        queries_per_epoch: Batches of an epoch; 1 for full batches, all of them for one pass.
        sampling: How records are drawn, in plain words.
    """

    queries_per_epoch: int
    sampling: str

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count("queries_per_epoch", self.queries_per_epoch)

    @property
    def _queries_per_epoch(self) -> int:
        return self.queries_per_epoch

    @property
    def sampler(self) -> str:
        return f"{self.sampling}, a record is in 1 of {self.queries_per_epoch} queries"

    def gaussian_mu(self, queries: int) -> float:
        return self.session_mu(-(-queries // self.queries_per_epoch))


@dataclass(frozen=True, kw_only=True)
class BoundedResidualPoissonEvent(PoissonSampledEvent, BoundedResidualEvent):
    r"""A record is drawn Binomial(T, q) times.

    :math:`\delta(\epsilon) \le \sum_k \mathrm{Binom}(T, q)(k)\, \delta_G(\epsilon; S(k)/s)`. That is the divergence,
    at every epsilon, of the pair in which k is shown and a Gaussian query of :math:`S(k)/s` follows; so that pair
    dominates, and the session composes with others as a privacy loss distribution or by its Rényi curve.
    """

    def gaussian_mu(self, queries: int) -> float | None:
        if queries == 0 or self.query_mu == 0:
            return 0.0
        return self.session_mu(queries) if self.sampling_probability == 1 else None

    def _own_delta(self, epsilon: float, queries: int) -> float:
        chances, mus, missed = self._participations(queries)
        return min(1.0, _mixed_delta(np.array([epsilon]), chances, mus)[0] * (1 + ROUNDED_UP) + missed)

    def _own_pld(self, queries: int, interval: float) -> PrivacyLossDistribution:
        chances, mus, missed = self._participations(queries)
        return _mixed_pld(tuple(chances), tuple(mus), missed, interval)

    def _own_rdp(self, queries: int, orders: np.ndarray) -> np.ndarray:
        a = np.asarray(orders, dtype=float)
        counts, log_chances = self._intervals(queries)
        total = np.zeros(len(a))  # log of the moment: 1 and the sum of P(k) (exp(...) - 1)
        for start in range(0, len(counts), BLOCK):
            block = slice(start, start + BLOCK)
            mus = np.array([self.session_mu(int(k)) for k in counts[block]])
            exponents = np.outer(a * (a - 1), mus**2 / 2)
            excess = exponents + np.log(-np.expm1(-exponents)) + log_chances[block]
            total = np.logaddexp(total, np.asarray(logsumexp(excess, axis=1)))
        return total / (a - 1) * (1 + ROUNDED_UP)

    def loss_range(self, queries: int) -> float:
        largest = float(self._participations(queries)[1].max())
        return largest * (largest / 2 + 10)

    def compositions(self, queries: int) -> int:
        return 1

    def _intervals(self, queries: int) -> tuple[np.ndarray, np.ndarray]:
        """Participations from 1 on, and logarithms of upper bounds of their chances.

        One by one as far as they are likely; then the upper ends of intervals, with the chance of that interval and all
        above it. What is summed rises with the participations, so an upper end stands for its interval.
        """
        q = self.sampling_probability
        alone = min(queries, max(EXACT, _likely(queries, q)))
        ends = [alone]
        while ends[-1] < queries:
            ends.append(min(queries, ends[-1] + max(1, ends[-1] // WIDTH)))
        first = np.array(ends[:-1], dtype=float) + 1  # of each interval
        ratio = (queries - first) / (first + 1) * (q / (1 - q))  # of the next chance to the first; it falls
        counts = np.arange(1, alone + 1)
        log_chances = [binom.logpmf(counts, queries, q), binom.logpmf(first, queries, q) - np.log1p(-ratio)]
        error = LOG_ERROR * queries * math.log(queries + 1)
        return np.concatenate([counts, ends[1:]]).astype(int), np.concatenate(log_chances) + error

    def _participations(self, queries: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Chances and mus of 0, 1, ... participations, and the chance of more than those."""
        law = (queries, self.sampling_probability)
        most = _likely(*law)
        counts = np.arange(most + 1)
        mus = np.array([self.session_mu(int(k)) for k in counts])
        return binom.pmf(counts, *law), mus, float(binom.sf(most, *law))


def _likely(queries: int, chance: float) -> int:
    """The least number of participations that is passed with a chance of at most ``UNLIKELY``.

    By bisection: SciPy's ``isf`` takes chances below 1e-16 for 0.
    """
    low, high = -1, queries
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if binom.sf(middle, queries, chance) <= UNLIKELY else (middle, high)
    return high


def _mixed_delta(epsilons: np.ndarray, chances: np.ndarray, mus: np.ndarray) -> np.ndarray:
    """Mean of the Gaussian deltas at each epsilon."""
    total = np.zeros(len(epsilons))
    for chance, mu in zip(chances, mus, strict=True):
        total += chance * _gaussian_deltas(epsilons, float(mu))
    return total


def _gaussian_deltas(epsilons: np.ndarray, mu: float) -> np.ndarray:
    if mu < SMALL_MU or not math.isfinite(mu) or len(epsilons) == 1:
        return np.array([gaussian_delta(mu, float(epsilon)) for epsilon in epsilons])
    size = np.abs(epsilons)
    upper, lower = log_ndtr(mu / 2 - size / mu), size + log_ndtr(-mu / 2 - size / mu)
    found = -np.exp(upper) * np.expm1(np.minimum(0.0, lower - upper))
    return np.where(epsilons < 0, -np.expm1(-size) + np.exp(-size) * found, found)


@lru_cache(maxsize=8)
def _mixed_pld(
    chances: tuple[float, ...], mus: tuple[float, ...], missed: float, interval: float
) -> PrivacyLossDistribution:
    """The pair that shows k and then answers one Gaussian query of ``mus[k]``; symmetric."""
    last = math.ceil(mus[-1] * (mus[-1] / 2 + 10) / interval)
    epsilons = np.arange(-last, last + 1) * interval
    deltas = _mixed_delta(epsilons, np.array(chances), np.array(mus)) + missed
    deltas = np.maximum.accumulate(np.clip(deltas, 0.0, 1.0)[::-1])[::-1]
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, deltas)
    return PrivacyLossDistribution(pmf)
