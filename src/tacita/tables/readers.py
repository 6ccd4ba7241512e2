"""Readers: a CSV, Parquet or NPZ file becomes a table, and no row can raise or reach a message.

Place: file -> [tables.readers] -> table. Private, but for the names of the columns.
CSV: a record is one physical line, split at the newline byte *before* it is decoded, so that no record can reach into
the next one (an open quote, half a character). Nothing is sniffed from rows: delimiter, quote, encoding and header are
settings. A row of the wrong width does not count. The parsers' own messages, which quote cells, are never shown.
"""

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from tacita.errors import DataStructureError
from tacita.tables.cells import parse_number
from tacita.tables.table import ArrayColumn, Column, NumberColumn, Table, TextColumn

_Character = Annotated[str, msgspec.Meta(min_length=1, max_length=1)]


class Reading(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to read a file. The defaults are stated here; nothing is guessed from the rows.

    Attributes:
        delimiter: One character between two cells of a CSV.
        quote: One character around a cell that may hold the delimiter; doubled, it stands for itself.
        encoding: Of a CSV; any one in which ASCII is ASCII. Decoding is lossy, never failing.
        header: Whether the first line of a CSV holds the names.
        columns: The names, for a CSV without a header.
    """

    delimiter: _Character = ","
    quote: _Character = '"'
    encoding: str = "utf-8"
    header: bool = True
    columns: tuple[str, ...] = ()

    def __post_init__(self):
        _check_encoding(self.encoding)
        for name in ("delimiter", "quote"):
            character = getattr(self, name)
            if len(character) != 1 or character in "\r\n" or not character.isascii():
                raise ValueError(f"{name} must be one ASCII character on the line, got {character!r}.")
        if self.delimiter == self.quote:
            raise ValueError(f"delimiter and quote must differ, got {self.quote!r} for both.")
        if self.header and self.columns:
            raise ValueError("columns names the columns of a file without a header: set header=False (--no-header).")
        if not self.header and not self.columns:
            raise ValueError("header=False needs columns: without names the first record would become them.")
        if len(set(self.columns)) != len(self.columns):
            raise ValueError("columns must not repeat a name.")


def read_table(path: str | Path, reading: Reading | None = None, *, only: Sequence[str] | None = None) -> Table:
    """Read ``path`` by its ending: .csv, .tsv, .txt, .data, anything else as CSV (.gz: compressed), .parquet, .npz.

    Args:
        path: The file.
        reading: How to read it; ``None``: the defaults of :class:`Reading`.
        only: The columns to keep; needed for an NPZ file whose arrays have different lengths.

    Raises:
        DataStructureError: The file cannot be read, a column of ``only`` is missing, names repeat. The message names
            settings, never a cell; of the file's own columns only one of a Parquet or NPZ file, of a wrong type.
    """
    path, reading = Path(path), reading or Reading()
    if path.suffix.lower() == ".parquet":
        columns = _read_parquet(path, only)
    elif path.suffix.lower() == ".npz":
        columns = _read_npz(path, only)
    else:
        return _read_csv(path, reading, only)
    return Table(columns)


def _read_csv(path: Path, reading: Reading, only: Sequence[str] | None) -> Table:
    lines = _lines(_content(path), reading.encoding)
    names = _header(next(lines, None), reading) if reading.header else reading.columns
    wanted = _places(names, only)
    blank = [""] * len(names)
    rows, valid = [], []
    for line in lines:
        cells = split_line(line, reading)
        valid.append(len(cells) == len(names))
        rows.append(cells if valid[-1] else blank)
    columns: dict[str, Column] = {name: TextColumn.of(row[i] for row in rows) for name, i in wanted.items()}
    return Table(columns, np.array(valid, dtype=bool))


def split_line(line: str, reading: Reading) -> list[str]:
    """The cells of one physical line; a line the parser refuses has none.

    Example:
        >>> split_line('a, "b, c",d', Reading())
        ['a', 'b, c', 'd']
        >>> split_line('a,"never closed', Reading())
        ['a', 'never closed']
    """
    if reading.quote not in line:
        return line.split(reading.delimiter)
    try:
        rows = list(csv.reader([line], delimiter=reading.delimiter, quotechar=reading.quote, skipinitialspace=True))
    except csv.Error:  # a field over the parser's limit, a lone carriage return: the row does not count
        return []
    return rows[0] if rows else []


def _content(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix.lower() == ".gz" else data
    except (OSError, EOFError, zlib.error):
        raise DataStructureError(f"data must be a readable file, got {str(path)!r}. {_READ_HINT}") from None


def _lines(data: bytes, encoding: str) -> Iterator[str]:
    """Physical lines; the newline after the last record starts none."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    return (line.removesuffix(b"\r").decode(encoding, errors="replace") for line in lines)


def _header(line: str | None, reading: Reading) -> tuple[str, ...]:
    names = tuple(cell.strip() for cell in split_line(line, reading)) if line is not None else ()
    # A record taken for a header would travel into messages as names: refuse what looks like one, without showing it.
    if not names or len(set(names)) < len(names) or "" in names or any(parse_number(n) is not None for n in names):
        raise DataStructureError(
            "header=True needs a first line of distinct names, none of them empty or a number. "
            "For a file without a header set header=False and columns."
        )
    return names


def _places(names: Sequence[str], only: Sequence[str] | None) -> dict[str, int]:
    places = {name: i for i, name in enumerate(names)}
    for name in only or ():
        if name not in places:
            raise DataStructureError(f"The data have no column {name!r}, which the settings name. {_NAME_HINT}")
    return places if only is None else {name: places[name] for name in only}


def _read_parquet(path: Path, only: Sequence[str] | None) -> dict[str, Column]:
    from pyarrow import parquet

    try:
        names = parquet.read_schema(path).names
        _distinct(names)
        table = parquet.read_table(path, columns=list(_places(names, only)))
        return {name: _from_arrow(name, table.column(name)) for name in table.column_names}
    except DataStructureError:
        raise
    except Exception:  # whatever a library makes of bytes that are wrong, its words may quote them
        raise DataStructureError(f"data must be a readable Parquet file, got {str(path)!r}.") from None


def _from_arrow(name: str, values) -> Column:
    """Integers, floats and decimals are numbers; times are days since 1970; the rest that is flat is text."""
    import pyarrow as pa

    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
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
        texts = values.cast(pa.large_binary()).to_pylist()  # bytes: a file may hold what is no UTF-8
        return TextColumn.of((_decoded(text or b"") for text in texts), storage="string")
    raise DataStructureError(f"Column {name!r} has a Parquet type that is no number, date or string: drop it.")


def _numbers(values, storage: str = "number", scale: float | None = None) -> NumberColumn:
    import pyarrow.compute as pc

    present = np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False), dtype=bool)  # pyright: ignore
    filled = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)  # pyright: ignore
    return NumberColumn(filled if scale is None else filled * scale, present, storage)


def _read_npz(path: Path, only: Sequence[str] | None) -> dict[str, Column]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in _places(archive.files, only)}
    except DataStructureError:
        raise
    except Exception:  # as above: of an array's header NumPy makes errors of Python's own tokenizer
        raise DataStructureError(f"data must be a readable NPZ file without objects, got {str(path)!r}.") from None
    return {name: _from_array(name, values) for name, values in arrays.items()}


def _from_array(name: str, values: np.ndarray | bytes) -> Column:
    if isinstance(values, bytes):  # of a member of the archive that is no array
        raise DataStructureError("data must be an NPZ file of arrays: a member of it is none.")
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


def _decoded(cell: bytes) -> str:
    return cell.decode("utf-8", errors="replace")


def _readable(texts: np.ndarray) -> np.ndarray:
    """Code points that no text may hold, but a file can, are replaced."""
    native = np.ascontiguousarray(texts, dtype=texts.dtype.newbyteorder("="))
    if not native.dtype.itemsize:
        return native
    points = native.view(np.uint32)
    wrong = (points > 0x10FFFF) | ((points >= 0xD800) & (points < 0xE000))
    return np.where(wrong, 0xFFFD, points).astype(np.uint32).view(native.dtype)


def _distinct(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise DataStructureError("data must have distinct column names: a name is repeated.")


def _check_encoding(encoding: str) -> None:
    probe = "".join(map(chr, range(128)))
    try:
        plain = probe.encode(encoding) == probe.encode("ascii")
        plain = plain and rb"\ud800".decode(encoding, errors="replace") == r"\ud800"
        bytes(range(128, 256)).decode(encoding, errors="replace")
    except (LookupError, ValueError):
        plain = False
    if not plain:  # UTF-16 and the like: one odd record would shift all that follow
        raise ValueError(f"encoding must be one that contains ASCII (utf-8, latin-1, cp1252, ...), got {encoding!r}.")


_READ_HINT = "Check the path, the permissions and, for .gz, that the file is whole."
_NAME_HINT = "Check the spelling, the delimiter, and whether the file has a header line."
