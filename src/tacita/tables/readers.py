"""Read a CSV, Parquet or NPZ file as a table, whole or in chunks. No row can raise, and none reaches a message.

The content is private, except for the names of the columns. In a CSV a record is one physical line. The file is split
at the newline byte *before* it is decoded, so that no record can reach into the next one (by an open quote or half a
character). Nothing is guessed from the rows: delimiter, quote, encoding and header are settings. A row of the wrong
width does not count. The parsers' own messages, which quote cells, are never shown.

A table in a file is read chunk by chunk and as often as needed: its structure is read when it is opened. Every rule of
tables looks at one row alone, so that it can be applied to chunks, in memory that does not grow with the number of
rows. The types of a Parquet file's columns say what is a number, a date or a text. The arrays of an NPZ file are in
memory.
"""

import contextvars
import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tacita._near_names import did_you_mean
from tacita._npz import read_arrays
from tacita.errors import DataStructureError
from tacita.tables.cells import parse_number
from tacita.tables.csv_lines import FileFormat, blocks, cells_of, decoded_line, split_line, stripped
from tacita.tables.table import NO_COLUMN_HINT, ArrayColumn, Column, NumberColumn, Table, TextColumn, joined

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
        DataStructureError: One is missing. The message may name others of ``only``, which are declared, and none of the
            file's own: the first line of a file without a header is a record.
    """
    found = {name: i for i, name in enumerate(names)}
    for name in only or ():
        if name not in found:
            near = did_you_mean(name, [other for other in only or () if other in found])
            raise DataStructureError(
                f"The data have no column {name!r}, which the settings name.{near} {NO_COLUMN_HINT}"
            )
    return found if only is None else {name: found[name] for name in only}


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return size, time and inode of a file: another value shows that it was changed."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


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
        return TextColumn.of(map(_decoded, values.tolist()), storage="string")
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


def _decoded(cell: bytes) -> str:
    return cell.decode("utf-8", errors="replace")


_INDEX = re.compile(r"__index_level_[0-9]+__")  # pandas writes an index without a name under this name


class ParquetFile(TableFile):
    """A table in a Parquet file; a column that pandas wrote as its index is not read."""

    def __init__(self, path: Path, only: Sequence[str] | None, decimal: str):
        from pyarrow import parquet

        self._decimal = decimal
        with _words_kept_back(path):
            schema = parquet.read_schema(path)
        _distinct(schema.names)
        names = [name for name in schema.names if not _INDEX.fullmatch(name)]
        kinds = {name: schema.field(name).type for name in places(names, only)}
        with _words_kept_back(path):
            columns = {name: _from_arrow(name, _no_values(kind), self._decimal) for name, kind in kinds.items()}
        super().__init__(path, columns, names)

    def _read(self, wanted: Sequence[str]) -> Generator[Table, None, None]:
        from pyarrow import parquet

        # Without pre_buffer=False, Arrow keeps the bytes of every row group that it has read until the end of the file.
        with _words_kept_back(self._path), parquet.ParquetFile(self._path, memory_map=False, pre_buffer=False) as file:
            batches = file.iter_batches(batch_size=ROWS, columns=list(wanted), use_threads=False)
            while (batch := next(batches, None)) is not None:
                valid = np.ones(batch.num_rows, bool)
                yield Table({name: _from_arrow(name, batch.column(name), self._decimal) for name in wanted}, valid)


def _no_values(kind: Any) -> Any:
    import pyarrow as pa

    return pa.array([], kind)


@contextmanager
def _words_kept_back(path: Path) -> Iterator[None]:
    """Replace every error of the library in this block, because its words may quote the file."""
    try:
        yield
    except (DataStructureError, GeneratorExit):
        raise
    except Exception:
        raise DataStructureError(f"data must be a readable Parquet file, got {str(path)!r}.") from None


def _from_arrow(name: str, values: Any, decimal: str) -> Column:
    """Make a column: integers, floats and decimals are numbers, times are days since 1970, other flat types text."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        micros = values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return _numbers(micros, storage="date", scale=1 / 86_400e6)
    if pa.types.is_decimal(kind):
        return _numbers(values.cast(pa.float64(), safe=False))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _numbers(values.cast(pa.float32() if pa.types.is_float16(kind) else kind))
    if pa.types.is_boolean(kind):
        values, kind = values.cast(pa.string()), pa.string()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return TextColumn(stripped(_readable_strings(values)), "string", decimal)
    raise DataStructureError(f"Column {name!r} has a Parquet type that is not a number, date or string: drop it.")


def _readable_strings(values: Any) -> Any:
    """Return large strings, with null as the empty cell and bytes that are not UTF-8 replaced."""
    import pyarrow as pa

    data = values.cast(pa.large_binary()).fill_null(b"")
    try:
        return data.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.array([text.decode("utf-8", errors="replace") for text in data.to_pylist()], pa.large_string())


def _numbers(values: Any, storage: str = "number", scale: float | None = None) -> NumberColumn:
    import pyarrow.compute as pc

    present = np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False), dtype=bool)  # pyright: ignore
    filled = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)  # pyright: ignore
    return NumberColumn(filled if scale is None else filled * scale, present, storage)


def _distinct(names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        if name in names[:place]:
            raise DataStructureError(f"data must have distinct column names: {name!r} is there twice.")


_BINARY = {  # how files begin that are not text
    b"PK": "a zip or Excel file: export it as CSV, or name it .npz if it is one",
    b"PAR1": "a Parquet file: give it a name that ends in .parquet",
    b"\x1f\x8b": "compressed: give it a name that ends in .gz",
}


def open_table(path: str | Path, reading: FileFormat | None = None, *, only: Sequence[str] | None = None) -> TableFile:
    """Open a file by its ending: .parquet, .npz, and any other as CSV (.gz: compressed).

    Args:
        path: The file.
        reading: The format of the file; ``None`` means the defaults of :class:`FileFormat`.
        only: The columns to keep; needed for an NPZ file whose arrays have different lengths.

    Raises:
        DataStructureError: The file cannot be read, a column of ``only`` is missing, or names repeat. The message names
            settings and never a cell; it names a column of the file only if that column of a Parquet or NPZ file has a
            wrong type.
    """
    path, reading = Path(path), reading or FileFormat()
    _check_there(path)
    if path.suffix.lower() == ".parquet":
        return ParquetFile(path, only, reading.decimal)
    if path.suffix.lower() == ".npz":
        return ArrayFile(path, only)
    return LineFile(path, reading, only)


def read_table(path: str | Path, reading: FileFormat | None = None, *, only: Sequence[str] | None = None) -> Table:
    """Read a whole file into memory; arguments as in :func:`open_table`.

    Raises:
        DataStructureError: As :func:`open_table`.
    """
    return open_table(path, reading, only=only).whole()


class LineFile(TableFile):
    """A table in a CSV."""

    def __init__(self, path: Path, reading: FileFormat, only: Sequence[str] | None):
        self._reading = reading
        names = _header(_first_line(path, reading), reading) if reading.header else reading.columns
        self._width = len(names)
        self._places = places(names, only)
        empty: dict[str, Column] = {name: TextColumn.of((), decimal=reading.decimal) for name in self._places}
        super().__init__(path, empty, names)

    def check(self) -> None:
        """Read a compressed file once: in a CSV, only the compression can be broken."""
        if self._path.suffix.lower() == ".gz":
            for _ in blocks(self._path):
                pass

    def _read(self, wanted: Sequence[str]) -> Generator[Table, None, None]:
        skip = self._reading.header
        for block in blocks(self._path):
            lines = block.partition(b"\n")[2] if skip else block
            skip = False
            if lines:
                places = {name: self._places[name] for name in wanted}
                cells, valid = cells_of(lines, self._reading, self._width, places)
                decimal = self._reading.decimal
                yield Table({name: TextColumn(values, decimal=decimal) for name, values in cells.items()}, valid)


def _first_line(path: Path, reading: FileFormat) -> str | None:
    block = next(iter(blocks(path)), None)
    if block is None:
        return None
    for start, what in _BINARY.items():
        if block.startswith(start) and not block.partition(b"\n")[0].isascii():
            raise DataStructureError(f"data must be a text file, got {str(path)!r}, which looks like {what}.")
    line = block.partition(b"\n")[0]
    if b"\0" in line:
        raise DataStructureError(
            f"data must be a text file in {reading.encoding}, got {str(path)!r}, whose first line holds zero bytes: a "
            "binary file, or one in UTF-16. Save it as CSV in UTF-8."
        )
    return decoded_line(line, reading)


def _header(line: str | None, reading: FileFormat) -> tuple[str, ...]:
    """Return the names in the first line. Messages give positions and no names, because the line may be a record."""
    if line is None:
        raise DataStructureError(
            f"data is empty: the file must have a header line with the columns' names. {_NO_HEADER}"
        )
    names = tuple(cell.strip() for cell in split_line(line, reading))
    if any(parse_number(name) is not None for name in names):
        raise DataStructureError(
            f"The first line of data must hold the columns' names, and a number stands among them. {_NO_HEADER}"
        )
    if "" in names:
        raise DataStructureError(
            f"Column {names.index('') + 1} has no name in the first line of data. pandas writes its index so: save "
            f"without it (to_csv(..., index=False)), or name it. {_NO_HEADER}"
        )
    for place, name in enumerate(names):
        if name in names[:place]:
            raise DataStructureError(
                f"Columns {names.index(name) + 1} and {place + 1} have the same name in the first line of data: rename "
                f"one of them. {_NO_HEADER}"
            )
    if not names:
        raise DataStructureError(f"The first line of data must hold the columns' names. {_NO_HEADER}")
    return names


def _check_there(path: Path) -> None:
    if not path.exists():
        raise DataStructureError(f"data must be a file that exists, got {str(path)!r}.")
    if path.is_dir():
        raise DataStructureError(f"data must be a file, got the folder {str(path)!r}.")


_NO_HEADER = "For a file without a header line give the names with --columns (columns, in a config or schema file)."
