"""Cyclic batches: each record is in one group for the whole session, and the groups take turns, one a query.

Place: [sampling.cyclic] -> gradients. A record rests between its turns, so that correlated noise gains.
Derivation: docs/derivations/correlated-noise.md.
"""

from dataclasses import dataclass
from typing import Literal

from tacita.accounting.sampling_laws import CyclicLaw
from tacita.sampling._assignment import AssignedSampler


@dataclass(frozen=True, kw_only=True)
class CyclicSampler(AssignedSampler):
    """Groups of records that take turns: query t reads group t modulo ``batches_per_cycle``, the same in each cycle.

    With ``"coin"``, record i's group is uniform and follows from word i of the session's own stream, which no
    checkpoint changes. Batch sizes are random, and adding or removing one record moves no other. With ``"index"``, row
    i is in group ``i * batches_per_cycle // num_records``, and the number of records is public.

    Attributes:
        batches_per_cycle: Number of groups, and of queries from one turn of a record to the next.
        num_records: Public number of records. With ``"index"`` it must be the data's; otherwise it only sets the
            divisor.
        assignment: ``"coin"`` or ``"index"``.

    Example:
        >>> from tacita.random import QueryCoins, Randomness
        >>> sampler = CyclicSampler(batches_per_cycle=2, num_records=5, assignment="index")
        >>> [sampler.draw(query, QueryCoins(Randomness.insecure(0), "train-1"), 5).tolist() for query in range(3)]
        [[0, 1, 2], [3, 4], [0, 1, 2]]
    """

    batches_per_cycle: int
    num_records: int
    assignment: Literal["coin", "index"]

    batches_field = "batches_per_cycle"

    @property
    def law(self) -> CyclicLaw:
        return CyclicLaw(self.batches_per_cycle, own_coin=self.assignment == "coin")

    def _turn(self, query: int) -> tuple[int, int]:
        return 0, query % self.batches_per_cycle
