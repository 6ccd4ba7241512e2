"""Packed rows in a file that has no name: appended, then read in any order. Private.

The file is on disk but in no folder, so that it is gone when the process ends, however it ends. Rows are read window by
window, so that the memory does not grow with their number.
"""

import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from tacita.gradients.data import IndexedRows

RESIDENT = 2**28  # bytes; a file up to this size is mapped whole
WINDOW = 2**25  # bytes that are mapped at once of a larger file
_PART = 2**20  # bytes of a part of a fingerprint


class MappedRows(IndexedRows):
    """A data set of rows of one public type, which a subclass packs and unpacks.

    Args:
        dtype: The type of a packed row.
        folder: A folder on the disk that is to hold the file.
    """

    threaded: ClassVar[bool] = True

    def __init__(self, dtype: np.dtype, folder: Path):
        self._dtype = dtype
        self._file = tempfile.TemporaryFile(dir=folder, prefix=".encoded-")  # noqa: SIM115 - lives as long as this
        weakref.finalize(self, self._file.close)
        self._rows = 0
        self._mapped: tuple[tuple[int, int], np.ndarray] | None = None

    @property
    def num_rows(self) -> int:
        return self._rows

    def __len__(self) -> int:
        return self._rows

    def append_packed(self, packed: np.ndarray) -> None:
        """Append rows as they are in the file."""
        self._file.write(packed.tobytes())
        self._rows += len(packed)

    def parts(self) -> Iterator[bytes]:
        """Yield all bytes of the file, for a fingerprint."""
        self._file.seek(0)
        while part := self._file.read(_PART):
            yield part

    def packed(self, indices: np.ndarray) -> np.ndarray:
        """Return rows as they are in the file."""
        size = self._window_rows
        numbers = indices // size
        if not len(indices) or numbers.min() == numbers.max():
            return _taken(self._window(int(numbers[0])), indices % size) if len(indices) else np.empty(0, self._dtype)
        packed = np.empty(len(indices), self._dtype)
        for number in np.unique(numbers):
            own = np.flatnonzero(numbers == number)
            packed[own] = _taken(self._window(int(number)), indices[own] % size)
        return packed

    @property
    def _window_rows(self) -> int:
        """The number of rows of a window: all rows, if they are few enough for the system to keep them in memory."""
        size = self._dtype.itemsize
        return max(1, self._rows if self._rows * size <= RESIDENT else WINDOW // size)

    def _window(self, number: int) -> np.ndarray:
        """Return a window of the file; only the last one stays mapped."""
        key = number, self._rows
        if self._mapped is None or self._mapped[0] != key:
            self._mapped = None  # unmapped before the next one is mapped
            self._file.flush()
            first = number * self._window_rows
            shape = (min(self._window_rows, self._rows - first),)
            mapped = np.memmap(self._file, self._dtype, "r", first * self._dtype.itemsize, shape)
            self._mapped = key, np.asarray(mapped)
        return self._mapped[1]


def _taken(window: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return rows of a window.

    ``take`` is several times as fast as indexing. ``clip`` skips the check of every index, all of which are in range.
    """
    return np.take(window, places, mode="clip")
