"""Shuffled epochs: each record is in one batch per epoch, and batches are assigned anew each epoch.

Place: [sampling.shuffled_epochs] -> gradients. By permutation an epoch costs one Gaussian query, by each record's own
coin less. Derivations: docs/derivations/accounting.md, one pass; docs/derivations/allocation.md.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tacita import _row_numbers, _validate
from tacita._row_numbers import RowNumbers, kept
from tacita.accounting.sampling_laws import ShuffledEpochsLaw
from tacita.sampling._assignment import (
    LastAssignment,
    batches_by_coin,
    by_coin,
    by_permutation,
    coin_batch,
    orders,
    slice_of,
)
from tacita.sampling.sampler import Coins, Sampler

_EPOCH = 2**40  # words of the session's stream that belong to one epoch: one for each record


@dataclass(frozen=True, kw_only=True)
class ShuffledEpochsSampler(Sampler):
    """Epochs of ``batches_per_epoch`` disjoint batches that together hold all records.

    Epoch e begins at query ``e * batches_per_epoch``. With ``"coin"``, record i's batch in epoch e is uniform and
    follows from word ``e * 2^40 + i`` of the session's own stream. Batch sizes are random, and adding or removing one
    record moves no other. With ``"permutation"``, the records are shuffled each epoch and cut into batches whose sizes
    differ by at most one. The number of records is then public.

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches_per_epoch", _validate.count("batches_per_epoch", self.batches_per_epoch))
        object.__setattr__(self, "num_records", _validate.count("num_records", self.num_records))
        if self.assignment not in ("coin", "permutation"):
            raise ValueError(f"assignment must be 'coin' or 'permutation', got {self.assignment!r}.")
        object.__setattr__(self, "_last", LastAssignment())  # not a field: never printed, compared or hashed

    @property
    def law(self) -> ShuffledEpochsLaw:
        return ShuffledEpochsLaw(self.batches_per_epoch, own_coin=self.assignment == "coin")

    @property
    def sample_rate(self) -> float:  # type: ignore[override]
        return 1 / self.batches_per_epoch

    @property
    def queries_per_epoch(self) -> int:
        return self.batches_per_epoch  # exact, while sample_rate is rounded

    @property
    def expected_batch_size(self) -> float:
        return self.num_records / self.batches_per_epoch

    @property
    def requires_public_count(self) -> bool:
        return self.assignment == "permutation"

    @property
    def max_queries(self) -> int:
        return (
            self.batches_per_epoch * 2**20
        )  # beyond, epochs would use words of the stream that are reserved for redraws

    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        if self._by_blocks(num_rows):
            return np.asarray(self.batch(query, coins, num_rows))
        epoch, batch = divmod(query, self.batches_per_epoch)
        stream = coins.for_session()
        assign = by_coin if self.assignment == "coin" else by_permutation
        batches = self._last.get(  # type: ignore[attr-defined]
            (stream, num_rows, epoch),
            lambda: assign(stream, num_rows, self.batches_per_epoch, offset=epoch * _EPOCH),
        )
        return batches[batch].copy()

    def batch(self, query: int, coins: Coins, num_rows: int) -> np.ndarray | RowNumbers:
        self._check_draw(query, num_rows)
        if not self._by_blocks(num_rows):
            return self.draw(query, coins, num_rows)
        epoch, batch = divmod(query, self.batches_per_epoch)
        stream = coins.for_session()
        return kept(coin_batch(stream, num_rows, self.batches_per_epoch, batch, offset=epoch * _EPOCH))

    def _by_blocks(self, num_rows: int) -> bool:
        """Return whether a batch is found block by block, because a whole assignment would be too large to keep."""
        return self.assignment == "coin" and num_rows > _row_numbers.IN_MEMORY

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        epoch, batch = divmod(query, self.batches_per_epoch)
        stream = coins.for_session()
        where = {"offset": epoch * _EPOCH}
        if self.assignment == "coin":
            batch_of_row = self._last.get(  # type: ignore[attr-defined]
                (stream, num_rows, runs, epoch),
                lambda: batches_by_coin(stream, num_rows, runs, self.batches_per_epoch, **where),
            )
            return batch_of_row == batch
        place = self._last.get(  # type: ignore[attr-defined]
            (stream, num_rows, runs, epoch), lambda: orders(stream, num_rows, runs, **where)
        )
        part = slice_of(batch, num_rows, self.batches_per_epoch)
        return (place >= part.start) & (place < part.stop)
