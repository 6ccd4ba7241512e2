"""A table: named columns of one length, and a mask of the rows that count. Private.

A column gives the number and the text of each row. Cells of a CSV are strings. Parquet and NPZ files bring typed
values, which become numbers or texts by a fixed rule.
"""

import copy
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tacita.errors import DataStructureError
from tacita.tables.cells import MISSING, NUMBER, TEXT, number_text, numbers_of, parse_date
from tacita.tables.csv_lines import as_text, stripped


class Column(ABC):
    """One column. ``storage`` is the type that the file declares: cells, string, number, date or array."""

    storage: str

    values: Any

    def __len__(self) -> int:
        return len(self.values)

    @abstractmethod
    def numbers(self, missing: Sequence[str], date_format: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return values (float64, 0 where there is none) and kinds (int8: MISSING, TEXT or NUMBER), each (rows,)."""

    @abstractmethod
    def texts(self) -> tuple[np.ndarray, list[str]]:
        """Return codes, shape (rows,), into the sorted list of the distinct texts, and that list."""

    @abstractmethod
    def take(self, rows: np.ndarray) -> "Column":
        """Return the column of these rows alone."""

    @classmethod
    @abstractmethod
    def join(cls, columns: Sequence[Any]) -> "Column":
        """Join the rows of several columns of this kind, one after the other."""

    @abstractmethod
    def short(self, length: int) -> np.ndarray:
        """Return a mask of the rows whose texts have at most ``length`` characters, bool (rows,)."""

    def places_of(self, values: Sequence[str]) -> np.ndarray:
        """Return the position of each row's text in ``values`` (all distinct), -1 if it is not there, int64 (rows,)."""
        place = {value: i for i, value in enumerate(values)}
        codes, texts = self.texts()
        return np.array([place.get(text, -1) for text in texts] or [-1], dtype=np.int64)[codes]

    @abstractmethod
    def counts(self, rows: np.ndarray) -> dict[str, int]:
        """Count how often each text occurs among the rows that the mask selects."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.storage})"


class ArrowColumn(Column):
    """A column in an Arrow array, whose cells are texts or become texts by :meth:`cell`; null is a missing cell."""

    def __init__(self, values: Any, storage: str):
        self.values, self.storage = values, storage
        self._coded: tuple[np.ndarray, list[str]] | None = None

    @staticmethod
    @abstractmethod
    def cell(value: Any) -> str:
        """Return the text of a value."""

    def texts(self) -> tuple[np.ndarray, list[str]]:
        if self._coded is None:
            coded = self.values.dictionary_encode(null_encoding="encode")
            cells = list(map(self.cell, coded.dictionary.to_pylist()))
            known = sorted(set(cells))
            place = {cell: i for i, cell in enumerate(known)}
            codes = np.array([place[cell] for cell in cells], np.int64)
            self._coded = codes[coded.indices.to_numpy()], known
        return self._coded

    def counts(self, rows: np.ndarray) -> dict[str, int]:
        import pyarrow as pa

        counted = self.values.filter(pa.array(rows)).value_counts()
        found = Counter[str]()
        for value, count in zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True):
            found[self.cell(value)] += count
        return found

    def take(self, rows: np.ndarray) -> "ArrowColumn":
        import pyarrow as pa

        kept = (
            self.values.filter(pa.array(rows)) if rows.dtype == bool else self.values.take(pa.array(rows, pa.int64()))
        )
        return self._with(kept)

    @classmethod
    def join(cls, columns: Sequence[Any]) -> "ArrowColumn":
        import pyarrow as pa

        return columns[0]._with(pa.concat_arrays([column.values for column in columns]))

    def _with(self, values: Any) -> "ArrowColumn":
        other = copy.copy(self)
        other.values, other._coded = values, None
        return other


class TextColumn(ArrowColumn):
    """A column of strings: an Arrow array of cells without white space around them.

    Args:
        cells: An Arrow array of stripped strings.
        storage: The type that the file declares: "cells" (of a CSV) or "string".
        decimal: The decimal mark of numbers among the cells.
    """

    def __init__(self, cells: Any, storage: str = "cells", decimal: str = "."):
        super().__init__(cells, storage)
        self._decimal = decimal

    @classmethod
    def of(cls, cells: Iterable[str], storage: str = "cells", decimal: str = ".") -> "TextColumn":
        """Make a column from Python strings; white space around a cell is not part of it."""
        import pyarrow as pa

        return cls(stripped(pa.array([as_text(cell) for cell in cells], pa.large_string())), storage, decimal)

    @staticmethod
    def cell(value: str) -> str:
        return value

    def numbers(self, missing: Sequence[str], date_format: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        absent = self.places_of(missing) >= 0
        if date_format is None:
            values, number = numbers_of(self.values, self._decimal)
        else:
            codes, texts = self.texts()  # each distinct cell is parsed once
            read = [parse_date(text, date_format) for text in texts]
            days = np.array([np.nan if value is None else value for value in read] or [np.nan])[codes]
            values, number = days, ~np.isnan(days)
        number &= ~absent
        kinds = np.where(number, NUMBER, np.where(absent, MISSING, TEXT)).astype(np.int8)
        return np.where(number, values, 0.0), kinds

    def places_of(self, values: Sequence[str]) -> np.ndarray:
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pa.array([as_text(value) for value in values], pa.large_string())
        places = pc.index_in(self.values, known)  # pyright: ignore[reportAttributeAccessIssue]
        return places.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)

    def short(self, length: int) -> np.ndarray:
        import pyarrow.compute as pc

        return pc.utf8_length(self.values).to_numpy() <= length  # pyright: ignore[reportAttributeAccessIssue]


class NumberColumn(ArrowColumn):
    """A column of typed numbers (or days, storage ``date``); a value that is absent or not finite is missing."""

    def __init__(self, values: np.ndarray, present: np.ndarray | None = None, storage: str = "number"):
        import pyarrow as pa

        finite = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), dtype=bool)
        native = values.astype(values.dtype.newbyteorder("="), copy=False)
        super().__init__(pa.array(native, mask=~(finite if present is None else finite & present)), storage)

    @staticmethod
    def cell(value: float | None) -> str:
        return "" if value is None else number_text(value)  # "" is missing under every setting

    def numbers(self, missing: Sequence[str], date_format: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        present = self.values.is_valid().to_numpy(zero_copy_only=False)
        return self._filled().astype(np.float64), np.where(present, NUMBER, MISSING).astype(np.int8)

    def short(self, length: int) -> np.ndarray:
        values = self._filled()
        maybe = np.flatnonzero(_maybe_short(values.astype(np.float64), length))  # only these need be written as text
        distinct, place = np.unique(values[maybe], return_inverse=True)
        fits = np.array([len(number_text(value)) <= length for value in distinct.tolist()], dtype=bool)
        short = np.zeros(len(values), bool)
        short[maybe] = fits[place.reshape(-1)]
        return short

    def _filled(self) -> np.ndarray:
        """Return the numbers, 0 where one is missing."""
        return self.values.fill_null(0).to_numpy(zero_copy_only=False)


class ArrayColumn(Column):
    """A column with an array in each row (an image, for example), as NPZ files hold them: (rows, *shape)."""

    storage = "array"

    def __init__(self, values: np.ndarray):
        self.values = values

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row, which is structure of the file and public."""
        return self.values.shape[1:]

    def numbers(self, missing: Sequence[str], date_format: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        raise DataStructureError("A column of arrays has no single number in a row: declare it with kind = 'array'.")

    def texts(self) -> tuple[np.ndarray, list[str]]:
        raise _no_text()

    def counts(self, rows: np.ndarray) -> dict[str, int]:
        raise _no_text()

    def short(self, length: int) -> np.ndarray:
        raise _no_text()

    def take(self, rows: np.ndarray) -> "ArrayColumn":
        return ArrayColumn(self.values[rows])

    @classmethod
    def join(cls, columns: Sequence[Any]) -> "ArrayColumn":
        return cls(np.concatenate([column.values for column in columns]))


def _no_text() -> DataStructureError:
    return DataStructureError("A column of arrays has no text in a row: declare it with kind = 'array'.")


class Table:
    """Named columns and a mask of the rows that count.

    A row of the wrong width keeps its place with missing cells and ``valid`` False, and contributes zero everywhere.
    The ``repr`` shows nothing of the rows.

    Attributes:
        names: The names of the columns, which are structure of the file and taken to be public.
        valid: Which rows count, bool, shape (rows,). Private.
    """

    def __init__(self, columns: Mapping[str, Column], valid: np.ndarray | None = None):
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:  # the message gives no length, because the number of rows is private
            raise DataStructureError(
                "The columns of a table must all have the same number of rows. For an NPZ file whose arrays do not, "
                "declare the ones to use in a schema (--schema)."
            )
        rows = lengths.pop() if lengths else 0
        self._columns = dict(columns)
        self.valid = np.ones(rows, dtype=bool) if valid is None else valid
        if self.valid.shape != (rows,):
            raise DataStructureError("valid must hold one entry for each row.")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._columns)

    @property
    def num_rows(self) -> int:
        """The number of rows, including those that do not count. Private under add_or_remove_one."""
        return len(self.valid)

    def column(self, name: str) -> Column:
        """Return the column of that name. An error does not list the names in the file."""
        if name not in self._columns:
            raise no_column(name, self._columns)
        return self._columns[name]

    def keep(self, rows: np.ndarray) -> "Table":
        """Return the same table, in which only rows of the mask ``rows`` count."""
        return Table(self._columns, self.valid & rows)

    def only(self, names: Sequence[str]) -> "Table":
        """Return the table of these columns alone."""
        return Table({name: self.column(name) for name in names}, self.valid)

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator["Table"]:
        """Yield the table itself as the only chunk, so that code for the chunks of a file accepts a table, too."""
        yield self if columns is None else self.only(tuple(dict.fromkeys(columns)))

    def whole(self, columns: Sequence[str] | None = None) -> "Table":
        """Return the table, or some columns of it."""
        return next(self.chunks(columns))

    def take(self, rows: np.ndarray) -> "Table":
        """Return the table of these rows alone (indices or a mask)."""
        return Table({name: column.take(rows) for name, column in self._columns.items()}, self.valid[rows])

    def __repr__(self) -> str:
        return f"Table({len(self._columns)} columns)"


def joined(tables: Sequence[Table]) -> Table:
    """Join the rows of one or more tables with the same columns, one after the other."""
    first = tables[0]
    columns = {name: type(first.column(name)).join([table.column(name) for table in tables]) for name in first.names}
    return Table(columns, np.concatenate([table.valid for table in tables]))


def _maybe_short(values: np.ndarray, length: int) -> np.ndarray:
    """Return a mask of the numbers whose text may have at most ``length`` characters.

    They have few decimals or are written with an exponent. Some have a longer text; no other number has a short one.
    """
    scaled = np.abs(values) * 10.0**length
    with np.errstate(all="ignore"):
        few = np.abs(scaled - np.rint(scaled)) <= 1e-6 * scaled
    size = np.abs(values)
    return ((size < 10.0**length) & few) | (size < 1e-4) | (size >= 2.0**53)


def no_column(
    name: str, names: Iterable[str], near: str = "", named_by: str = "the settings name"
) -> DataStructureError:
    """Return the error about a column that the file does not have.

    Of the file's own ``names`` it shows those alone that are ``name`` in other capitals: the first line of a file
    without a header is a record.
    """
    same = [one for one in names if one.casefold() == name.casefold()]
    if same:
        near = f" Did you mean {' or '.join(map(repr, same))}? Capitals count."
    return DataStructureError(f"The data have no column {name!r}, which {named_by}.{near} {NO_COLUMN_HINT}")


COMMA_HINT = "A name that holds a comma is quoted: --drop '\"one, two\",three'."
NO_COLUMN_HINT = (
    'Check the spelling, the delimiter (--delimiter; "," if not given), and whether the file has a header line '
    "(--columns names the columns of one without). tacita schema FILE shows the names, to the holder of the data alone."
)
