"""Epochs: each record is in one batch of each epoch, which it draws by its own coin, or which a permutation gives it.

Place: [sampling.epochs] -> gradients. By permutation an epoch costs one Gaussian query, by each record's own coin less.
Derivations: docs/derivations/accounting.md, one pass; docs/derivations/allocation.md.
"""

from dataclasses import dataclass

from tacita.accounting.sampling_laws import ShuffledEpochsLaw
from tacita.sampling._assignment import AssignedSampler


class EpochSampler(AssignedSampler):
    """Base of the samplers whose records are assigned to batches anew in each epoch."""

    batches_per_epoch: int
    num_records: int

    batches_field = "batches_per_epoch"

    @property
    def max_queries(self) -> int:
        return self.batches_per_epoch * 2**20  # later epochs would use words that are reserved for redraws

    def _turn(self, query: int) -> tuple[int, int]:
        return divmod(query, self.batches_per_epoch)


@dataclass(frozen=True, kw_only=True)
class AllocatedSampler(EpochSampler):
    """Put each record into one uniform batch of each epoch, by its own coin: random allocation.

    Epoch e begins at query ``e * batches_per_epoch``, and a session of at most ``batches_per_epoch`` queries is one
    pass. Record i's batch in epoch e follows from word ``e * 2^40 + i`` of the session's own stream. Batch sizes are
    random, and adding or removing one record moves no other. Under add_or_remove_one and zero_out_one a session costs
    less because nobody knows which batch is a record's own.

    Attributes:
        batches_per_epoch: Number of batches in an epoch.
        num_records: Public number of records, which only sets the divisor.

    Reference: Feldman and Shenfeld (2025), https://arxiv.org/abs/2502.08202.

    Example:
        >>> sampler = AllocatedSampler(batches_per_epoch=4, num_records=10)
        >>> sampler.expected_batch_size, sampler.queries_for(epochs=3)
        (2.5, 12)
    """

    batches_per_epoch: int
    num_records: int

    assignment = "coin"

    @property
    def law(self) -> ShuffledEpochsLaw:
        return ShuffledEpochsLaw(self.batches_per_epoch, own_coin=True)


@dataclass(frozen=True, kw_only=True)
class ShuffledEpochsSampler(EpochSampler):
    """Shuffle the records in each epoch, and cut them into ``batches_per_epoch`` batches.

    Their sizes differ by at most one, so the number of records is public, and one record moves others. An epoch costs
    one Gaussian query, without amplification; :class:`AllocatedSampler` costs less.

    Attributes:
        batches_per_epoch: Number of batches in an epoch.
        num_records: Public number of records; it must be the data's.

    Example:
        >>> ShuffledEpochsSampler(batches_per_epoch=4, num_records=10).expected_batch_size
        2.5
    """

    batches_per_epoch: int
    num_records: int

    assignment = "permutation"

    @property
    def law(self) -> ShuffledEpochsLaw:
        return ShuffledEpochsLaw(self.batches_per_epoch, own_coin=False)
