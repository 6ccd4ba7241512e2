"""Cyclic batches: each record is in one group for the whole session, and the groups take turns, one a query.

Place: [sampling.cyclic] -> gradients. A record rests between its turns, so that correlated noise gains.
Derivation: docs/derivations/correlated-noise.md.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tacita import _validate
from tacita._row_numbers import ChosenRows, RowNumbers, RowRange, kept, rows_at
from tacita.accounting.sampling_laws import CyclicLaw, CyclicPoissonLaw
from tacita.sampling._assignment import AssignedSampler
from tacita.sampling.sampler import Coins, simplest_fraction


@dataclass(frozen=True, kw_only=True, repr=False)
class CyclicSampler(AssignedSampler):
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

    batches_field = "batches_per_cycle"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.assignment not in ("coin", "index"):
            raise ValueError(f"assignment must be 'coin' or 'index', got {self.assignment!r}.")
        object.__setattr__(self, "turn_rate", float(_validate.probability("turn_rate", self.turn_rate)))

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
    def queries_per_epoch(self) -> int:
        return self.queries_for(1)

    @property
    def sample_rate(self) -> float:  # type: ignore[override]
        return float(simplest_fraction(self.turn_rate) / self.batches_per_cycle)

    @property
    def expected_batch_size(self) -> float:
        return self.num_records * self.turn_rate / self.batches_per_cycle

    def _turn(self, query: int) -> tuple[int, int]:
        return 0, query % self.batches_per_cycle

    def batch(self, query: int, coins: Coins, num_rows: int) -> np.ndarray | RowNumbers:
        turn = super().batch(query, coins, num_rows)
        if self.turn_rate == 1:
            return turn
        stream, rate = coins.for_query(query), self.turn_rate
        if isinstance(turn, RowRange):
            some = ChosenRows(len(turn), lambda i, n: np.flatnonzero(stream.bernoulli(n, rate, turn.start + i)))
            return rows_at(turn, kept(some))
        if isinstance(turn, ChosenRows):

            def entering(first: int, count: int) -> np.ndarray:
                rows = turn.chosen(first, count)
                return rows[stream.bernoulli_at(rows + first, rate)]

            return kept(ChosenRows(num_rows, entering))
        rows = np.asarray(turn)
        return rows[stream.bernoulli_at(rows, rate)]

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        enter = coins.for_query(query).bernoulli(runs * num_rows, self.turn_rate).reshape(runs, num_rows)
        return super().masks(query, coins, num_rows, runs) & enter
