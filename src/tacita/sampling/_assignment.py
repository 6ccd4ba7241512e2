"""Assignments of records to batches that hold for a whole session or epoch. They are private.

Place: random -> [sampling._assignment] -> sampling.disjoint, sampling.epochs, sampling.cyclic.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np

from tacita import _row_numbers, _validate
from tacita._row_numbers import ChosenRows, RowNumbers, RowRange, kept
from tacita.random import Stream
from tacita.sampling.sampler import Coins, Sampler

EPOCH = 2**40  # words of the session's stream that belong to one epoch: one for each record
Batches = list[np.ndarray]  # the records of each batch, int64, ascending
Assignment = TypeVar("Assignment")


def by_coin(stream: Stream, num_rows: int, num_batches: int, wanted: range, *, offset: int = 0) -> Batches:
    """Return the wanted batches, where row i's batch is uniform and follows from word ``offset + i`` alone."""
    rows, batches = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for first in range(0, num_rows, _row_numbers.BLOCK):
        batch = stream.integers(min(_row_numbers.BLOCK, num_rows - first), num_batches, offset + first)
        found = np.flatnonzero((batch >= wanted.start) & (batch < wanted.stop))
        rows.append(found + first)
        batches.append(batch[found])
    batch = np.concatenate(batches)
    order = np.argsort(batch, kind="stable")  # stable: ascending within a batch
    return np.split(np.concatenate(rows)[order], np.searchsorted(batch[order], wanted[1:]))


def coin_batch(stream: Stream, num_rows: int, num_batches: int, batch: int, *, offset: int = 0) -> ChosenRows:
    """Return the rows that :func:`by_coin` puts into one batch; coins are computed again each time they are read."""

    def chosen(first: int, count: int) -> np.ndarray:
        return np.flatnonzero(stream.integers(count, num_batches, offset + first) == batch)

    return ChosenRows(num_rows, chosen)


def by_permutation(stream: Stream, num_rows: int, num_batches: int, *, offset: int = 0) -> Batches:
    """Shuffle the rows uniformly and cut them into batches whose sizes differ by at most one."""
    order = stream.permutation(num_rows, offset)
    return [np.sort(order[slice_of(batch, num_rows, num_batches)]) for batch in range(num_batches)]


def orders(stream: Stream, num_rows: int, runs: int, *, offset: int = 0) -> np.ndarray:
    """Draw a uniform order of the rows for each of many runs; return each row's place in it, shape (runs, num_rows).

    Two equal words would be ordered by their position; the probability of that is at most runs * num_rows^2 * 2^-65.
    """
    words = stream.words(runs * num_rows, offset).reshape(runs, num_rows)
    return np.argsort(np.argsort(words, axis=1, kind="stable"), axis=1)


def batches_by_coin(stream: Stream, num_rows: int, runs: int, num_batches: int, *, offset: int = 0) -> np.ndarray:
    """Draw the batch of each row by its own coin, for each of many runs: (runs, num_rows)."""
    return stream.integers(runs * num_rows, num_batches, offset).reshape(runs, num_rows)


def slice_of(batch: int, num_rows: int, num_batches: int) -> slice:
    """Return the slice of the places i with ``i * num_batches // num_rows == batch``."""
    return slice(-(-batch * num_rows // num_batches), -(-(batch + 1) * num_rows // num_batches))


class LastAssignment:
    """A cache of the last assignment, so that it is not computed again for each query. Copies and pickles are empty."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[Any, Any] | None = None

    def __reduce__(self) -> tuple[type["LastAssignment"], tuple[()]]:
        return LastAssignment, ()

    def get(self, key: tuple[Any, ...], make: Callable[[], Assignment]) -> Assignment:
        """Return the assignment for ``key``; call ``make`` unless it was the last one asked for."""
        last = self._last
        if last is None or last[0] != key:
            last = (key, make())
            self._last = last
        return last[1]


class AssignedSampler(Sampler):
    """Base of the samplers that put each record into one of several batches, for the session or anew in each epoch.

    By ``"coin"``, row i's batch follows from one word of the session's own stream. By ``"index"`` it is ``i * batches
    // num_records``, and by ``"permutation"`` the same of its place in a uniform order.

    Attributes:
        assignment: How records are assigned: "coin", "index" or "permutation".
        batches_field: The name of the field that holds the number of batches.
    """

    assignment: str
    batches_field: ClassVar[str]
    _last: LastAssignment

    def __post_init__(self) -> None:
        for name in (self.batches_field, "num_records"):
            object.__setattr__(self, name, _validate.count(name, getattr(self, name)))
        object.__setattr__(self, "_last", LastAssignment())  # not a field: never printed, compared or hashed

    @abstractmethod
    def _turn(self, query: int) -> tuple[int, int]:
        """Return the epoch whose assignment a query reads, and the number of its batch."""

    @property
    def _batches(self) -> int:
        return getattr(self, self.batches_field)

    @property
    def queries_per_epoch(self) -> int:
        return self._batches  # exact, while sample_rate is rounded

    @property
    def sample_rate(self) -> float:  # type: ignore[override]
        return 1 / self._batches

    @property
    def expected_batch_size(self) -> float:
        return self.num_records / self._batches

    @property
    def requires_public_count(self) -> bool:
        return self.assignment != "coin"

    def draw(self, query: int, coins: Coins, num_rows: int) -> np.ndarray:
        return np.asarray(self.batch(query, coins, num_rows))

    def batch(self, query: int, coins: Coins, num_rows: int) -> np.ndarray | RowNumbers:
        self._check_draw(query, num_rows)
        (epoch, batch), batches = self._turn(query), self._batches
        if self.assignment == "index":
            rows = slice_of(batch, num_rows, batches)
            return kept(RowRange(rows.start, rows.stop))
        stream, offset = coins.for_session(), epoch * EPOCH
        if self.assignment == "permutation":
            key, first = (stream, num_rows, epoch), 0
            found = self._last.get(key, lambda: by_permutation(stream, num_rows, batches, offset=offset))
        else:
            together = batches * _row_numbers.IN_MEMORY // max(num_rows, 1)  # batches whose rows are few enough to keep
            if together == 0:
                return kept(coin_batch(stream, num_rows, batches, batch, offset=offset))
            first = batch // together * together
            wanted = range(first, min(first + together, batches))
            key = (stream, num_rows, epoch, first)
            found = self._last.get(key, lambda: by_coin(stream, num_rows, batches, wanted, offset=offset))
        return found[batch - first].copy()

    def masks(self, query: int, coins: Coins, num_rows: int, runs: int) -> np.ndarray:
        self._check_draw(query, num_rows)
        (epoch, batch), batches = self._turn(query), self._batches
        if self.assignment == "index":
            member = np.zeros((runs, num_rows), bool)
            member[:, slice_of(batch, num_rows, batches)] = True
            return member
        stream, offset = coins.for_session(), epoch * EPOCH
        key = (stream, num_rows, runs, epoch)
        if self.assignment == "coin":
            found = self._last.get(key, lambda: batches_by_coin(stream, num_rows, runs, batches, offset=offset))
            return found == batch
        place = self._last.get(key, lambda: orders(stream, num_rows, runs, offset=offset))
        part = slice_of(batch, num_rows, batches)
        return (place >= part.start) & (place < part.stop)
