"""An NPZ file as a table: one array a column, whose first axis is the rows.

The content is private, except for the names and types of the columns. All arrays are in memory.
"""

from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

import numpy as np

from tacita._npz import read_arrays
from tacita.errors import DataStructureError
from tacita.tables.table import ArrayColumn, Column, NumberColumn, Table, TextColumn
from tacita.tables.table_file import ROWS, TableFile, places


class ArrayFile(TableFile):
    """A table in an NPZ file, read into memory when it is opened."""

    def __init__(self, path: Path, only: Sequence[str] | None):
        names: list[str] = []

        def wanted(found: list[str]) -> Iterable[str]:
            names.extend(found)
            return places(found, only)

        arrays = read_arrays(path, "data must be a readable NPZ file of arrays without objects", wanted)
        self._table = Table({name: _from_array(name, values) for name, values in arrays.items()})
        nothing = np.zeros(0, np.int64)
        super().__init__(path, {name: self._table.column(name).take(nothing) for name in self._table.names}, names)

    def check(self) -> None:
        """Do nothing: the whole file was read when it was opened."""

    def _read(self, wanted: Sequence[str]) -> Generator[Table, None, None]:
        table = self._table.only(wanted)
        for first in range(0, table.num_rows, ROWS):
            yield table.take(np.arange(first, min(first + ROWS, table.num_rows)))


def _from_array(name: str, values: np.ndarray) -> Column:
    if values.ndim == 0 or values.dtype.kind not in "biufUS":
        raise DataStructureError(f"Array {name!r} must hold a number, an array of numbers or a text for each row.")
    if values.ndim > 1:
        if values.dtype.kind in "US":
            raise DataStructureError(f"Array {name!r} must hold one text a row.")
        return ArrayColumn(values)
    if values.dtype.kind == "S":
        return TextColumn.of((cell.decode("utf-8", errors="replace") for cell in values.tolist()), storage="string")
    if values.dtype.kind == "U":
        return TextColumn.of(_readable(values).tolist(), storage="string")
    if values.dtype.kind == "b":
        return TextColumn.of(np.where(values, "true", "false").tolist(), storage="string")
    return NumberColumn(values.astype(np.float64) if values.dtype.kind == "f" else values)


def _readable(texts: np.ndarray) -> np.ndarray:
    """Replace code points that a file can hold and a text must not."""
    native = np.ascontiguousarray(texts, dtype=texts.dtype.newbyteorder("="))
    if not native.dtype.itemsize:
        return native
    points = native.view(np.uint32)
    wrong = (points > 0x10FFFF) | ((points >= 0xD800) & (points < 0xE000))
    return np.where(wrong, 0xFFFD, points).astype(np.uint32).view(native.dtype)
