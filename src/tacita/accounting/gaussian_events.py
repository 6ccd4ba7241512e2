r"""Events of bounded sums released with Gaussian noise, by the way records enter a query.

Place: [accounting.gaussian_events] -> accountant. Proofs: docs/derivations/accounting.md.

Events hold ``max_contribution`` (C, the largest L2 norm one record adds) and ``noise_std`` (s), one entry a block.
Blocks released together are one Gaussian query after whitening, so only :math:`\sqrt{\sum_l (C_l/s_l)^2}`, the *ratio*,
matters. What the ratio means for neighbours is the relation's to say, through
:func:`~tacita.accounting.relations.moved`.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant

from tacita import _validate
from tacita.accounting import _pld, _renyi
from tacita.accounting.events import DEFAULT_INTERVAL, Event, over_noise, reals
from tacita.accounting.relations import NeighboringRelation, moved
from tacita.errors import UnsupportedEventError

# From here on a Poisson session is accounted without amplification: one query alone costs epsilon > 5000.
UNAMPLIFIED_RATIO = 100.0
LEAST_FIXED_SIZE_SENSITIVITY = 1e-6  # over the noise; less is charged as this: a guarantee of more


@dataclass(frozen=True, kw_only=True)
class PoissonSampledEvent(Event):
    """Each record enters each query by its own coin; another base says what is released.

    Attributes:
        sampling_probability: Chance q of the coin, in (0, 1].
    """

    sampling_probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.probability, "sampling_probability")

    @property
    def sampler(self) -> str:
        return f"Poisson sampling, sample rate {self.sampling_probability:.6g}"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("each record enters each query by an independent secret coin", *super().assumptions)

    def _amplifies(self, ratio: float) -> bool:
        """Whether the coins are counted on, for a query of this ``ratio``."""
        return self.sampling_probability < 1 and ratio <= UNAMPLIFIED_RATIO


@dataclass(frozen=True, kw_only=True)
class GaussianSumEvent(Event):
    """A bounded sum with Gaussian noise; subclasses say how records enter.

    Attributes:
        max_contribution: Largest L2 norm one record adds to the sum, a block; ``inf`` is allowed and not private.
        noise_std: Standard deviation of the noise on the sum, a block; 0 is allowed and not private.
    """

    max_contribution: tuple[float, ...]
    noise_std: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "max_contribution", reals("max_contribution", self.max_contribution, allow_inf=True))
        self._check(reals, "noise_std")
        if len(self.max_contribution) != len(self.noise_std):
            raise ValueError(
                f"noise_std must have one entry a block, {len(self.max_contribution)} of them, "
                f"got {len(self.noise_std)}."
            )

    @property
    def ratio(self) -> float:
        """Whitened contribution of one record: sqrt(sum of (max_contribution / noise_std)^2)."""
        return math.hypot(*map(over_noise, self.max_contribution, self.noise_std))

    @property
    def query_mu(self) -> float:
        """``mu`` of one query that every record is in."""
        return moved(self.relation) * self.ratio

    def is_private(self) -> bool:
        return math.isfinite(self.ratio)

    def describe(self) -> str:
        return f"{self.sampler}, {self._noise_words()}"

    def _noise_words(self) -> str:
        if len(self.noise_std) == 1:
            return f"noise_std {self.noise_std[0]:.6g} on a sum with max_contribution {self.max_contribution[0]:.6g}"
        stds, contributions = (", ".join(f"{x:.6g}" for x in xs) for xs in (self.noise_std, self.max_contribution))
        return f"{len(self.noise_std)} blocks, noise_std {stds} on sums with max_contribution {contributions}"


@dataclass(frozen=True, kw_only=True)
class PlainGaussianEvent(GaussianSumEvent):
    """A session that is ``gaussian_queries(queries)`` Gaussian queries, whatever it does between them."""

    def gaussian_queries(self, queries: int) -> int:
        """How many Gaussian queries the record is in."""
        return queries

    def gaussian_mu(self, queries: int) -> float:
        return self.query_mu * math.sqrt(self.gaussian_queries(queries)) if queries else 0.0


@dataclass(frozen=True, kw_only=True)
class FullBatchGaussianEvent(PlainGaussianEvent):
    """Every record in every query, a public divisor."""

    @property
    def sampler(self) -> str:
        return "Full batch"


@dataclass(frozen=True, kw_only=True)
class HistogramGaussianEvent(PlainGaussianEvent):
    r"""A sum of contributions *without negative entries* (counts), Gaussian noise on every entry.

    Two such contributions have no negative inner product, so replacing one by the other moves the sum by at most
    :math:`\sqrt{2}\,C`, not 2C. One record in each of m histograms: :math:`C = \sqrt{m}`.
    """

    @property
    def sampler(self) -> str:
        return "Noisy counts over all records"

    @property
    def query_mu(self) -> float:
        return math.sqrt(moved(self.relation)) * self.ratio

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("no entry of a contribution is negative",)


@dataclass(frozen=True, kw_only=True)
class OnePassGaussianEvent(PlainGaussianEvent):
    """Disjoint batches: a record is in one query at most; the session is one Gaussian query however many are made."""

    def gaussian_queries(self, queries: int) -> int:
        return min(queries, 1)

    @property
    def per_query(self) -> bool:
        return False

    @property
    def sampler(self) -> str:
        return "Disjoint batches, one pass"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("no record is in two queries of the session", _assignment(self.relation))


@dataclass(frozen=True, kw_only=True)
class ShuffledEpochsGaussianEvent(PlainGaussianEvent):
    """Disjoint batches, anew each epoch: one Gaussian query an epoch begun, no amplification.

    Attributes:
        queries_per_epoch: Batches of an epoch; a record is in one of them.
    """

    queries_per_epoch: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count("queries_per_epoch", self.queries_per_epoch)

    def gaussian_queries(self, queries: int) -> int:
        return -(-queries // self.queries_per_epoch)

    @property
    def per_query(self) -> bool:
        return False

    @property
    def sampler(self) -> str:
        return f"Shuffled epochs of {self.queries_per_epoch} batches"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("no record is in two queries of one epoch", _assignment(self.relation))


@dataclass(frozen=True, kw_only=True)
class PoissonGaussianEvent(PoissonSampledEvent, GaussianSumEvent):
    """Each record enters each query by its own coin; the divisor is public."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (*super().assumptions, "the divisor is public")

    def gaussian_mu(self, queries: int) -> float | None:
        return known_mu(self.query_mu, queries, amplified=self._amplifies(self.ratio))

    def _own_pld(self, queries: int, interval: float) -> _pld.PrivacyLossDistribution:
        return _pld.poisson_pld(self.sampling_probability, self.ratio, self.relation, queries, interval)

    def _own_rdp(self, queries: int, orders: np.ndarray) -> np.ndarray:
        key = (self.sampling_probability, self.ratio, tuple(map(float, orders)))
        if self.relation == "replace_one":  # dp_accounting has no curve for this pair
            return queries * _poisson_replace_one_rdp(*key)
        return queries * _poisson_rdp(*key)

    def loss_range(self, queries: int) -> float:
        return self.query_mu * (self.ratio / 2 + 10)


@dataclass(frozen=True, kw_only=True)
class FixedSizeGaussianEvent(GaussianSumEvent):
    """Each query draws ``batch_size`` of ``num_records`` records without replacement; replace_one only.

    Neither direction of the pair dominates for all epsilon, so this event offers no privacy loss distribution, only the
    bound of Wang, Balle and Kasiviswanathan (2019), https://arxiv.org/abs/1808.00087.

    Attributes:
        batch_size: Records a query, public.
        num_records: Records in all, public.
    """

    batch_size: int
    num_records: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count("batch_size", self.batch_size)
        _validate.count("num_records", self.num_records)
        if self.batch_size > self.num_records:
            raise ValueError(f"batch_size must be at most num_records = {self.num_records}, got {self.batch_size}.")
        if self.relation != "replace_one":
            raise UnsupportedEventError(
                f"FixedSizeGaussianEvent has no guarantee under {self.relation}; it has one under replace_one."
            )

    @property
    def sampler(self) -> str:
        return f"Fixed-size sampling without replacement, {self.batch_size} of {self.num_records} records"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("each query's batch is drawn anew, uniformly and in secret", "the number of records is public")

    def gaussian_mu(self, queries: int) -> float | None:
        return known_mu(self.query_mu, queries, amplified=self.batch_size < self.num_records)

    def pld(self, queries: int, interval: float = DEFAULT_INTERVAL) -> None:
        return None

    def _own_rdp(self, queries: int, orders: np.ndarray) -> np.ndarray:
        key = (self.batch_size, self.num_records, self.query_mu)  # over the *replace-one* sensitivity: dp_accounting's
        return queries * _fixed_size_rdp(*key, tuple(map(float, orders)))


def known_mu(query_mu: float, queries: int, *, amplified: bool) -> float | None:
    """``mu`` of Gaussian queries of ``query_mu`` each; ``None`` where sampling amplifies what costs anything."""
    if queries == 0 or query_mu == 0:
        return 0.0
    return None if amplified else query_mu * math.sqrt(queries)


def _assignment(relation: NeighboringRelation) -> str:
    if relation == "add_or_remove_one":
        return "each record draws its batch by its own secret coin"
    return "the assignment to batches does not depend on the records' values"


def _library_rdp(event: dp_event.DpEvent, relation: NeighboringRelation, orders: tuple[float, ...]) -> np.ndarray:
    accountant = rdp_privacy_accountant.RdpAccountant(orders, _pld.LIBRARY_RELATION[relation])
    accountant.compose(event)
    return accountant.rdp


@lru_cache(maxsize=64)
def _poisson_rdp(sampling_probability: float, ratio: float, orders: tuple[float, ...]) -> np.ndarray:
    """The sampled Gaussian mechanism's curve: Mironov, Talwar and Zhang (2019), https://arxiv.org/abs/1908.10530.

    Theirs is the direction from the mixture, the larger one. dp_accounting loses small moments to rounding; quadrature
    does not, and the larger of the two counts.
    """
    event = dp_event.PoissonSampledDpEvent(sampling_probability, dp_event.GaussianDpEvent(1 / ratio))
    curve = _library_rdp(event, "add_or_remove_one", orders)
    small = curve * (np.array(orders) - 1) < _renyi.SMALL
    mixture = _renyi.Mixture((0.0, ratio), (1 - sampling_probability, sampling_probability))
    centre = _renyi.Mixture((0.0,), (1.0,))
    accurate = _renyi.renyi_divergences(mixture, centre, tuple(np.array(orders)[small].tolist()))
    curve[small] = np.maximum(curve[small], accurate)
    return curve


@lru_cache(maxsize=64)
def _poisson_replace_one_rdp(sampling_probability: float, ratio: float, orders: tuple[float, ...]) -> np.ndarray:
    """Rényi divergences of the pair that dominates Poisson sampling under replace_one; the pair is symmetric."""
    out = (1 - sampling_probability, sampling_probability)
    upper, lower = _renyi.Mixture((0.0, ratio), out), _renyi.Mixture((0.0, -ratio), out)
    return _renyi.renyi_divergences(upper, lower, orders)


@lru_cache(maxsize=64)
def _fixed_size_rdp(batch_size: int, num_records: int, sensitivity: float, orders: tuple[float, ...]) -> np.ndarray:
    """Whole orders by Theorem 27 of the paper; between them the moments interpolate (Corollary 10).

    dp_accounting computes 1 - exp(-sensitivity^2), whose relative rounding is put on top.
    """
    sensitivity = max(sensitivity, LEAST_FIXED_SIZE_SENSITIVITY)
    event = dp_event.SampledWithoutReplacementDpEvent(
        num_records, batch_size, dp_event.GaussianDpEvent(1 / sensitivity)
    )
    whole = sorted({float(order) for a in orders for order in (math.floor(a), math.ceil(a)) if order > 1})
    moments = _library_rdp(event, "replace_one", tuple(whole)) * (np.array(whole) - 1)
    between = np.interp(orders, [1.0, *whole], [0.0, *moments]) / (np.array(orders) - 1)
    return between * (1 + _renyi.ROUNDING / sensitivity**2)
