"""A table: named columns of one length, and which rows count.

Place: readers -> [tables.table] -> survey, encoding, units. Private; its ``repr`` shows names only.
A column answers two questions row by row: which number is it, and which text. Cells of a CSV are strings; Parquet and
NPZ bring typed values, which become numbers or texts by a fixed rule.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tacita.errors import DataStructureError
from tacita.tables.cells import MISSING, NUMBER, TEXT, number_text, parse_date, parse_number


class Column(ABC):
    """One column. ``storage`` says what the file declares: cells, string, number, date or array."""

    storage: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def numbers(self, missing: Sequence[str], date_format: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Values (float64, 0 where there is none) and kinds (int8: MISSING, TEXT or NUMBER), each (rows,)."""

    @abstractmethod
    def texts(self) -> tuple[np.ndarray, list[str]]:
        """Codes (rows,) into a sorted list of the distinct texts."""

    @abstractmethod
    def take(self, rows: np.ndarray) -> "Column":
        """The column of these rows alone."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.storage})"


class TextColumn(Column):
    """Strings, held once each: ``codes`` point into the sorted distinct ``values``."""

    def __init__(self, codes: np.ndarray, values: list[str], storage: str = "cells"):
        self.storage = storage
        self._codes = codes
        self._values = values

    @classmethod
    def of(cls, cells: Iterable[str], storage: str = "cells") -> "TextColumn":
        """Encode cells; white space around a cell is no part of it."""
        index: dict[str, int] = {}
        raw = np.fromiter((index.setdefault(cell, len(index)) for cell in cells), dtype=np.int64)
        stripped = [cell.strip() for cell in index]
        values = sorted(set(stripped))
        place = {value: code for code, value in enumerate(values)}
        codes = np.fromiter((place[cell] for cell in stripped), dtype=np.int64, count=len(stripped))
        return cls(codes[raw], values, storage)

    def __len__(self) -> int:
        return len(self._codes)

    def numbers(self, missing: Sequence[str], date_format: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        absent = frozenset(missing)
        values = np.zeros(len(self._values))
        kinds = np.full(len(self._values), TEXT, dtype=np.int8)
        for i, cell in enumerate(self._values):
            if cell in absent:
                kinds[i] = MISSING
                continue
            number = parse_number(cell) if date_format is None else parse_date(cell, date_format)
            if number is not None:
                values[i], kinds[i] = number, NUMBER
        return values[self._codes], kinds[self._codes]

    def texts(self) -> tuple[np.ndarray, list[str]]:
        return self._codes, self._values

    def take(self, rows: np.ndarray) -> "TextColumn":
        return TextColumn(self._codes[rows], self._values, self.storage)


class NumberColumn(Column):
    """Typed numbers (or days, storage ``date``); what is absent or not finite is missing."""

    def __init__(self, values: np.ndarray, present: np.ndarray | None = None, storage: str = "number"):
        self.storage = storage
        self._values = values
        finite = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), dtype=bool)
        self._present = finite if present is None else finite & present

    def __len__(self) -> int:
        return len(self._values)

    def numbers(self, missing: Sequence[str], date_format: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        values = np.where(self._present, self._values, 0).astype(np.float64)
        return values, np.where(self._present, NUMBER, MISSING).astype(np.int8)

    def texts(self) -> tuple[np.ndarray, list[str]]:
        values, raw = np.unique(np.where(self._present, self._values, 0), return_inverse=True)
        cells = [number_text(value) for value in values.tolist()] + [""]  # "": missing, whatever the markers
        raw = np.where(self._present, raw.reshape(-1), len(cells) - 1)
        column = TextColumn.of(cells)
        return column._codes[raw], column._values

    def take(self, rows: np.ndarray) -> "NumberColumn":
        return NumberColumn(self._values[rows], self._present[rows], self.storage)


class ArrayColumn(Column):
    """An array a row (an image), as NPZ files hold them: (rows, *shape)."""

    storage = "array"

    def __init__(self, values: np.ndarray):
        self.values = values

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row; the file's structure, public."""
        return self.values.shape[1:]

    def __len__(self) -> int:
        return len(self.values)

    def numbers(self, missing: Sequence[str], date_format: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        raise DataStructureError("A column of arrays has no single number a row: declare it with kind = 'array'.")

    def texts(self) -> tuple[np.ndarray, list[str]]:
        raise DataStructureError("A column of arrays has no text a row: declare it with kind = 'array'.")

    def take(self, rows: np.ndarray) -> "ArrayColumn":
        return ArrayColumn(self.values[rows])


class Table:
    """Named columns and the mask of rows that count.

    A row of the wrong width keeps its place, with missing cells, and ``valid`` False: it contributes zero everywhere.

    Attributes:
        names: The columns' names: the file's structure, taken to be public.
        valid: Which rows count, bool, shape (rows,). Private.
    """

    def __init__(self, columns: Mapping[str, Column], valid: np.ndarray | None = None):
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:  # says no length: the number of rows is private
            raise DataStructureError("The columns of a table must all have the same number of rows.")
        rows = lengths.pop() if lengths else 0
        self._columns = dict(columns)
        self.valid = np.ones(rows, dtype=bool) if valid is None else valid
        if self.valid.shape != (rows,):
            raise DataStructureError("valid must hold one entry a row.")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._columns)

    @property
    def num_rows(self) -> int:
        """How many rows there are, those that do not count included. Private under add_or_remove_one."""
        return len(self.valid)

    def column(self, name: str) -> Column:
        """The column of that name; an error does not list the file's own names."""
        if name not in self._columns:
            raise DataStructureError(f"The data have no column {name!r}, which the settings name. {_HEADER_HINT}")
        return self._columns[name]

    def keep(self, rows: np.ndarray) -> "Table":
        """The same table, in which only rows of the mask ``rows`` count."""
        return Table(self._columns, self.valid & rows)

    def take(self, rows: np.ndarray) -> "Table":
        """The table of these rows alone (indices or a mask)."""
        return Table({name: column.take(rows) for name, column in self._columns.items()}, self.valid[rows])

    def __repr__(self) -> str:
        return f"Table({len(self._columns)} columns)"


_HEADER_HINT = "Check the spelling, the delimiter, and whether the file has a header line."
