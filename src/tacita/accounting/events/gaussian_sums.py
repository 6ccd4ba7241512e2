r"""Events of bounded sums released with Gaussian noise, under every sampling law.

Events hold ``max_contribution`` (C, the largest L2 norm that one record adds) and ``noise_std`` (s), one entry a block.
Blocks released together are one Gaussian query after whitening, so only their *ratio*
:math:`\sqrt{\sum_l (C_l/s_l)^2}` matters. :func:`~tacita.accounting.relations.moved` says what the ratio means for
neighbours under a relation. Proofs: docs/derivations/accounting.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from scipy.stats import binom

from tacita.accounting.events.event import Event, NoiseSettings, over_noise, reals
from tacita.accounting.events.guarantee import Guarantee, gaussian, known_mu, no_guarantee, of_pairs
from tacita.accounting.events.sampled import Proof, SampledEvent, every_relation, indexed
from tacita.accounting.gaussian import sampled_delta_above
from tacita.accounting.line_pairs import EnvelopePair, MixturePair, ReplacedPair
from tacita.accounting.mixed_pair import MixedPair
from tacita.accounting.relations import NeighboringRelation, moved
from tacita.accounting.sampling_laws import (
    CyclicLaw,
    CyclicPoissonLaw,
    DisjointLaw,
    FixedSizeLaw,
    FullBatchLaw,
    PoissonLaw,
    PoissonUnitLaw,
    SamplingLaw,
    ShuffledEpochsLaw,
    TruncatedPoissonLaw,
)

# Above it, a sampled session is accounted without amplification: one query alone costs epsilon > 5000.
UNAMPLIFIED_RATIO = 100.0
Mixture = tuple[tuple[float, ...], tuple[float, ...]]  # shifts in units of the noise, and their chances


@dataclass(frozen=True, kw_only=True)
class NoisySumEvent(Event):
    """A bounded sum with Gaussian noise on every block. Subclasses say how records enter.

    Attributes:
        max_contribution: Largest L2 norm that one record adds to the sum, one entry a block; ``inf`` is allowed and not
            private.
        noise_std: Standard deviation of the noise on the sum, one entry a block; 0 is allowed and not private.
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
        """The whitened contribution of one record, sqrt(sum of (max_contribution / noise_std)^2)."""
        return math.hypot(*map(over_noise, self.max_contribution, self.noise_std))

    @property
    def query_mu(self) -> float:
        """``mu`` of one query that contains every record."""
        return moved(self.relation) * self.ratio

    @property
    def private(self) -> bool:
        """Whether there is noise on everything that moves."""
        return math.isfinite(self.ratio)

    @property
    def noise_settings(self) -> NoiseSettings:
        return NoiseSettings(self.noise_std, self.max_contribution, self.query_mu)

    def describe(self) -> str:
        return f"{self.sampler}, {self._noise_words()}"

    def _noise_words(self) -> str:
        if len(self.noise_std) == 1:
            return f"noise_std {self.noise_std[0]:.6g} on a sum with max_contribution {self.max_contribution[0]:.6g}"
        stds, contributions = (", ".join(f"{x:.6g}" for x in xs) for xs in (self.noise_std, self.max_contribution))
        return f"{len(self.noise_std)} blocks, noise_std {stds} on sums with max_contribution {contributions}"


@dataclass(frozen=True, kw_only=True)
class GaussianSumEvent(NoisySumEvent, SampledEvent):
    """A clipped sum over sampled records, with Gaussian noise; the divisor is public.

    Example:
        >>> GaussianSumEvent(relation="add_or_remove_one", sampling=PoissonLaw(0.02), max_contribution=(1.0,),
        ...                  noise_std=(1.1,)).describe()
        'Poisson sampling, sample rate 0.02, noise_std 1.1 on a sum with max_contribution 1'
    """

    released = "a clipped sum"
    costs_by_prefix: ClassVar[bool] = True  # type: ignore[override]  # under every law

    @property
    def assumptions(self) -> tuple[str, ...]:
        poisson = isinstance(self.sampling, PoissonLaw | PoissonUnitLaw | TruncatedPoissonLaw)
        return (*super().assumptions, *(("the divisor is public",) if poisson else ()))


def moved_in_some_queries(event: Any, queries: int) -> Guarantee:
    """Charge the largest number of Gaussian queries that one record can be in, whatever happens between them.

    ``event`` is a :class:`NoisySumEvent` with a sampling law.
    """
    return gaussian(event.query_mu * math.sqrt(event.sampling.most_draws(queries)) if queries else 0.0)


def moved_in_own_batches(event: Any, queries: int) -> Guarantee:
    """Charge the pair of random allocation, once an epoch, where each record's own secret coin draws its batch.

    ``event`` is a :class:`NoisySumEvent` with assigned batches. The Gaussian queries of :func:`moved_in_some_queries`
    are a bound as well, and the only one elsewhere: by index, by a permutation, and under replace_one.
    """
    from tacita.accounting.allocation_pair import LARGEST_RATIO, AllocationPair  # loaded with such a session

    known = moved_in_some_queries(event, queries)
    law, ratio = event.sampling, event.ratio
    batches = law.secret_batches(event.relation)
    if batches == 1 or known.mu == 0 or ratio > LARGEST_RATIO:
        return known
    whole, rest = divmod(min(queries, law.most_draws(queries) * batches), batches)
    epochs = ((batches, whole), (rest, 1 if rest else 0))
    parts = tuple((AllocationPair(batches, ratio, seen), times) for seen, times in epochs if times)
    return replace(known, mu=None, delta=None, pairs=lambda: parts)


def moved_in_own_group(event: Any, queries: int) -> Guarantee:
    """Charge the pair of random allocation once a session, for all turns of the group that a record's secret coin drew.

    ``event`` is a :class:`NoisySumEvent` with cyclic batches. Proof: docs/derivations/correlated-noise.md.
    """
    from tacita.accounting.allocation_pair import LARGEST_RATIO, AllocationPair  # loaded with such a session

    known, law = moved_in_some_queries(event, queries), event.sampling
    groups, ratio = law.secret_batches(event.relation), event.ratio * math.sqrt(law.most_draws(queries))
    if groups == 1 or known.mu == 0 or ratio > LARGEST_RATIO:
        return known
    return replace(
        known, mu=None, delta=None, pairs=lambda: ((AllocationPair(groups, ratio, min(groups, queries)), 1),)
    )


def moved_in_sampled_queries(event: Any, queries: int) -> Guarantee:
    """Charge the pair of the sampled Gaussian mechanism; replace_one has a pair of its own.

    ``event`` is a :class:`NoisySumEvent` with Poisson sampling.
    """
    law, ratio = event.sampling, event.ratio
    assert isinstance(law, PoissonLaw)
    q = law.sample_rate
    mu = known_mu(event.query_mu, queries, amplified=amplifies(q, ratio))
    if mu is not None:
        return gaussian(mu)
    replacing = event.relation == "replace_one"
    pair = ReplacedPair(ratio, q) if replacing else MixturePair((0.0, ratio), (1 - q, q))
    return of_pairs(
        lambda: ((pair, queries),),
        unsampled_mu=known_mu(event.query_mu, queries, amplified=False),
        delta=(lambda epsilon: sampled_delta_above(q, ratio, epsilon)) if queries == 1 and not replacing else None,
    )


def moved_in_sampled_turns(event: Any, queries: int) -> Guarantee:
    """Charge Poisson sampling, at the rate of a turn, once a cycle: the group of a record is known.

    ``event`` is a :class:`NoisySumEvent` with cyclic Poisson sampling. Proof: docs/derivations/correlated-noise.md.
    """
    law = event.sampling
    return moved_in_sampled_queries(replace(event, sampling=PoissonLaw(law.turn_rate)), law.most_draws(queries))


def moved_in_truncated_queries(event: Any, queries: int) -> Guarantee:
    """Charge the pair of Poisson sampling, mixed with one in which another record leaves as the record enters.

    ``event`` is a :class:`NoisySumEvent`. Proof: docs/derivations/truncation.md.
    """
    law, ratio, relation = event.sampling, event.ratio, event.relation
    assert isinstance(law, TruncatedPoissonLaw)
    q, exchange, adding = law.sample_rate, 2 * ratio, relation == "add_or_remove_one"
    largest = exchange if adding else event.query_mu  # with the others' coins and the record's known
    mu = known_mu(largest, queries, amplified=amplifies(q, exchange))
    if mu is not None:
        return gaussian(mu)
    full, replacing = law.full_chance(relation), relation == "replace_one"
    usual = ReplacedPair(ratio, q) if replacing else MixturePair((0.0, ratio), (1 - q, q))
    rare = MixturePair((0.0, exchange), (1 - q, q)) if adding else EnvelopePair(exchange, q)

    return of_pairs(
        lambda: ((MixedPair(usual, rare, full), queries),),
        unsampled_mu=known_mu(largest, queries, amplified=False),
    )


def _poisson_units(event: GaussianSumEvent, queries: int) -> Guarantee:
    r"""Charge :math:`\sum_j \mathrm{Binom}(k, q)(j)\, N(jC, s^2)` against :math:`N(0, s^2)` a query; k rows a unit."""
    law = event.sampling
    assert isinstance(law, PoissonUnitLaw)
    largest_mu = law.max_rows_per_unit * event.ratio

    def mixture() -> Mixture:
        shifts = tuple(j * event.ratio for j in range(law.max_rows_per_unit + 1))
        return shifts, row_chances(law.max_rows_per_unit, law.sample_rate)

    return mixture_guarantee(mixture, largest_mu, queries, amplified=amplifies(law.sample_rate, largest_mu))


def mixture_guarantee(mixture: Callable[[], Mixture], largest_mu: float, queries: int, *, amplified: bool) -> Guarantee:
    """Return the guarantee of queries that are each dominated by a mixture of Gaussians against the one around 0.

    Args:
        mixture: Returns the pair of one query; called only if there is noise and the query costs something.
        largest_mu: ``mu`` of a query that is certain to make the largest shift.
        queries: Number of queries.
        amplified: Whether the chances are accounted for.
    """
    if math.isinf(largest_mu):
        return no_guarantee()
    mu = known_mu(largest_mu, queries, amplified=amplified)
    if mu is not None:
        return gaussian(mu)
    return of_pairs(
        lambda: ((MixturePair(*_kept(*mixture())), queries),),
        unsampled_mu=known_mu(largest_mu, queries, amplified=False),
    )


def row_chances(rows: int, chance: float) -> tuple[float, ...]:
    """Return the chances that a query draws 0, 1, ..., ``rows`` of ``rows`` rows, each with ``chance``."""
    return tuple(map(float, binom.pmf(range(rows + 1), rows, chance)))


def _kept(shifts: tuple[float, ...], chances: tuple[float, ...]) -> Mixture:
    """Leave out shifts of chance 0, and scale the chances to a sum of 1, which rounding may have changed."""
    total = math.fsum(chances)
    pairs = [(shift, chance / total) for shift, chance in zip(shifts, chances, strict=True) if chance > 0]
    return tuple(shift for shift, _ in pairs), tuple(chance for _, chance in pairs)


def _fixed_size(event: GaussianSumEvent, queries: int) -> Guarantee:
    """Charge the pair whose divergence is the envelope of both directions; neither dominates at every epsilon."""
    law, query_mu = event.sampling, event.query_mu
    assert isinstance(law, FixedSizeLaw)
    size, records = law.batch_size, law.num_records
    mu = known_mu(query_mu, queries, amplified=size < records)
    if mu is not None:
        return gaussian(mu)
    found = of_pairs(
        lambda: ((EnvelopePair(query_mu, size / records), queries),),
        unsampled_mu=known_mu(query_mu, queries, amplified=False),
    )
    return found if query_mu <= UNAMPLIFIED_RATIO else replace(found, pairs=None)


def allocated(charge: str, guarantee: Callable[[Any, int], Guarantee] = moved_in_own_batches) -> Proof:
    """Return the proof for batches that are assigned: amplified where each record's own coin hides its batch."""
    replacing = f"{charge}, no amplification, 2C"
    proof = indexed(f"{charge}, no amplification", guarantee, replacing=replacing)
    return replace(proof, charges=every_relation(f"{charge}, amplified by the secret batch", replacing=replacing))


GaussianSumEvent.proofs = {
    PoissonLaw: Proof(every_relation("amplified", replacing="amplified, by its own pair"), moved_in_sampled_queries),
    TruncatedPoissonLaw: Proof(
        {
            "add_or_remove_one": "amplified, 2C where the batch is full; for a bounded number of records",
            "replace_one": "amplified, by an envelope where the batch is full",
            "zero_out_one": "amplified, by an envelope where the batch is full",
        },
        moved_in_truncated_queries,
    ),
    FullBatchLaw: Proof(every_relation("every query", replacing="every query, 2C"), moved_in_some_queries),
    FixedSizeLaw: Proof({"replace_one": "amplified, by its own pair"}, _fixed_size),
    DisjointLaw: allocated("one query in all"),
    ShuffledEpochsLaw: allocated("one query an epoch"),
    CyclicLaw: allocated("one query a cycle", moved_in_own_group),
    CyclicPoissonLaw: indexed(
        "one query a cycle, amplified",
        moved_in_sampled_turns,
        replacing="one query a cycle, amplified, by its own pair",
    ),
    PoissonUnitLaw: Proof({"add_or_remove_one": "amplified, mixture of Gaussians"}, _poisson_units),
}
GaussianSumEvent.of_other_laws = indexed("most draws", moved_in_some_queries, replacing="most draws, 2C")


def amplifies(sample_rate: float, ratio: float) -> bool:
    """Return whether amplification by Poisson sampling is accounted for, for a query of this ``ratio``."""
    return sample_rate < 1 and ratio <= UNAMPLIFIED_RATIO


def gaussian_sum_event(
    law: SamplingLaw,
    max_contribution: tuple[float, ...],
    noise_std: tuple[float, ...],
    relation: NeighboringRelation,
) -> GaussianSumEvent:
    """Return the event of a clipped sum released with Gaussian noise.

    Args:
        law: How records are drawn; a sampler states it.
        max_contribution: Largest L2 norm one record adds, one entry a block.
        noise_std: Standard deviation of the noise, one entry a block.
        relation: The neighboring relation.

    Raises:
        UnsupportedEventError: No guarantee is proved; the message names the relations for which one is.

    Example:
        >>> gaussian_sum_event(PoissonLaw(0.02), (1.0,), (1.1,), "add_or_remove_one").describe()
        'Poisson sampling, sample rate 0.02, noise_std 1.1 on a sum with max_contribution 1'
    """
    return GaussianSumEvent(relation=relation, sampling=law, max_contribution=max_contribution, noise_std=noise_std)
