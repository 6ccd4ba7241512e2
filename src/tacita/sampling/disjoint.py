"""Disjoint batches: each record is in exactly one query of the session (one pass).

Place: [sampling.disjoint] -> gradients. How records are assigned decides under which relations a guarantee is proved.
Derivations: docs/derivations/accounting.md, one pass; docs/derivations/allocation.md.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tacita import _row_numbers, _validate
from tacita._row_numbers import RowNumbers, RowRange, kept
from tacita.accounting.sampling_laws import DisjointLaw
from tacita.sampling._assignment import LastAssignment, batches_by_coin, by_coin, coin_batch, slice_of
from tacita.sampling.sampler import Coins, Sampler


@dataclass(frozen=True, kw_only=True)
class DisjointSampler(Sampler):
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_batches", _validate.count("num_batches", self.num_batches))
        object.__setattr__(self, "num_records", _validate.count("num_records", self.num_records))
        if self.assignment not in ("coin", "index"):
            raise ValueError(f"assignment must be 'coin' or 'index', got {self.assignment!r}.")
        object.__setattr__(self, "_last", LastAssignment())  # not a field: never printed, compared or hashed

    @property
    def law(self) -> DisjointLaw:
        by_coin = self.assignment == "coin"
        return DisjointLaw(own_coin=by_coin, num_batches=self.num_batches if by_coin else None)

    @property
    def sample_rate(self) -> float:  # type: ignore[override]
        return 1 / self.num_batches

    @property
    def queries_per_epoch(self) -> int:
        return self.num_batches  # exact, while sample_rate is rounded

    @property
    def expected_batch_size(self) -> float:
        return self.num_records / self.num_batches

    @property
    def requires_public_count(self) -> bool:
        return self.assignment == "index"

    @property
    def max_queries(self) -> int:
        return self.num_batches

    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        if self.assignment == "index" or num_rows > _row_numbers.IN_MEMORY:
            return np.asarray(self.batch(query, coins, num_rows))
        stream = coins.for_session()
        batches = self._last.get(  # type: ignore[attr-defined]
            (stream, num_rows), lambda: by_coin(stream, num_rows, self.num_batches)
        )
        return batches[query].copy()

    def batch(self, query: int, coins: Coins, num_rows: int) -> np.ndarray | RowNumbers:
        self._check_draw(query, num_rows)
        if self.assignment == "index":
            rows = slice_of(query, num_rows, self.num_batches)
            return kept(RowRange(rows.start, rows.stop))
        if num_rows <= _row_numbers.IN_MEMORY:  # a whole assignment is kept for the queries to come
            return self.draw(query, coins, num_rows)
        return kept(coin_batch(coins.for_session(), num_rows, self.num_batches, query))

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        if self.assignment == "index":
            return np.tile(self.mask(query, coins, num_rows), (runs, 1))
        stream = coins.for_session()
        batch = self._last.get(  # type: ignore[attr-defined]
            (stream, num_rows, runs), lambda: batches_by_coin(stream, num_rows, runs, self.num_batches)
        )
        return batch == query
