"""What a query draws before it reads any data: its batch, and the seed of its model and data set.

Place: sampling, oracles.gate -> [oracles.query_draws] -> gradients. Coins and seeds are the session's own.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

from tacita import _row_numbers
from tacita._row_numbers import RowNumbers, is_ascending, rows_at
from tacita.oracles.gate import ReleaseGate
from tacita.oracles.records import OracleData
from tacita.sampling import Sampler


class Plan(NamedTuple):
    """What is drawn for a query: its number, the rows of its batch and the seed of what the model draws itself."""

    query: int
    rows: np.ndarray | RowNumbers
    seed: int


class QueryDraws:
    """Draws the batch of each query, and the seed that its model and data set draw from.

    Both are functions of the session's key, the query's number and public settings. So a source may ask early for the
    draws of later queries (:meth:`GradientSource.follow <tacita.gradients.engine.GradientSource.follow>`).

    Attributes:
        sampler: Draws the batch.
        num_rows: Number of rows that take part. Private under add_or_remove_one.
        rows: Indices of these rows in the source; ``None`` for all of them. Private.
    """

    def __init__(self, data: OracleData, sampler: Sampler, gate: ReleaseGate) -> None:
        self.sampler, self.num_rows, self.rows = sampler, data.num_rows, data.rows
        self._gate, self._source = gate, data.source
        # Another number of rows would deal other batches in mid-session.
        gate.assigned_rows = 0 if sampler.law.per_query else data.num_rows

    def batch(self, query: int) -> np.ndarray | RowNumbers:
        """Return the rows that ``query`` reads, ascending, each once; an array where the source takes nothing else."""
        many = self.num_rows > _row_numbers.IN_MEMORY
        drawn = (self.sampler.batch if many else self.sampler.draw)(query, self._gate.coins, self.num_rows)
        if not isinstance(drawn, np.ndarray) and is_ascending(drawn):  # and each once, by what they are
            inside = drawn.end <= self.num_rows
        else:
            drawn = np.asarray(drawn)
            inside = not drawn.size or (drawn[0] >= 0 and drawn[-1] < self.num_rows)  # -1 would be the last row again
            inside = inside and bool((drawn[1:] > drawn[:-1]).all())
        if not inside:
            raise RuntimeError(
                f"{type(self.sampler).__name__}.draw must return ascending indices, each once, of existing rows."
            )
        found = drawn if self.rows is None else rows_at(self.rows, drawn)
        return found if self._source.takes_row_numbers else np.asarray(found)

    def seed(self, query: int) -> int:
        """Return 256 secret bits that seed what the model and the data set draw (dropout, augmentation)."""
        return int.from_bytes(self._gate.query_stream("model", query).bytes(32), "big")

    def planned(self, query: int, params: Mapping[str, Tensor]) -> Plan:
        """Return what ``query`` draws; of several processes, all must ask at the same point ``params``."""
        return Plan(query, self.batch(query), self.seed(query))
