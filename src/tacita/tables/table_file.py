"""A table in a file: its structure is read when it is opened, its rows chunk by chunk and as often as needed.

The content is private, except for the names and types of the columns. Every rule of tables looks at one row alone, so
that it can be applied to a file chunk by chunk, in memory that does not grow with the number of rows.
"""

import contextvars
import copy
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from tacita._near_names import did_you_mean
from tacita.errors import DataStructureError
from tacita.tables.table import Column, Table, joined, no_column

ROWS = 2**16  # rows of a chunk of a Parquet or NPZ file
Item = TypeVar("Item")


class TableFile(ABC):
    """A table in a file, which is read chunk by chunk and as often as needed.

    Attributes:
        names: The names of the columns, which are structure of the file and taken to be public.
        head: The same columns without a row: their types are structure, too.
        all_names: The names of all columns of the file, read or not.
    """

    def __init__(self, path: Path, columns: dict[str, Column], all_names: Sequence[str]):
        self.head = Table(columns)
        self.names = self.head.names
        self.all_names = tuple(all_names)
        self._path = path
        self._stamp = _stamp(path)
        self._num_rows: int | None = None
        self._kept: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows; the first access reads the file. Private under add_or_remove_one."""
        if self._num_rows is None:
            self._num_rows = sum(chunk.num_rows for chunk in self.chunks())
        return self._num_rows

    def check(self) -> None:
        """Read the file once, if more than its structure can be broken, so that a broken file fails before any work."""
        self.num_rows  # noqa: B018 - kept for later

    def column(self, name: str) -> Column:
        """Return the column of that name without its rows: it shows the type that the file declares."""
        return self.head.column(name)

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Table]:
        """Yield the rows in the file's order, a bounded number at a time.

        Args:
            columns: The columns to read; ``None`` means all.

        Raises:
            DataStructureError: The file cannot be read, or was changed since it was first looked at.
        """
        first = 0
        wanted = self.names if columns is None else tuple(dict.fromkeys(columns))
        for name in wanted:
            self.head.column(name)
        for chunk in one_ahead(self._read(wanted)):
            rows = slice(first, first + chunk.num_rows)
            yield chunk if self._kept is None else chunk.keep(self._kept[rows])
            first = rows.stop
        if _stamp(self._path) != self._stamp:
            raise DataStructureError(f"data must not change while it is read, and {str(self._path)!r} did.")

    def whole(self, columns: Sequence[str] | None = None) -> Table:
        """Return all rows in memory."""
        wanted = self.names if columns is None else tuple(dict.fromkeys(columns))
        return joined([self.head.only(wanted), *self.chunks(wanted)])

    def keep(self, rows: np.ndarray) -> "TableFile":
        """Return the same file, in which only rows of the mask ``rows`` count."""
        other = copy.copy(self)
        other._kept = rows if self._kept is None else self._kept & rows
        return other

    @abstractmethod
    def _read(self, wanted: Sequence[str]) -> Generator[Table, None, None]:
        """Yield chunks of these columns; a thread asks for the next one while the caller works on one."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.names)} columns)"


def one_ahead(items: Generator[Item, None, None]) -> Generator[Item, None, None]:
    """Yield items in order; a thread makes the next one, in the caller's context, while the caller works on one."""
    context, end = contextvars.copy_context(), object()  # the context holds NumPy's settings of warnings
    with ThreadPoolExecutor(1) as pool:
        try:
            item = next(items, end)
            while item is not end:
                coming = pool.submit(context.run, next, items, end)
                yield item  # pyright: ignore[reportReturnType]
                item = coming.result()
        finally:
            pool.shutdown()  # a generator cannot be closed while it runs
            items.close()


def places(names: Sequence[str], only: Sequence[str] | None) -> dict[str, int]:
    """Return the positions in the file of the columns ``only`` (``None`` means all), by name.

    Raises:
        DataStructureError: One is missing. The message may name others of ``only``, which are declared.
    """
    found = {name: i for i, name in enumerate(names)}
    for name in only or ():
        if name not in found:
            near = did_you_mean(name, [other for other in only or () if other in found])
            raise no_column(name, names, near)
    return found if only is None else {name: found[name] for name in only}


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return size, time and inode of a file: another value shows that it was changed."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino
