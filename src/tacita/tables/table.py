"""A table: named columns of one length, and a mask of the rows that count. Private.

A column gives the number and the text of each row. Cells of a CSV are strings. Parquet and NPZ files bring typed
values, which become numbers or texts by a fixed rule.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tacita.errors import DataStructureError
from tacita.tables.cells import MISSING, NUMBER, TEXT, number_text, numbers_of, parse_date
from tacita.tables.csv_lines import as_text, stripped


class Column(ABC):
    """One column. ``storage`` is the type that the file declares: cells, string, number, date or array."""

    storage: str

    @abstractmethod
    def __len__(self) -> int: ...

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

    def places_of(self, values: Sequence[str]) -> np.ndarray:
        """Return the position of each row's text in ``values`` (all distinct), -1 if it is not there, int64 (rows,)."""
        place = {value: i for i, value in enumerate(values)}
        codes, texts = self.texts()
        return np.array([place.get(text, -1) for text in texts] or [-1], dtype=np.int64)[codes]

    @abstractmethod
    def short(self, length: int) -> np.ndarray:
        """Return a mask of the rows whose texts have at most ``length`` characters, bool (rows,)."""

    def counts(self, rows: np.ndarray) -> dict[str, int]:
        """Count how often each text occurs among the rows that the mask selects."""
        codes, texts = self.texts()
        counts = np.bincount(codes[rows], minlength=len(texts))
        return {texts[i]: int(counts[i]) for i in np.flatnonzero(counts)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.storage})"


class TextColumn(Column):
    """A column of strings: an Arrow array of cells without white space around them.

    Args:
        cells: An Arrow array of stripped strings.
        storage: The type that the file declares: "cells" (of a CSV) or "string".
        decimal: The decimal mark of numbers among the cells.
    """

    def __init__(self, cells: Any, storage: str = "cells", decimal: str = "."):
        self.storage = storage
        self.cells = cells
        self._decimal = decimal
        self._coded: tuple[np.ndarray, list[str]] | None = None

    @classmethod
    def of(cls, cells: Iterable[str], storage: str = "cells", decimal: str = ".") -> "TextColumn":
        """Make a column from Python strings; white space around a cell is not part of it."""
        import pyarrow as pa

        return cls(stripped(pa.array([as_text(cell) for cell in cells], pa.large_string())), storage, decimal)

    def __len__(self) -> int:
        return len(self.cells)

    def numbers(self, missing: Sequence[str], date_format: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        absent = self.places_of(missing) >= 0
        if date_format is None:
            values, number = numbers_of(self.cells, self._decimal)
        else:
            values, number = self._dates(date_format)
        number &= ~absent
        kinds = np.where(number, NUMBER, np.where(absent, MISSING, TEXT)).astype(np.int8)
        return np.where(number, values, 0.0), kinds

    def texts(self) -> tuple[np.ndarray, list[str]]:
        if self._coded is None:
            coded = self.cells.dictionary_encode()
            known = coded.dictionary.to_pylist()
            order = sorted(range(len(known)), key=known.__getitem__)
            place = np.empty(len(known), np.int64)
            place[order] = np.arange(len(known))
            self._coded = place[coded.indices.to_numpy()], [known[i] for i in order]
        return self._coded

    def places_of(self, values: Sequence[str]) -> np.ndarray:
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pa.array([as_text(value) for value in values], pa.large_string())
        places = pc.index_in(self.cells, known)  # pyright: ignore[reportAttributeAccessIssue]
        return places.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)

    def counts(self, rows: np.ndarray) -> dict[str, int]:
        import pyarrow as pa

        counted = self.cells.filter(pa.array(rows)).value_counts()
        return dict(zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True))

    @classmethod
    def join(cls, columns: Sequence[Any]) -> "TextColumn":
        import pyarrow as pa

        cells = pa.concat_arrays([column.cells for column in columns])
        return cls(cells, columns[0].storage, columns[0]._decimal)

    def short(self, length: int) -> np.ndarray:
        import pyarrow.compute as pc

        return pc.utf8_length(self.cells).to_numpy() <= length  # pyright: ignore[reportAttributeAccessIssue]

    def take(self, rows: np.ndarray) -> "TextColumn":
        return TextColumn(_taken(self.cells, rows), self.storage, self._decimal)

    def _dates(self, date_format: str) -> tuple[np.ndarray, np.ndarray]:
        """Parse each distinct cell once."""
        codes, texts = self.texts()
        read = [parse_date(text, date_format) for text in texts]
        values = np.array([0.0 if value is None else value for value in read] or [0.0])
        number = np.array([value is not None for value in read] or [False])
        return values[codes], number[codes]


class NumberColumn(Column):
    """A column of typed numbers (or days, storage ``date``); a value that is absent or not finite is missing."""

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
        cells = [number_text(value) for value in values.tolist()] + [""]  # "" is missing under every setting
        raw = np.where(self._present, raw.reshape(-1), len(cells) - 1)
        codes, known = TextColumn.of(cells).texts()
        return codes[raw], known

    @classmethod
    def join(cls, columns: Sequence[Any]) -> "NumberColumn":
        values, present = (np.concatenate([getattr(c, name) for c in columns]) for name in ("_values", "_present"))
        return cls(values, present, columns[0].storage)

    def counts(self, rows: np.ndarray) -> dict[str, int]:
        values, counts = np.unique(self._values[rows & self._present], return_counts=True)
        absent = int((rows & ~self._present).sum())
        found = {number_text(value): int(count) for value, count in zip(values.tolist(), counts, strict=True)}
        return {**found, "": absent} if absent else found

    def short(self, length: int) -> np.ndarray:
        values = np.where(self._present, self._values, 0)
        maybe = np.flatnonzero(
            _maybe_short(values.astype(np.float64), length)
        )  # no other number need be written as text
        distinct, place = np.unique(values[maybe], return_inverse=True)
        fits = np.array([len(number_text(value)) <= length for value in distinct.tolist()], dtype=bool)
        short = np.zeros(len(values), bool)
        short[maybe] = fits[place.reshape(-1)]
        return short

    def take(self, rows: np.ndarray) -> "NumberColumn":
        return NumberColumn(self._values[rows], self._present[rows], self.storage)


class ArrayColumn(Column):
    """A column with an array in each row (an image, for example), as NPZ files hold them: (rows, *shape)."""

    storage = "array"

    def __init__(self, values: np.ndarray):
        self.values = values

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row, which is structure of the file and public."""
        return self.values.shape[1:]

    def __len__(self) -> int:
        return len(self.values)

    def numbers(self, missing: Sequence[str], date_format: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        raise DataStructureError("A column of arrays has no single number in a row: declare it with kind = 'array'.")

    def texts(self) -> tuple[np.ndarray, list[str]]:
        raise DataStructureError("A column of arrays has no text in a row: declare it with kind = 'array'.")

    @classmethod
    def join(cls, columns: Sequence[Any]) -> "ArrayColumn":
        return cls(np.concatenate([column.values for column in columns]))

    def short(self, length: int) -> np.ndarray:
        raise DataStructureError("A column of arrays has no text in a row: declare it with kind = 'array'.")

    def take(self, rows: np.ndarray) -> "ArrayColumn":
        return ArrayColumn(self.values[rows])


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


def _taken(cells: Any, rows: np.ndarray) -> Any:
    import pyarrow as pa

    return cells.filter(pa.array(rows)) if rows.dtype == bool else cells.take(pa.array(rows, pa.int64()))


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
