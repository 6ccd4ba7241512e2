"""Disjoint batches: each record is in exactly one query of the session (one pass).

Place: [sampling.disjoint] -> gradients. How records are assigned decides under which relations a guarantee is proved.
Derivations: docs/derivations/accounting.md, one pass; docs/derivations/allocation.md.
"""

from dataclasses import dataclass
from typing import Literal

from tacita.accounting.sampling_laws import DisjointLaw
from tacita.sampling._assignment import AssignedSampler


@dataclass(frozen=True, kw_only=True)
class DisjointSampler(AssignedSampler):
    """One pass over the records in ``num_batches`` disjoint batches.

    With ``"coin"``, record i's batch is uniform and follows from word i of the session's own stream. Batch sizes are
    random, and adding or removing one record moves no other. With ``"index"``, row i is in batch ``i * num_batches //
    num_records``. Batch sizes differ by at most one, and the number of records is public.

    Attributes:
        num_batches: Number of batches, and the largest number of queries in a session.
        num_records: Public number of records. With ``"index"`` it must be the data's; otherwise it only sets the
            divisor.
        assignment: ``"coin"`` or ``"index"``.

    Example:
        >>> from tacita.random import QueryCoins, Randomness
        >>> sampler = DisjointSampler(num_batches=4, num_records=10, assignment="index")
        >>> [sampler.draw(query, QueryCoins(Randomness.insecure(0), "train-1"), 10).tolist() for query in range(4)]
        [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9]]
    """

    num_batches: int
    num_records: int
    assignment: Literal["coin", "index"]

    batches_field = "num_batches"

    @property
    def law(self) -> DisjointLaw:
        by_coin = self.assignment == "coin"
        return DisjointLaw(own_coin=by_coin, num_batches=self.num_batches if by_coin else None)

    @property
    def max_queries(self) -> int:
        return self.num_batches

    def _turn(self, query: int) -> tuple[int, int]:
        return 0, query
