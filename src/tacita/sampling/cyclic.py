"""Cyclic batches: each record is in one group for the whole session, and the groups take turns, one a query.

Place: [sampling.cyclic] -> gradients. A record rests between its turns, so that correlated noise gains.
Derivation: docs/derivations/correlated-noise.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from tacita import _row_numbers, _validate
from tacita._row_numbers import ChosenRows, RowNumbers, RowRange, kept, rows_at
from tacita.accounting.sampling_laws import CyclicLaw, CyclicPoissonLaw
from tacita.sampling._assignment import LastAssignment, batches_by_coin, by_coin, coin_batch, slice_of
from tacita.sampling.sampler import Coins, Sampler, simplest_fraction


@dataclass(frozen=True, kw_only=True, repr=False)
class CyclicSampler(Sampler):
    """Groups of records that take turns: query t reads group t modulo ``batches_per_cycle``, the same in each cycle.

    With ``"coin"``, record i's group is uniform and follows from word i of the session's own stream, which no
    checkpoint changes. Batch sizes are random, and adding or removing one record moves no other. With ``"index"``, row
    i is in group ``i * batches_per_cycle // num_records``, and the number of records is public.

    With ``turn_rate`` below 1, each record of the group enters the query by an independent coin of the query's own
    stream: cyclic Poisson sampling, the batches of BandMF (https://arxiv.org/abs/2306.08153). A session then costs as
    much as ``queries / batches_per_cycle`` queries of Poisson sampling at that rate.

    Attributes:
        batches_per_cycle: Number of groups, and of queries from one turn of a record to the next.
        num_records: Public number of records. With ``"index"`` it must be the data's; otherwise it only sets the
            divisor.
        assignment: ``"coin"`` or ``"index"``.
        turn_rate: Probability that a record is in the query of its group's turn, in (0, 1].

    Example:
        >>> from tacita.random import QueryCoins, Randomness
        >>> sampler = CyclicSampler(batches_per_cycle=2, num_records=5, assignment="index")
        >>> [sampler.draw(query, QueryCoins(Randomness.insecure(0), "train-1"), 5).tolist() for query in range(3)]
        [[0, 1, 2], [3, 4], [0, 1, 2]]
    """

    batches_per_cycle: int
    num_records: int
    assignment: Literal["coin", "index"]
    turn_rate: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches_per_cycle", _validate.count("batches_per_cycle", self.batches_per_cycle))
        object.__setattr__(self, "num_records", _validate.count("num_records", self.num_records))
        object.__setattr__(self, "turn_rate", float(_validate.probability("turn_rate", self.turn_rate)))
        if self.assignment not in ("coin", "index"):
            raise ValueError(f"assignment must be 'coin' or 'index', got {self.assignment!r}.")
        object.__setattr__(self, "_last", LastAssignment())  # not a field: never printed, compared or hashed

    def __repr__(self) -> str:  # that of a session whose groups enter whole is in older ledgers
        fields = f"batches_per_cycle={self.batches_per_cycle}, num_records={self.num_records}"
        rate = "" if self.turn_rate == 1 else f", turn_rate={self.turn_rate!r}"
        return f"CyclicSampler({fields}, assignment={self.assignment!r}{rate})"

    @property
    def law(self) -> CyclicLaw | CyclicPoissonLaw:
        own_coin = self.assignment == "coin"
        if self.turn_rate == 1:
            return CyclicLaw(self.batches_per_cycle, own_coin)
        return CyclicPoissonLaw(self.batches_per_cycle, self.turn_rate, own_coin)

    @property
    def sample_rate(self) -> float:  # type: ignore[override]
        return float(simplest_fraction(self.turn_rate) / self.batches_per_cycle)

    @property
    def expected_batch_size(self) -> float:
        return self.num_records * self.turn_rate / self.batches_per_cycle

    @property
    def requires_public_count(self) -> bool:
        return self.assignment == "index"

    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        return np.asarray(self.batch(query, coins, num_rows))

    def batch(self, query: int, coins: Coins, num_rows: int) -> np.ndarray | RowNumbers:
        self._check_draw(query, num_rows)
        group, enters = query % self.batches_per_cycle, self._entering(query, coins)
        if self.assignment == "index":
            turn = slice_of(group, num_rows, self.batches_per_cycle)
            if self.turn_rate == 1:
                return kept(RowRange(turn.start, turn.stop))
            after = ChosenRows(turn.stop - turn.start, lambda first, count: enters(count, offset=turn.start + first))
            return rows_at(RowRange(turn.start, turn.stop), kept(after))
        stream = coins.for_session()
        if num_rows > _row_numbers.IN_MEMORY:
            members = coin_batch(stream, num_rows, self.batches_per_cycle, group).chosen
            return kept(ChosenRows(num_rows, lambda first, count: members(first, count) & enters(count, offset=first)))
        groups = self._last.get(  # type: ignore[attr-defined]
            (stream, num_rows), lambda: by_coin(stream, num_rows, self.batches_per_cycle)
        )
        return groups[group][enters(num_rows)[groups[group]]]

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        group = query % self.batches_per_cycle
        enter = self._entering(query, coins)(runs * num_rows).reshape(runs, num_rows)
        if self.assignment == "index":
            in_turn = np.zeros(num_rows, bool)
            in_turn[slice_of(group, num_rows, self.batches_per_cycle)] = True
            return in_turn & enter
        stream = coins.for_session()
        groups = self._last.get(  # type: ignore[attr-defined]
            (stream, num_rows, runs), lambda: batches_by_coin(stream, num_rows, runs, self.batches_per_cycle)
        )
        return (groups == group) & enter

    def _entering(self, query: int, coins: Coins) -> Callable[..., np.ndarray]:
        """Return the coins of a query: (count, offset=) -> bool; all true if whole groups enter."""
        return partial(coins.for_query(query).bernoulli, probability=self.turn_rate)
