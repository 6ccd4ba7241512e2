"""What every sampler promises: how records are drawn, and a public divisor.

Place: [sampling] -> gradients. Above it nobody sees how many records there are.
"""

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Protocol

import numpy as np

from tacita import _validate
from tacita.accounting.cells import SamplingLaw
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
    """Draws the records of a query. Public settings only; the data's length passes through calls.

    A draw is a pure function of (coins, query, number of rows): asked again, in any order, it is the same.

    Attributes:
        num_records: The public number of records. Where :attr:`requires_public_count` is false it may be a guess: it
            only sets the divisor.
        sample_rate: Chance of a record to be in one query, in (0, 1].
    """

    num_records: int
    sample_rate: float

    @property
    @abstractmethod
    def law(self) -> SamplingLaw:
        """How records are drawn, for the event: what the session spends follows from it."""

    @property
    @abstractmethod
    def expected_batch_size(self) -> float:
        """The public divisor of the sum; never the realised size."""

    @abstractmethod
    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        """Indices of the records of ``query`` (0-based) among ``num_rows`` rows: int64, ascending, maybe empty.

        Raises:
            ValueError: ``query`` is not below :attr:`max_queries`; or :attr:`requires_public_count`, and ``num_rows``
                is not ``num_records``. Nothing else about the data raises: no rows and no record drawn are ordinary.
        """

    @property
    def requires_public_count(self) -> bool:
        """Whether ``num_records`` must be the number of rows (one row more or less would move the other records)."""
        return True

    @property
    def max_queries(self) -> int | None:
        """How many queries a session can make at most; ``None`` if there is no limit."""
        return None

    @property
    def queries_per_epoch(self) -> int:
        """How many queries see a record once on average: 1 / ``sample_rate``, rounded up."""
        return self.queries_for(1)

    def queries_for(self, epochs: float) -> int:
        """``epochs`` / ``sample_rate``, rounded up, in exact arithmetic: 93 epochs' worth of 1/93 is not 94.

        Example:
            >>> from tacita.sampling import PoissonSampler
            >>> PoissonSampler(sample_rate=1 / 93, num_records=93).queries_for(epochs=2)
            186
        """
        return math.ceil(_rational(_validate.positive("epochs", epochs)) / _rational(self.sample_rate))

    def mask(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        """Which of the rows :meth:`draw` gives, bool of shape (num_rows,)."""
        member = np.zeros(num_rows, bool)
        member[self.draw(query, coins, num_rows)] = True
        return member

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        """Which rows ``query`` draws in each of many runs of a session, bool of shape (runs, num_rows).

        For audits. Each run has the law of :meth:`draw` over all its queries, runs are independent, and none of them is
        what :meth:`draw` gives. By default each is drawn by it, from streams of its own; samplers have faster ways.
        """
        return np.stack([self.mask(query, _OneRun(coins, run), num_rows) for run in range(runs)])

    def _check_draw(self, query: int, num_rows: int) -> None:
        if query < 0 or (self.max_queries is not None and query >= self.max_queries):
            raise ValueError(f"query must be in 0 .. max_queries - 1 of {self!r}, got {query}.")
        if self.requires_public_count and num_rows != self.num_records:
            raise ValueError(f"num_records must be the number of records with {type(self).__name__}: it is not.")


class _OneRun:
    """The coins of one of many runs: streams whose keys are drawn from the streams that all runs share."""

    def __init__(self, coins: Coins, run: int) -> None:
        self._coins, self._run = coins, run

    def for_query(self, query: int) -> Stream:
        return Stream(self._coins.for_query(query).bytes(32, 32 * self._run))

    def for_session(self) -> Stream:
        return Stream(self._coins.for_session().bytes(32, 32 * self._run))


def as_sampler(sampler: object) -> Sampler:
    """Return ``sampler`` if it is one of ours; a loader's way of drawing is never guessed.

    Raises:
        TypeError: It is something else: a ``DataLoader``, a ``WeightedRandomSampler``, a batch size.
    """
    if isinstance(sampler, Sampler):
        return sampler
    raise TypeError(
        f"sampler must be a tacita sampler, got {type(sampler).__name__}, which does not say how records are drawn, so "
        "no guarantee follows from it. Use PoissonSampler, FixedSizeSampler, DisjointSampler, FullBatchSampler or "
        "ShuffledEpochsSampler, and hand the data set itself to the oracle."
    )


def _rational(value: float) -> Fraction:
    """The simplest fraction that is ``value`` in floating point (1/93 for the float next to it), if there is one."""
    simple = Fraction(value).limit_denominator(2**26)  # two such fractions never share a float of 53 bits
    return simple if float(simple) == value else Fraction(value)
