"""Cyclic batches: each record is in one group for the whole session, and the groups take turns, one a query.

Place: [sampling.cyclic] -> gradients. A record rests between its turns, so that correlated noise gains.
Derivation: docs/derivations/correlated-noise.md.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tacita import _row_numbers, _validate
from tacita._row_numbers import RowNumbers, RowRange, kept
from tacita.accounting.sampling_laws import CyclicLaw
from tacita.sampling._assignment import LastAssignment, batches_by_coin, by_coin, coin_batch, slice_of
from tacita.sampling.sampler import Coins, Sampler


@dataclass(frozen=True, kw_only=True)
class CyclicSampler(Sampler):
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches_per_cycle", _validate.count("batches_per_cycle", self.batches_per_cycle))
        object.__setattr__(self, "num_records", _validate.count("num_records", self.num_records))
        if self.assignment not in ("coin", "index"):
            raise ValueError(f"assignment must be 'coin' or 'index', got {self.assignment!r}.")
        object.__setattr__(self, "_last", LastAssignment())  # not a field: never printed, compared or hashed

    @property
    def law(self) -> CyclicLaw:
        return CyclicLaw(self.batches_per_cycle, own_coin=self.assignment == "coin")

    @property
    def sample_rate(self) -> float:  # type: ignore[override]
        return 1 / self.batches_per_cycle

    @property
    def queries_per_epoch(self) -> int:
        return self.batches_per_cycle  # exact, while sample_rate is rounded

    @property
    def expected_batch_size(self) -> float:
        return self.num_records / self.batches_per_cycle

    @property
    def requires_public_count(self) -> bool:
        return self.assignment == "index"

    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        return np.asarray(self.batch(query, coins, num_rows))

    def batch(self, query: int, coins: Coins, num_rows: int) -> np.ndarray | RowNumbers:
        self._check_draw(query, num_rows)
        group = query % self.batches_per_cycle
        if self.assignment == "index":
            rows = slice_of(group, num_rows, self.batches_per_cycle)
            return kept(RowRange(rows.start, rows.stop))
        stream = coins.for_session()
        if num_rows > _row_numbers.IN_MEMORY:
            return kept(coin_batch(stream, num_rows, self.batches_per_cycle, group))
        groups = self._last.get(  # type: ignore[attr-defined]
            (stream, num_rows), lambda: by_coin(stream, num_rows, self.batches_per_cycle)
        )
        return groups[group].copy()

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        group = query % self.batches_per_cycle
        if self.assignment == "index":
            return np.tile(self.mask(query, coins, num_rows), (runs, 1))
        stream = coins.for_session()
        groups = self._last.get(  # type: ignore[attr-defined]
            (stream, num_rows, runs), lambda: batches_by_coin(stream, num_rows, runs, self.batches_per_cycle)
        )
        return groups == group
