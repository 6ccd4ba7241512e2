"""What every sampler promises: how records are drawn, and a public divisor.

Place: [sampling] -> gradients. Above it nobody sees how many records there are.
"""

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np

from tacita.random import Stream


class Coins(Protocol):
    """The two sources of randomness of a session: one for each query, one for the whole session."""

    def for_query(self, query: int) -> Stream:
        """A stream that belongs to this query alone."""
        ...

    def for_session(self) -> Stream:
        """A stream that stays the same for the whole session (disjoint batches, epochs)."""
        ...


class Sampler(ABC):
    """Draws the records of a query. Public settings only; the data's length passes through calls."""

    num_records: int

    @property
    @abstractmethod
    def expected_batch_size(self) -> float:
        """The public divisor of the sum; never the realised size."""

    @abstractmethod
    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        """Indices of the records of ``query`` (0-based) among ``num_rows`` rows: int64, ascending, maybe empty."""

    @property
    def max_queries(self) -> int | None:
        """How many queries a session can make at most; ``None`` if there is no limit."""
        return None
