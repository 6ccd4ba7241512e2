"""Row numbers that need not be in memory: ascending, each once, read block by block.

Few row numbers are an ordinary array. Many are a :class:`RowNumbers`: a range, or rows whose coins are computed again
each time they are read. NumPy takes one as an array, which then holds them all. Private like the rows that they name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

IN_MEMORY = 2**22  # this many row numbers, or fewer, are kept as an array
BLOCK = 2**20  # rows that are looked at at once


class RowNumbers(ABC):
    """Ascending row numbers, each once. They never change."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all numbers in order, int64, a block at a time; the same ones each time."""

    @property
    @abstractmethod
    def end(self) -> int:
        """A number above all of them."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = np.concatenate([np.empty(0, np.int64), *self.blocks()])
        return found if dtype is None else found.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<private>)"


@dataclass(frozen=True, repr=False)
class RowRange(RowNumbers):
    """The rows from ``start`` to ``stop`` - 1.

    Example:
        >>> np.asarray(RowRange(3, 6))
        array([3, 4, 5])
    """

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:  # a row before the first would be one of the last
            raise ValueError(f"start must be in [0, stop], got {self.start} and {self.stop}.")

    def __len__(self) -> int:
        return self.stop - self.start

    def blocks(self) -> Iterator[np.ndarray]:
        for first in range(self.start, self.stop, BLOCK):
            yield np.arange(first, min(first + BLOCK, self.stop))

    @property
    def end(self) -> int:
        return self.stop


@dataclass(frozen=True, repr=False, eq=False)
class ChosenRows(RowNumbers):
    """The rows that ``chosen`` returns; it is asked again each time they are read.

    Attributes:
        num_rows: Rows that are asked about: 0 .. ``num_rows`` - 1.
        chosen: ``(first, count) -> int64``: which of the ``count`` rows from ``first`` on are chosen; ascending, less
            ``first``.
        at_once: Rows that are asked about at once; each ``first`` is a multiple of it. ``None`` for ``BLOCK``.
    """

    num_rows: int
    chosen: Callable[[int, int], np.ndarray]
    at_once: int | None = None
    _length: int = field(init=False, default=-1)

    def __len__(self) -> int:
        if self._length < 0:
            object.__setattr__(self, "_length", sum(len(block) for block in self.blocks()))
        return self._length

    def blocks(self) -> Iterator[np.ndarray]:
        at_once = BLOCK if self.at_once is None else self.at_once
        for first in range(0, self.num_rows, at_once):
            found = self.chosen(first, min(at_once, self.num_rows - first))
            if len(found):
                yield found.astype(np.int64, copy=False) + first

    @property
    def end(self) -> int:
        return self.num_rows


@dataclass(frozen=True, repr=False, eq=False)
class RowsAt(RowNumbers):
    """The rows that stand at some places of others: ``rows[places]``.

    Attributes:
        rows: The row numbers.
        places: Places among them; ``len(rows)`` is above all of them.
    """

    rows: RowNumbers
    places: "np.ndarray | RowNumbers"

    def __len__(self) -> int:
        return len(self.places)

    def blocks(self) -> Iterator[np.ndarray]:
        coming = pieces(self.places, BLOCK)
        wanted, first = next(coming, None), 0
        for block in self.rows.blocks():
            last = first + len(block)
            while wanted is not None:
                here = int(np.searchsorted(wanted, last))
                if here:
                    yield block[wanted[:here] - first]
                if here < len(wanted):
                    wanted = wanted[here:]
                    break
                wanted = next(coming, None)
            if wanted is None:
                return
            first = last

    @property
    def end(self) -> int:
        return self.rows.end


def is_ascending(rows: object) -> TypeGuard[RowNumbers]:
    """Return whether rows are ascending, and each once, by what they are; not by what a subclass says."""
    return type(rows) in (RowRange, ChosenRows)


def pieces(rows: "np.ndarray | RowNumbers", size: int) -> Iterator[np.ndarray]:
    """Yield row numbers in order, ``size`` at a time; the last piece may be shorter, and none is empty."""
    if not isinstance(rows, RowNumbers):
        for start in range(0, len(rows), size):
            yield rows[start : start + size]
        return
    if isinstance(rows, RowRange):
        for start in range(rows.start, rows.stop, size):
            yield np.arange(start, min(start + size, rows.stop))
        return
    held, count = list[np.ndarray](), 0
    for block in rows.blocks():
        held.append(block)
        count += len(block)
        if count >= size:
            together = np.concatenate(held)
            whole = count // size * size
            for start in range(0, whole, size):
                yield together[start : start + size]
            held, count = [together[whole:]], count - whole
    if count:
        yield np.concatenate(held)


def kept(rows: RowNumbers) -> "np.ndarray | RowNumbers":
    """Return the row numbers as an array if they are few, else as they are."""
    if isinstance(rows, RowRange | RowsAt):
        return np.asarray(rows) if len(rows) <= IN_MEMORY else rows
    held, count = list[np.ndarray](), 0
    for block in rows.blocks():  # counted and collected in one pass, as long as they are few
        count += len(block)
        if count > IN_MEMORY:
            return rows
        held.append(block)
    return np.concatenate([np.empty(0, np.int64), *held])


def rows_at(rows: "np.ndarray | RowNumbers", places: "np.ndarray | RowNumbers") -> "np.ndarray | RowNumbers":
    """Return the rows at ``places``, ascending, of ``rows``."""
    if isinstance(rows, RowRange):
        if isinstance(places, RowRange):
            return kept(RowRange(rows.start + places.start, rows.start + places.stop))
        if not isinstance(places, RowNumbers):
            return places + rows.start
    if not isinstance(rows, RowNumbers):
        return rows[places.start : places.stop] if isinstance(places, RowRange) else rows[np.asarray(places)]
    return kept(RowsAt(rows, places))
