"""Assignments that hold for a session or an epoch: every record in one of several batches.

Place: the ground of sampling.disjoint and sampling.shuffled_epochs. Assignments are private.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from tacita.random import Stream

Batches = list[np.ndarray]  # the records of each batch, int64, ascending
Made = TypeVar("Made")


def by_coin(stream: Stream, num_rows: int, num_batches: int, *, offset: int = 0) -> Batches:
    """Row i in a uniform batch, by word ``offset + i`` alone."""
    batch = stream.integers(num_rows, num_batches, offset)
    order = np.argsort(batch, kind="stable")  # stable: ascending within a batch
    return np.split(order, np.searchsorted(batch[order], np.arange(1, num_batches)))


def by_permutation(stream: Stream, num_rows: int, num_batches: int, *, offset: int = 0) -> Batches:
    """The rows in uniform order, cut into batches whose sizes differ by one at most."""
    order = stream.permutation(num_rows, offset)
    return [np.sort(order[slice_of(batch, num_rows, num_batches)]) for batch in range(num_batches)]


def orders(stream: Stream, num_rows: int, runs: int, *, offset: int = 0) -> np.ndarray:
    """The place of each row in a uniform order of the rows, for each of many runs: (runs, num_rows).

    Two equal words, which would be ordered by their position, have a chance of at most runs * num_rows^2 2^-65.
    """
    words = stream.words(runs * num_rows, offset).reshape(runs, num_rows)
    return np.argsort(np.argsort(words, axis=1, kind="stable"), axis=1)


def batches_by_coin(stream: Stream, num_rows: int, runs: int, num_batches: int, *, offset: int = 0) -> np.ndarray:
    """The batch of each row by its own coin, for each of many runs: (runs, num_rows)."""
    return stream.integers(runs * num_rows, num_batches, offset).reshape(runs, num_rows)


def slice_of(batch: int, num_rows: int, num_batches: int) -> slice:
    """The places i with ``i * num_batches // num_rows == batch``."""
    return slice(-(-batch * num_rows // num_batches), -(-(batch + 1) * num_rows // num_batches))


class Memory:
    """The last assignment made, so that it is not made again for each query. Copies and pickles hold nothing."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[Any, Any] | None = None

    def __reduce__(self) -> tuple[type["Memory"], tuple[()]]:
        return Memory, ()

    def recall(self, key: tuple[Any, ...], make: Callable[[], Made]) -> Made:
        """What ``make`` gave for ``key``, made anew unless it was the last one asked for."""
        last = self._last
        if last is None or last[0] != key:
            last = (key, make())
            self._last = last
        return last[1]
