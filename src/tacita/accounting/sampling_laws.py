"""Sampling laws: how records enter the queries of a session, as far as privacy is concerned.

A sampler states its law. An event holds the law and asks it for everything that the guarantee depends on.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from scipy.stats import binom

from tacita import _validate
from tacita.accounting.plain_data import PlainData
from tacita.accounting.relations import NeighboringRelation

ROUNDED_UP, LEAST_CHANCE = (
    1 + 1e-9,
    1e-300,
)  # of a binomial tail: its rounding, and what it may be where it has no float


class SamplingLaw(PlainData, tag="law"):
    """How records enter the queries of a session. Public settings only.

    Attributes:
        words: The name of this kind of sampling in tables and errors.
    """

    words: ClassVar[str]

    @abstractmethod
    def describe(self) -> str:
        """Describe how records enter a query, in a few plain words and with the numbers."""

    @abstractmethod
    def assumptions(self, relation: NeighboringRelation) -> tuple[str, ...]:
        """Return what a guarantee assumes of the batches, and the library sees to."""

    def condition(self, relation: NeighboringRelation) -> str | None:
        """Return what a guarantee assumes, and nobody enforces; ``None`` if there is nothing."""
        return None

    def most_draws(self, queries: int) -> int:
        """Return how many of ``queries`` queries one record can be in."""
        return queries

    @property
    def queries_per_epoch(self) -> int:
        """The number of queries of an epoch, of which a record is in at most one; 1 if nothing is known."""
        return 1

    @property
    def rows_per_unit(self) -> int:
        """The largest number of rows that belong to one unit of privacy; 1 if the unit is a row."""
        return 1

    @property
    def query_chance(self) -> float | None:
        """The chance that a record enters a query, if each query draws anew; else ``None``."""
        return None

    def separation(self, queries: int) -> int | None:
        """Return how many queries there are from one of a record's to its next, at least; ``None`` if it may be one."""
        return None

    def secret_batches(self, relation: NeighboringRelation) -> int:
        """Return among how many batches a record's own is secret, as far as a guarantee uses that; 1 if it is known."""
        return 1

    def coins_known(self, relation: NeighboringRelation) -> bool:
        """Return whether the guarantee holds even against who knows in which queries a record is."""
        return False

    @property
    def per_query(self) -> bool:
        """Whether a redone query may take the next unused number, because its batch is drawn like any other."""
        return True

    @property
    def absence_moves_others(self) -> bool:
        """Whether the absence of one record may put others into other batches."""
        return False


@dataclass(frozen=True)
class PoissonLaw(SamplingLaw):
    """Each record enters each query by its own coin of chance ``sample_rate``."""

    sample_rate: float
    words = "Poisson sampling"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", _validate.probability("sample_rate", self.sample_rate))

    def describe(self) -> str:
        return f"Poisson sampling, sample rate {self.sample_rate:.6g}"

    def assumptions(self, relation: NeighboringRelation) -> tuple[str, ...]:
        return ("each record enters each query by an independent secret coin",)

    @property
    def query_chance(self) -> float:
        return self.sample_rate


@dataclass(frozen=True)
class TruncatedPoissonLaw(SamplingLaw):
    """Poisson sampling where at most ``max_batch_size`` records stay in a query: those with the smallest coins.

    Attributes:
        sample_rate: Chance that a record's coin comes up.
        max_batch_size: Largest number of records in a query.
        num_records: Number of records. Under add_or_remove_one, the largest that there may be: a guarantee rests on it.
    """

    sample_rate: float
    max_batch_size: int
    num_records: int
    words = "Poisson sampling with a max_batch_size"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", _validate.probability("sample_rate", self.sample_rate))
        _validate.count("max_batch_size", self.max_batch_size)
        _validate.count("num_records", self.num_records)

    def describe(self) -> str:
        return f"Poisson sampling, sample rate {self.sample_rate:.6g}, at most {self.max_batch_size} records a query"

    def assumptions(self, relation: NeighboringRelation) -> tuple[str, ...]:
        return (
            "each record enters each query by an independent secret coin",
            "of more records than a query may have, those with the smallest coins stay",
        )

    def condition(self, relation: NeighboringRelation) -> str | None:
        return f"the data hold at most {self.num_records} records" if relation == "add_or_remove_one" else None

    def full_chance(self, relation: NeighboringRelation) -> float:
        """Return the chance that the coins of others alone fill a query, rounded up.

        Under add_or_remove_one the data's neighbours may have one record more than the data.
        """
        others = self.num_records - (0 if relation == "add_or_remove_one" else 1)
        if self.max_batch_size > others:
            return 0.0
        tail = float(binom.sf(self.max_batch_size - 1, others, self.sample_rate))
        return min(1.0, tail * ROUNDED_UP + LEAST_CHANCE)

    @property
    def query_chance(self) -> float:
        """The chance that a record stays in a query: of ``sample_rate``, what is not cut off."""
        few = binom.cdf(self.max_batch_size - 2, self.num_records - 1, self.sample_rate)
        many = binom.sf(self.max_batch_size - 1, self.num_records, self.sample_rate)
        return float(self.sample_rate * few + self.max_batch_size / self.num_records * many)

    @property
    def absence_moves_others(self) -> bool:
        return True  # one other record may take the place


@dataclass(frozen=True)
class PoissonUnitLaw(SamplingLaw):
    """Poisson sampling of rows where the unit of privacy (a person) has at most ``max_rows_per_unit`` of them.

    Attributes:
        sample_rate: Chance of each row.
        max_rows_per_unit: Largest number of rows of a unit that take part. Further rows are dropped before the session
            by a coin of that unit alone.
    """

    sample_rate: float
    max_rows_per_unit: int
    words = "Poisson sampling of rows, several rows a unit"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", _validate.probability("sample_rate", self.sample_rate))
        _validate.count("max_rows_per_unit", self.max_rows_per_unit)

    def describe(self) -> str:
        return (
            f"Poisson sampling of rows, sample rate {self.sample_rate:.6g}, "
            f"at most {self.max_rows_per_unit} rows a unit"
        )

    def assumptions(self, relation: NeighboringRelation) -> tuple[str, ...]:
        return (
            "each row enters each query by an independent secret coin",
            "rows of a unit beyond the cap are dropped by a coin of that unit alone",
        )

    @property
    def rows_per_unit(self) -> int:
        return self.max_rows_per_unit

    @property
    def query_chance(self) -> float:
        return self.sample_rate


@dataclass(frozen=True)
class FullBatchLaw(SamplingLaw):
    """Every record is in every query."""

    words = "Full batch, public divisor"

    def describe(self) -> str:
        return "Full batch"

    def assumptions(self, relation: NeighboringRelation) -> tuple[str, ...]:
        return ()

    def coins_known(self, relation: NeighboringRelation) -> bool:
        return True


@dataclass(frozen=True)
class FixedSizeLaw(SamplingLaw):
    """``batch_size`` of ``num_records`` records without replacement, anew for each query."""

    batch_size: int
    num_records: int
    words = "Fixed size without replacement"

    def __post_init__(self) -> None:
        _validate.count("batch_size", self.batch_size)
        _validate.count("num_records", self.num_records)
        if self.batch_size > self.num_records:
            raise ValueError(f"batch_size must be at most num_records = {self.num_records}, got {self.batch_size}.")

    def describe(self) -> str:
        return f"Fixed-size sampling without replacement, {self.batch_size} of {self.num_records} records"

    def assumptions(self, relation: NeighboringRelation) -> tuple[str, ...]:
        return ("each query's batch is drawn anew, uniformly and in secret", "the number of records is public")

    @property
    def query_chance(self) -> float:
        return self.batch_size / self.num_records

    @property
    def absence_moves_others(self) -> bool:
        return True


class GroupedLaw(SamplingLaw):
    """Records are in batches or groups that are assigned for more than one query.

    Attributes:
        own_coin: Whether each record draws its own uniformly by a coin; then an absent record moves no other.
    """

    own_coin: bool

    @property
    def per_query(self) -> bool:
        return False

    @property
    def absence_moves_others(self) -> bool:
        return not self.own_coin


class AssignedLaw(GroupedLaw):
    """Records are assigned to batches before the queries that read them, for an epoch or for the whole session."""

    once_in: ClassVar[str]  # what a record is in one query of

    @property
    @abstractmethod
    def batches(self) -> int | None:
        """The number of batches that a record is in one of; ``None`` if it is unknown."""

    def most_draws(self, queries: int) -> int:
        return -(-queries // (self.batches or 1))

    @property
    def queries_per_epoch(self) -> int:
        return self.batches or 1

    def secret_batches(self, relation: NeighboringRelation) -> int:
        return (self.batches or 1) if self.own_coin and relation != "replace_one" else 1

    def coins_known(self, relation: NeighboringRelation) -> bool:
        return self.secret_batches(relation) == 1

    def assumptions(self, relation: NeighboringRelation) -> tuple[str, ...]:
        if self.own_coin and relation != "replace_one":
            drawn = "each record draws its batch uniformly, by its own secret coin"
        else:
            drawn = "the assignment to batches does not depend on the records' values"
        return (f"no record is in two queries of {self.once_in}", drawn)


@dataclass(frozen=True)
class DisjointLaw(AssignedLaw):
    """Each record is in one query of the session at most.

    Attributes:
        own_coin: Whether each record draws its batch uniformly by its own coin. True in older ledgers alone: one pass
            of an ``AllocatedSampler`` has the law of its epochs.
        num_batches: Number of batches; ``None`` if unknown, and then the coins hide nothing.
    """

    own_coin: bool
    num_batches: int | None = None
    once_in: ClassVar[str] = "the session"

    @property
    def batches(self) -> int | None:
        return self.num_batches

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"Disjoint batches, one pass, assigned {_assigned(self.own_coin)}"

    def describe(self) -> str:
        return "Disjoint batches, one pass"

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if value is not None}

    def most_draws(self, queries: int) -> int:
        return min(queries, 1)

    def separation(self, queries: int) -> int:
        return min(queries, self.num_batches or queries)


@dataclass(frozen=True)
class ShuffledEpochsLaw(AssignedLaw):
    """Each record is in one of the ``batches_per_epoch`` queries of each epoch; by own coin, this is random allocation.

    Attributes:
        batches_per_epoch: Number of batches of an epoch; a record is in one of them.
        own_coin: Whether each record draws its batch uniformly by its own coin, anew in each epoch.
    """

    batches_per_epoch: int
    own_coin: bool
    once_in: ClassVar[str] = "one epoch"

    @property
    def batches(self) -> int:
        return self.batches_per_epoch

    def __post_init__(self) -> None:
        _validate.count("batches_per_epoch", self.batches_per_epoch)

    @property
    def words(self) -> str:  # type: ignore[override]
        return "Random allocation, one batch an epoch" if self.own_coin else "Shuffled epochs, by permutation"

    def describe(self) -> str:
        return f"{'Random allocation' if self.own_coin else 'Shuffled epochs'}, {self.batches} batches an epoch"


@dataclass(frozen=True)
class CyclicLaw(AssignedLaw):
    """Each record is in one group for the whole session, and the groups take turns, one a query.

    Attributes:
        batches_per_cycle: Number of groups b. A record is in every b-th query, from its group's first turn on.
        own_coin: Whether each record draws its group uniformly by its own coin, once.
    """

    batches_per_cycle: int
    own_coin: bool
    once_in: ClassVar[str] = "one cycle"

    def __post_init__(self) -> None:
        _validate.count("batches_per_cycle", self.batches_per_cycle)

    @property
    def batches(self) -> int:
        return self.batches_per_cycle

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"Cyclic batches, assigned {_assigned(self.own_coin)}"

    def describe(self) -> str:
        return f"Cyclic batches, {self.batches_per_cycle} a cycle"

    def assumptions(self, relation: NeighboringRelation) -> tuple[str, ...]:
        return (*super().assumptions(relation), "a record stays in its group for the whole session")

    def separation(self, queries: int) -> int:
        return min(queries, self.batches_per_cycle)


@dataclass(frozen=True)
class CyclicPoissonLaw(GroupedLaw):
    """Groups of records take turns, one a query, and each record enters the query of its turn by a coin of its own.

    Attributes:
        batches_per_cycle: Number of groups g. A record's turns are every g-th query, from its group's first turn on.
        turn_rate: Chance that a record enters a query in its turn.
        own_coin: Whether each record draws its group by its own coin, once; then an absent record moves no other.
    """

    batches_per_cycle: int
    turn_rate: float
    own_coin: bool

    def __post_init__(self) -> None:
        _validate.count("batches_per_cycle", self.batches_per_cycle)
        object.__setattr__(self, "turn_rate", _validate.probability("turn_rate", self.turn_rate))

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"Cyclic Poisson sampling, assigned {_assigned(self.own_coin)}"

    def describe(self) -> str:
        return f"Cyclic Poisson sampling, {self.batches_per_cycle} groups, rate {self.turn_rate:.6g} in a group's turn"

    def assumptions(self, relation: NeighboringRelation) -> tuple[str, ...]:
        return (
            "in its group's turn, each record enters the query by an independent secret coin, and in no other query",
            f"a record stays in its group, assigned {_assigned(self.own_coin)}, for the whole session",
        )

    def most_draws(self, queries: int) -> int:
        return -(-queries // self.batches_per_cycle)

    def separation(self, queries: int) -> int:
        return min(queries, self.batches_per_cycle)

    @property
    def queries_per_epoch(self) -> int:
        return self.batches_per_cycle


# One law of each kind, for tables. Their numbers do not matter.
EVERY_LAW: tuple[SamplingLaw, ...] = (
    PoissonLaw(0.5),
    TruncatedPoissonLaw(0.5, 1, 2),
    FullBatchLaw(),
    FixedSizeLaw(1, 2),
    ShuffledEpochsLaw(1, own_coin=True),
    DisjointLaw(own_coin=False),
    ShuffledEpochsLaw(1, own_coin=False),
    CyclicLaw(1, own_coin=True),
    CyclicLaw(1, own_coin=False),
    CyclicPoissonLaw(1, 0.5, own_coin=True),
    CyclicPoissonLaw(1, 0.5, own_coin=False),
    PoissonUnitLaw(0.5, 2),
)


def _assigned(own_coin: bool) -> str:
    return "by each record's own coin" if own_coin else "by index"
