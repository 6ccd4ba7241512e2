"""Read a file of CSV, JSON lines, Parquet or NPZ, whole or in chunks. No row can raise, and none reaches a message.

The content is private, except for the names of the columns. In a CSV a record is one physical line, unless its format
says that quoted cells may hold line breaks (:mod:`tacita.tables.multiline`). The file is split
at the newline byte *before* it is decoded, so that no record can reach into the next one (by an open quote or half a
character). Nothing is guessed from the rows: delimiter, quote, encoding and header are settings. A row of the wrong
width does not count. The parsers' own messages, which quote cells, are never shown.
"""

import re
from collections.abc import Generator, Sequence
from pathlib import Path

from tacita.errors import DataStructureError
from tacita.tables.array_file import ArrayFile
from tacita.tables.cells import parse_number
from tacita.tables.csv_lines import FileFormat, blocks, cells_of, check_compression, decoded_line, split_line
from tacita.tables.json_lines import JsonLinesFile, is_json_lines
from tacita.tables.multiline import records
from tacita.tables.parquet_file import ParquetFile
from tacita.tables.table import Column, Table, TextColumn
from tacita.tables.table_file import TableFile, places

_BINARY = {  # how files begin that are not text
    b"PK": "a zip or Excel file: export it as CSV, or name it .npz if it is one",
    b"PAR1": "a Parquet file: give it a name that ends in .parquet",
    b"\x1f\x8b": "compressed: give it a name that ends in .gz",
}


def open_table(path: str | Path, reading: FileFormat | None = None, *, only: Sequence[str] | None = None) -> TableFile:
    """Open a file by its ending: .parquet, .npz, .jsonl or .ndjson, and any other as CSV (.gz: compressed).

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
    if is_json_lines(path):
        return JsonLinesFile(path, reading, only)
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
        """Read a compressed file once, so that a broken one fails before any work."""
        check_compression(self._path)

    def _read(self, wanted: Sequence[str]) -> Generator[Table, None, None]:
        wanted_places = {name: self._places[name] for name in wanted}
        for lines, ends, counts in records(self._path, self._reading, self._width):
            cells, valid = cells_of(lines, self._reading, self._width, wanted_places, ends)
            decimal = self._reading.decimal
            columns = {name: TextColumn(values, decimal=decimal) for name, values in cells.items()}
            yield Table(columns, valid & counts)


def _first_line(path: Path, reading: FileFormat) -> str | None:
    block = next(iter(blocks(path)), None)
    if block is None:
        return None
    line = block.partition(b"\n")[0]
    for start, what in _BINARY.items():
        if block.startswith(start) and not line.isascii():
            raise DataStructureError(f"data must be a text file, got {str(path)!r}, which looks as if it were {what}.")
    if _JSON.match(block):
        raise DataStructureError(
            f"data must be a CSV, got {str(path)!r}, which begins as JSON does: write it as JSON lines, one object a "
            'line and no array (pandas: to_json(path, orient="records", lines=True)), and let its name end in .jsonl.'
        )
    if b"\r" in line.rstrip(b"\r"):
        raise DataStructureError(
            f"data must have lines that end in \\n or \\r\\n, got {str(path)!r}, where \\r stands inside the first: "
            "save it with other line ends."
        )
    if b"\0" in line:
        raise DataStructureError(
            f"data must be a text file in {reading.encoding}, got {str(path)!r}, whose first line holds zero bytes: a "
            "binary file, or one in UTF-16. Save it as CSV in UTF-8."
        )
    return decoded_line(line, reading)


def _header(line: str | None, reading: FileFormat) -> tuple[str, ...]:
    """Return the names in the first line. Messages give positions and no names, because the line may be a record."""
    if line is None or not line.strip():
        what = "data is empty" if line is None else "the first line of data is empty"
        raise DataStructureError(f"{what}: the file must have a header line with the columns' names. {_NO_HEADER}")
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


_JSON = re.compile(rb'\s*(\[\s*[\[{]|\{\s*["}])')  # an array of rows, or an object
_NO_HEADER = "For a file without a header line give the names with --columns (columns, in a config or schema file)."
