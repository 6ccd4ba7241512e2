"""The table of proved cells: how records are drawn x neighboring relation -> event of a clipped sum with noise.

Place: [accounting.cells] -> accountant. A cell without a proof is refused when the oracle is built. Proofs:
docs/derivations/accounting.md.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from tacita import _validate
from tacita.accounting.events import Event
from tacita.accounting.gaussian_events import (
    FixedSizeGaussianEvent,
    FullBatchGaussianEvent,
    OnePassGaussianEvent,
    PoissonGaussianEvent,
    ShuffledEpochsGaussianEvent,
)
from tacita.accounting.mixture_events import PoissonUnitEvent
from tacita.accounting.relations import RELATIONS, NeighboringRelation, check_relation
from tacita.errors import UnsupportedEventError

REFUSED = "refused"


class SamplingLaw(ABC):
    """How records enter the queries of a session, as far as privacy is concerned. Public settings only.

    Attributes:
        words: The kind of sampling, as the table and the errors call it.
    """

    words: ClassVar[str]

    @property
    @abstractmethod
    def cells(self) -> dict[NeighboringRelation, str]:
        """The relations that are proved, each with what is charged."""

    @abstractmethod
    def event(self, **noise: Any) -> Event:
        """The event, for ``relation``, ``max_contribution`` and ``noise_std``."""


@dataclass(frozen=True)
class PoissonLaw(SamplingLaw):
    """Each record enters each query by its own coin of chance ``sample_rate``."""

    sample_rate: float
    words = "Poisson sampling"

    def __post_init__(self) -> None:
        _validate.probability("sample_rate", self.sample_rate)

    @property
    def cells(self) -> dict[NeighboringRelation, str]:
        return {
            "add_or_remove_one": "amplified",
            "replace_one": "amplified, by its own pair",
            "zero_out_one": "amplified",
        }

    def event(self, **noise: Any) -> Event:
        return PoissonGaussianEvent(sampling_probability=self.sample_rate, **noise)


@dataclass(frozen=True)
class FullBatchLaw(SamplingLaw):
    """Every record is in every query."""

    words = "Full batch, public divisor"

    @property
    def cells(self) -> dict[NeighboringRelation, str]:
        return {"add_or_remove_one": "every query", "replace_one": "every query, 2C", "zero_out_one": "every query"}

    def event(self, **noise: Any) -> Event:
        return FullBatchGaussianEvent(**noise)


@dataclass(frozen=True)
class FixedSizeLaw(SamplingLaw):
    """``batch_size`` of ``num_records`` records without replacement, anew for each query."""

    batch_size: int
    num_records: int
    words = "Fixed size without replacement"

    def __post_init__(self) -> None:
        _validate.count("batch_size", self.batch_size)
        _validate.count("num_records", self.num_records, at_least=self.batch_size)

    @property
    def cells(self) -> dict[NeighboringRelation, str]:
        return {"replace_one": "amplified (RDP)"}

    def event(self, **noise: Any) -> Event:
        return FixedSizeGaussianEvent(batch_size=self.batch_size, num_records=self.num_records, **noise)


@dataclass(frozen=True)
class DisjointLaw(SamplingLaw):
    """Each record is in one query of the session at most.

    Attributes:
        own_coin: Each record draws its batch by its own coin, so that one absent record moves no other.
    """

    own_coin: bool

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"Disjoint batches, one pass, assigned {_assigned(self.own_coin)}"

    @property
    def cells(self) -> dict[NeighboringRelation, str]:
        return _assigned_cells("one query in all", self.own_coin)

    def event(self, **noise: Any) -> Event:
        return OnePassGaussianEvent(**noise)


@dataclass(frozen=True)
class ShuffledEpochsLaw(SamplingLaw):
    """Each record is in one of the ``queries_per_epoch`` queries of each epoch.

    Attributes:
        own_coin: Each record draws its batch by its own coin, each epoch anew.
    """

    queries_per_epoch: int
    own_coin: bool

    def __post_init__(self) -> None:
        _validate.count("queries_per_epoch", self.queries_per_epoch)

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"Shuffled epochs, assigned {_assigned(self.own_coin)}"

    @property
    def cells(self) -> dict[NeighboringRelation, str]:
        return _assigned_cells("one query an epoch, no amplification", self.own_coin)

    def event(self, **noise: Any) -> Event:
        return ShuffledEpochsGaussianEvent(queries_per_epoch=self.queries_per_epoch, **noise)


@dataclass(frozen=True)
class PoissonUnitLaw(SamplingLaw):
    """Poisson sampling of rows where the unit of privacy (a person) has at most ``max_rows_per_unit`` of them."""

    sample_rate: float
    max_rows_per_unit: int
    words = "Poisson sampling of rows, several rows a unit"

    def __post_init__(self) -> None:
        _validate.probability("sample_rate", self.sample_rate)
        _validate.count("max_rows_per_unit", self.max_rows_per_unit)

    @property
    def cells(self) -> dict[NeighboringRelation, str]:
        return {"add_or_remove_one": "amplified, mixture of Gaussians"}

    def event(self, **noise: Any) -> Event:
        return PoissonUnitEvent(
            sampling_probability=self.sample_rate, max_rows_per_unit=self.max_rows_per_unit, **noise
        )


def gaussian_sum_event(
    law: SamplingLaw,
    max_contribution: tuple[float, ...],
    noise_std: tuple[float, ...],
    relation: NeighboringRelation,
) -> Event:
    """The event of a clipped sum released with Gaussian noise.

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
    if check_relation(relation) not in law.cells:
        raise UnsupportedEventError(
            f"{law.words}: no guarantee is proved for a clipped sum under {relation}; "
            f"there is one under {' and '.join(law.cells)}."
        )
    return law.event(relation=relation, max_contribution=max_contribution, noise_std=noise_std)


# One law of each kind, for tables: their numbers do not matter.
EVERY_LAW: tuple[SamplingLaw, ...] = (
    PoissonLaw(0.5),
    FullBatchLaw(),
    FixedSizeLaw(1, 2),
    DisjointLaw(own_coin=True),
    DisjointLaw(own_coin=False),
    ShuffledEpochsLaw(1, own_coin=True),
    ShuffledEpochsLaw(1, own_coin=False),
    PoissonUnitLaw(0.5, 2),
)


def table() -> dict[str, dict[NeighboringRelation, str]]:
    """Every cell: kind of sampling -> relation -> what is charged, or ``"refused"``."""
    return {law.words: {relation: law.cells.get(relation, REFUSED) for relation in RELATIONS} for law in EVERY_LAW}


def _assigned(own_coin: bool) -> str:
    return "by each record's own coin" if own_coin else "by index"


def _assigned_cells(charge: str, own_coin: bool) -> dict[NeighboringRelation, str]:
    cells: dict[NeighboringRelation, str] = {"replace_one": f"{charge}, 2C", "zero_out_one": charge}
    return {"add_or_remove_one": charge, **cells} if own_coin else cells
