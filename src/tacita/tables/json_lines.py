"""A table in a file of JSON lines: one object a line. The content is private, and so are the names in its objects.

Place: csv_lines (physical lines) -> [json_lines] -> readers, predict. A record is one line, and what it becomes depends
on that line alone. Unlike a CSV the file has no header, so that the columns' names have to be declared: those of the
first object would be a record's.
"""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tacita.errors import DataStructureError
from tacita.tables.csv_lines import FileFormat, as_text, blocks, check_compression, line_ends, stripped
from tacita.tables.table import Column, Table, TextColumn
from tacita.tables.table_file import TableFile, places

ENDINGS = (".jsonl", ".ndjson")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)
_ABSENT = msgspec.Raw(b"null")


def is_json_lines(path: Path) -> bool:
    """Return whether a file is one of JSON lines, by its name."""
    return path.name.lower().removesuffix(".gz").endswith(ENDINGS)


def lines_of(block: bytes) -> list[bytes]:
    """Return the lines of a block, without their newlines."""
    ends = line_ends(block)
    return [block[start:end] for start, end in zip(np.append(0, ends[:-1] + 1), ends, strict=True)]


class JsonLinesFile(TableFile):
    """A table in a file of JSON lines."""

    def __init__(self, path: Path, reading: FileFormat, only: Sequence[str] | None):
        if not reading.columns:
            raise DataStructureError(
                f"data is a file of JSON lines, {str(path)!r}, which has no header: the names in its objects are part "
                "of the records. Give the names of the columns with --columns (columns, in a config or schema file); "
                "for texts, give --model."
            )
        self._places = places(reading.columns, only)
        empty: dict[str, Column] = {name: TextColumn.of(()) for name in self._places}
        super().__init__(path, empty, reading.columns)

    def check(self) -> None:
        """Read a compressed file once, so that a broken one fails before any work."""
        check_compression(self._path)

    def _read(self, wanted: Sequence[str]) -> Generator[Table, None, None]:
        import pyarrow as pa

        for block in blocks(self._path):
            # The columns of the file decide whether a line counts, and not those that are wanted at the moment.
            found = [cells_of_object(line, self.all_names) for line in lines_of(block)]
            valid = np.array([cells is not None for cells in found], bool)
            columns: dict[str, Column] = {}
            for name in wanted:
                place = self._places[name]
                cells = pa.array(["" if row is None else row[place] for row in found], pa.large_string())
                columns[name] = TextColumn(stripped(cells))
            yield Table(columns, valid)


def cells_of_object(line: bytes, names: Sequence[str]) -> list[str] | None:
    """Read one line as the cells of these columns: texts as they are, numbers as they are written, ``null`` as empty.

    Returns:
        The cells; ``None`` if the line is no JSON object in UTF-8, or holds a list or an object in one of the columns.

    Example:
        >>> cells_of_object(b'{"age": 41.50, "town": "Ulm", "old": false}', ["age", "town", "old", "income"])
        ['41.50', 'Ulm', 'false', '']
        >>> cells_of_object(b'{"age": [1]}', ["age"]) is cells_of_object(b'{"age": 1', ["age"]) is None
        True
    """
    try:
        fields = _OBJECT.decode(line)
        return [_cell(fields.get(name, _ABSENT)) for name in names]
    except (ValueError, RecursionError):
        return None


def _cell(raw: Any) -> str:
    data = bytes(raw)
    if data[:1] in b"[{":
        raise ValueError("a list or an object is no cell.")
    if data[:1] == b'"':
        return as_text(_TEXT.decode(data))
    return "" if data == b"null" else data.decode()
