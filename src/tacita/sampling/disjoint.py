"""Disjoint batches by index: each record is in exactly one query of the session (one pass).

Place: [sampling.disjoint] -> gradients. Derivation: docs/derivations/accounting.md, one pass.
"""

from dataclasses import dataclass

from tacita.accounting.sampling_laws import DisjointLaw
from tacita.sampling._assignment import AssignedSampler


@dataclass(frozen=True, kw_only=True)
class DisjointSampler(AssignedSampler):
    """One pass over the records in ``num_batches`` disjoint batches.

    Row i is in batch ``i * num_batches // num_records``. Batch sizes differ by at most one, and the number of records
    is public. A session costs one Gaussian query, without amplification; one pass of :class:`AllocatedSampler` costs
    less.

    Attributes:
        num_batches: Number of batches, and the largest number of queries in a session.
        num_records: Public number of records; it must be the data's.

    Example:
        >>> from tacita.random import QueryCoins, Randomness
        >>> sampler = DisjointSampler(num_batches=4, num_records=10)
        >>> [sampler.draw(query, QueryCoins(Randomness.insecure(0), "train-1"), 10).tolist() for query in range(4)]
        [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9]]
    """

    num_batches: int
    num_records: int

    assignment = "index"
    batches_field = "num_batches"

    @property
    def law(self) -> DisjointLaw:
        return DisjointLaw(own_coin=False)

    @property
    def max_queries(self) -> int:
        return self.num_batches

    def _turn(self, query: int) -> tuple[int, int]:
        return 0, query
