"""Shuffled epochs: each record is in one batch per epoch, and batches are assigned anew each epoch.

Place: [sampling.shuffled_epochs] -> gradients. By permutation an epoch costs one Gaussian query, by each record's own
coin less. Derivations: docs/derivations/accounting.md, one pass; docs/derivations/allocation.md.
"""

from dataclasses import dataclass
from typing import Literal

from tacita.accounting.sampling_laws import ShuffledEpochsLaw
from tacita.sampling._assignment import AssignedSampler


@dataclass(frozen=True, kw_only=True)
class ShuffledEpochsSampler(AssignedSampler):
    """Epochs of ``batches_per_epoch`` disjoint batches that together hold all records.

    Epoch e begins at query ``e * batches_per_epoch``. With ``"coin"``, which is known as random allocation, record i's
    batch in epoch e is uniform and follows from word ``e * 2^40 + i`` of the session's own stream. Batch sizes are
    random, and adding or removing one record moves no other. With ``"permutation"``, the records are shuffled each
    epoch and cut into batches whose sizes differ by at most one. The number of records is then public.

    Attributes:
        batches_per_epoch: Number of batches in an epoch.
        num_records: Public number of records. With ``"permutation"`` it must be the data's; otherwise it only sets the
            divisor.
        assignment: ``"coin"`` or ``"permutation"``.

    Example:
        >>> ShuffledEpochsSampler(batches_per_epoch=4, num_records=10, assignment="coin").expected_batch_size
        2.5
    """

    batches_per_epoch: int
    num_records: int
    assignment: Literal["coin", "permutation"]

    ways = ("coin", "permutation")
    batches_field = "batches_per_epoch"

    @property
    def law(self) -> ShuffledEpochsLaw:
        return ShuffledEpochsLaw(self.batches_per_epoch, own_coin=self.assignment == "coin")

    @property
    def max_queries(self) -> int:
        return self.batches_per_epoch * 2**20  # later epochs would use words that are reserved for redraws

    def _turn(self, query: int) -> tuple[int, int]:
        return divmod(query, self.batches_per_epoch)
