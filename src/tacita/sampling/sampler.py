"""The interface of samplers: how records are drawn, and the public divisor of their sum.

Place: [sampling] -> gradients. No later stage sees how many records there are.
"""

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Protocol

import numpy as np

from tacita import _validate
from tacita._row_numbers import RowNumbers
from tacita.accounting.sampling_laws import SamplingLaw
from tacita.random import Stream


class Coins(Protocol):
    """The random streams of a session: one for each query, and one for the whole session."""

    def for_query(self, query: int) -> Stream:
        """Return the stream that belongs to this query alone."""
        ...

    def for_session(self) -> Stream:
        """Return the stream that stays the same for the whole session (disjoint batches, epochs)."""
        ...


class Sampler(ABC):
    """Base of the samplers, which draw the records of each query.

    A sampler holds public settings only; the data's length is an argument of its methods. A draw is a pure function of
    (coins, query, number of rows): repeated draws, in any order, are the same.

    A sampler states how it draws (:attr:`law`), and that decides what a session is charged. So no sampler can be
    derived from another one, whose law it would inherit; a sampler of your own derives from this class.

    Attributes:
        num_records: The public number of records. Where :attr:`requires_public_count` is false it may be a guess, which
            only sets the divisor.
        sample_rate: Probability that a record is in one query, in (0, 1].
        max_rows_per_unit: The largest number of rows that belong to one unit of privacy; 1 if a row is a unit.
    """

    num_records: int
    sample_rate: float
    max_rows_per_unit: int = 1

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _validate.check_no_promise_inherited(cls, "Derive it from tacita.sampling.Sampler, and state its own law.")

    @property
    @abstractmethod
    def law(self) -> SamplingLaw:
        """The sampling law, from which the session's event (what it spends) follows."""

    @property
    def expected_batch_size(self) -> float:
        """The public divisor of the sum; never the batch size that was drawn."""
        return self.sample_rate * self.num_records

    @abstractmethod
    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        """Return the indices of the records of ``query`` (0-based) among ``num_rows`` rows: int64, ascending.

        Raises:
            ValueError: ``query`` is not below :attr:`max_queries`; or :attr:`requires_public_count` is true and
                ``num_rows`` is not ``num_records``. Nothing else about the data raises: a data set without rows and an
                empty batch are ordinary.
        """

    def batch(self, query: int, coins: Coins, num_rows: int) -> np.ndarray | RowNumbers:
        """Return the same rows as :meth:`draw`, as row numbers that need not be in memory where they are many.

        Oracles ask this where the data have more than 2^22 rows. The default is :meth:`draw`.
        """
        return self.draw(query, coins, num_rows)

    @property
    def requires_public_count(self) -> bool:
        """Whether ``num_records`` must be the number of rows (one row more or less would change others' batches)."""
        return True

    @property
    def max_queries(self) -> int | None:
        """The largest number of queries in a session; ``None`` if there is no limit."""
        return None

    @property
    def queries_per_epoch(self) -> int:
        """The number of queries in which a record is drawn once on average: 1 / ``sample_rate``, rounded up."""
        return self.queries_for(1)

    def queries_for(self, epochs: float) -> int:
        """Return the number of queries in ``epochs`` epochs: ``epochs / sample_rate``, rounded up.

        The arithmetic is exact, so that rounding in floating point never adds a query.

        Example:
            >>> from tacita.sampling import PoissonSampler
            >>> PoissonSampler(sample_rate=1 / 93, num_records=93).queries_for(epochs=2)
            186
        """
        return math.ceil(simplest_fraction(_validate.positive("epochs", epochs)) / simplest_fraction(self.sample_rate))

    def mask(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        """Return which of the rows :meth:`draw` draws, bool of shape (num_rows,)."""
        member = np.zeros(num_rows, bool)
        member[self.draw(query, coins, num_rows)] = True
        return member

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        """Draw the rows of ``query`` in each of many simulated sessions; bool of shape (runs, num_rows).

        For audits. Over all its queries each run follows the law of :meth:`draw`. The runs are independent of one
        another, and none of them repeats the draws of :meth:`draw`. This default calls :meth:`draw` with a stream of
        its own for each run; subclasses have faster ways.
        """
        return np.stack([self.mask(query, _OneRun(coins, run), num_rows) for run in range(runs)])

    def _check_draw(self, query: int, num_rows: int) -> None:
        if query < 0 or (self.max_queries is not None and query >= self.max_queries):
            raise ValueError(f"query must be in 0 .. max_queries - 1 of {self!r}, got {query}.")
        if self.requires_public_count and num_rows != self.num_records:
            raise ValueError(
                f"num_records must be the number of records with {type(self).__name__}, and {self.num_records} is not."
            )


class _OneRun:
    """The coins of one of many simulated runs; its streams have keys that are drawn from the shared streams."""

    def __init__(self, coins: Coins, run: int) -> None:
        self._coins, self._run = coins, run

    def for_query(self, query: int) -> Stream:
        return Stream(self._coins.for_query(query).bytes(32, 32 * self._run))

    def for_session(self) -> Stream:
        return Stream(self._coins.for_session().bytes(32, 32 * self._run))


def as_sampler(sampler: object) -> Sampler:
    """Return ``sampler`` if it is a :class:`Sampler`; how a data loader draws is never guessed.

    Raises:
        TypeError: It is something else: a ``DataLoader``, a ``WeightedRandomSampler``, a batch size.
    """
    if isinstance(sampler, Sampler):
        return sampler
    raise TypeError(
        f"sampler must be a tacita sampler, got {type(sampler).__name__}, which does not say how records are drawn, so "
        "no guarantee follows from it. Use PoissonSampler, AllocatedSampler, FixedSizeSampler, FullBatchSampler, "
        "DisjointSampler, ShuffledEpochsSampler or CyclicSampler, and hand the data set itself to the oracle."
    )


def simplest_fraction(value: float) -> Fraction:
    """Return the simplest fraction that rounds to ``value`` (1/93 for the float ``1 / 93``), or ``value`` exactly."""
    simple = Fraction(value).limit_denominator(2**26)  # two such fractions never round to the same 53-bit float
    return simple if float(simple) == value else Fraction(value)
