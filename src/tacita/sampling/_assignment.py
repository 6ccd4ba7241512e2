"""Assignments of records to batches that hold for a whole session or epoch. They are private.

Used by sampling.disjoint and sampling.shuffled_epochs.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tacita._row_numbers import ChosenRows
from tacita.random import Stream

Batches = list[np.ndarray]  # the records of each batch, int64, ascending
Assignment = TypeVar("Assignment")


def by_coin(stream: Stream, num_rows: int, num_batches: int, *, offset: int = 0) -> Batches:
    """Assign each row to a uniform batch; row i's batch follows from word ``offset + i`` alone."""
    batch = stream.integers(num_rows, num_batches, offset)
    order = np.argsort(batch, kind="stable")  # stable: ascending within a batch
    return np.split(order, np.searchsorted(batch[order], np.arange(1, num_batches)))


def coin_batch(stream: Stream, num_rows: int, num_batches: int, batch: int, *, offset: int = 0) -> ChosenRows:
    """Return the rows that :func:`by_coin` puts into one batch; coins are computed again each time they are read."""

    def chosen(first: int, count: int) -> np.ndarray:
        return stream.integers(count, num_batches, offset + first) == batch

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
