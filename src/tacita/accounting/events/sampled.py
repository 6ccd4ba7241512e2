"""Events of sampled records: one class for each kind of release, under every sampling law for which there is a proof.

A class has a table of proofs by sampling law. Without a proof, its event cannot be built.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tacita.accounting.events.event import Event
from tacita.accounting.events.guarantee import Guarantee, no_guarantee
from tacita.accounting.relations import RELATIONS, NeighboringRelation
from tacita.accounting.sampling_laws import (
    EVERY_LAW,
    CyclicLaw,
    CyclicPoissonLaw,
    DisjointLaw,
    FixedSizeLaw,
    FullBatchLaw,
    PoissonLaw,
    SamplingLaw,
    ShuffledEpochsLaw,
    TruncatedPoissonLaw,
)
from tacita.errors import UnsupportedEventError

Charges = Mapping[NeighboringRelation, str]  # what is charged, by neighboring relation that is proved
SAMPLERS: dict[type[SamplingLaw], str] = {
    PoissonLaw: "PoissonSampler",
    TruncatedPoissonLaw: "PoissonSampler(max_batch_size=...)",
    FullBatchLaw: "FullBatchSampler",
    FixedSizeLaw: "FixedSizeSampler",
    DisjointLaw: "DisjointSampler",
    ShuffledEpochsLaw: "AllocatedSampler, ShuffledEpochsSampler",
    CyclicLaw: "CyclicSampler",
    CyclicPoissonLaw: "CyclicSampler(turn_rate=...)",
}


@dataclass(frozen=True)
class Proof:
    """What is proved for one kind of release under one sampling law.

    Attributes:
        charges: What is charged, by neighboring relation that is proved.
        guarantee: Returns the guarantee of an event for a number of queries.
        if_absence_moves: Replaces ``charges`` if the absence of a record moves others; by default the same.
    """

    charges: Charges
    guarantee: Callable[[Any, int], Guarantee]
    if_absence_moves: Charges | None = None

    def of(self, law: SamplingLaw) -> Charges:
        """Return what is charged under ``law``, by neighboring relation."""
        return self.if_absence_moves if law.absence_moves_others and self.if_absence_moves is not None else self.charges


def every_relation(charge: str, *, replacing: str | None = None) -> dict[NeighboringRelation, str]:
    """Return the same charge for every relation, except ``replacing`` for replace_one."""
    return {relation: (replacing or charge) if relation == "replace_one" else charge for relation in RELATIONS}


def indexed(charge: str, guarantee: Callable[[Any, int], Guarantee], *, replacing: str | None = None) -> Proof:
    """Return a proof that conditions on the batches, so that the absence of a record must not move other records."""
    every = every_relation(charge, replacing=replacing)
    with_all_present: Charges = {
        relation: words for relation, words in every.items() if relation != "add_or_remove_one"
    }
    return Proof(every, guarantee, if_absence_moves=with_all_present)


@dataclass(frozen=True, kw_only=True)
class SampledEvent(Event):
    """Something released on sampled records. Subclasses say what is released, and hold the table of proofs.

    Attributes:
        sampling: How records enter the queries.
    """

    sampling: SamplingLaw

    released: ClassVar[str]  # what is released, in the words of an error
    proofs: ClassVar[Mapping[type[SamplingLaw], Proof]]
    of_other_laws: ClassVar[Proof | None] = None  # what is proved for every law of single records

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.sampling, SamplingLaw):
            raise ValueError(f"sampling must be a SamplingLaw, got {type(self.sampling).__name__}.")
        charges = self.charges(self.sampling)
        if self.relation not in charges:
            raise UnsupportedEventError(
                f"{self.sampling.words}: no guarantee is proved for {self.released} under "
                + (f"{self.relation}; there is one under {' and '.join(charges)}." if charges else self._elsewhere())
            )

    @classmethod
    def charges(cls, law: SamplingLaw) -> Charges:
        """Return what is charged under ``law``, by neighboring relation that is proved; empty if none is."""
        proof = cls._proof(law)
        return {} if proof is None else proof.of(law)

    @classmethod
    def _proof(cls, law: SamplingLaw) -> Proof | None:
        return cls.proofs.get(type(law), cls.of_other_laws if law.rows_per_unit == 1 else None)

    @classmethod
    def _elsewhere(cls) -> str:
        *others, last = (name for law, name in SAMPLERS.items() if law in cls.proofs)
        return f"any relation; there is one with {', '.join(others)}{' and ' if others else ''}{last}."

    @property
    def assumptions(self) -> tuple[str, ...]:
        return self.sampling.assumptions(self.relation)

    @property
    def per_query(self) -> bool:
        return self.sampling.per_query

    @property
    def sampler(self) -> str:
        return self.sampling.describe()

    @property
    def condition(self) -> str | None:
        return self.sampling.condition(self.relation)

    @property
    @abstractmethod
    def private(self) -> bool:
        """Whether there is noise on everything that moves."""

    def _guarantee(self, queries: int) -> Guarantee:
        proof = self._proof(self.sampling)
        assert proof is not None
        return proof.guarantee(self, queries) if self.private else no_guarantee()


REFUSED = "refused"
Cells = dict[NeighboringRelation, str]


def table_of(kind: type[SampledEvent]) -> dict[str, Cells]:
    """Return, by kind of sampling and relation, what is charged for one kind of release, or ``"refused"``."""
    return {
        law.words: {relation: kind.charges(law).get(relation, REFUSED) for relation in RELATIONS} for law in EVERY_LAW
    }
