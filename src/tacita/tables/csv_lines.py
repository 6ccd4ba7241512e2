"""The format of a CSV, its bytes as whole physical lines, block by block, and each block as columns of cells. Private.

A record is one physical line, unless the format says ``multiline`` (:mod:`tacita.tables.multiline`), and what it
becomes depends on it alone. Records that are plain (the right width,
quotes only around whole cells, no stray carriage return, well-formed text) are read together by Arrow; each of the
others is read by itself. Both ways give the same cells, which tests compare; the bytes of a line alone decide which way
it is read.
"""

import codecs
import csv
import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from tacita.errors import DataStructureError
from tacita.tables.cells import DECIMAL_MARKS, SPACES

BLOCK = 2**22  # bytes of lines at once
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NEWLINE, _RETURN, _ASCII = 10, 13, 128
_LONGEST = 100_000  # bytes; a longer line with quotes is read by itself, because that parser has a limit of its own
_LARGEST_BLOCK = 2**30
_ONE_BYTE = ("ascii", "iso8859", "cp125", "koi8", "mac", "cp437", "cp85")  # encodings in which ASCII bytes are ASCII


_Character = Annotated[str, msgspec.Meta(min_length=1, max_length=1)]


class FileFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The format of a file of text. Nothing is guessed from the rows; what is not given has the defaults below.

    Attributes:
        delimiter: One character between two cells of a CSV.
        quote: One character around a cell that may hold the delimiter; doubled, it stands for itself.
        encoding: The encoding of a CSV; any one that contains ASCII. Faulty bytes are replaced and never raise.
        header: Whether the first line of a CSV holds the names of the columns.
        columns: The names of the columns, for a CSV without a header.
        decimal: The decimal mark of numbers in text, "." or ",".
        multiline: Whether a quoted cell of a CSV may hold line breaks.
    """

    delimiter: _Character = ","
    quote: _Character = '"'
    encoding: str = "utf-8"
    header: bool = True
    columns: tuple[str, ...] = ()
    decimal: str = "."
    multiline: bool = False

    def __post_init__(self):
        _check_encoding(self.encoding)
        for name in ("delimiter", "quote"):
            character = getattr(self, name)
            if len(character) != 1 or character in "\r\n" or not character.isascii():
                raise ValueError(f"{name} must be one ASCII character on the line, got {character!r}.")
        if self.delimiter == self.quote:
            raise ValueError(f"delimiter and quote must differ, got {self.quote!r} for both.")
        if self.decimal not in DECIMAL_MARKS:
            raise ValueError(f'decimal must be "." or ",", got {self.decimal!r}.')
        if self.header and self.columns:
            raise ValueError("columns names the columns of a file without a header line: set header = false, too.")
        if not self.header and not self.columns:
            raise ValueError("header = false needs columns: without names the first record would become them.")
        if repeated := [name for i, name in enumerate(self.columns) if name in self.columns[:i]]:
            raise ValueError(f"columns must not repeat a name, got {repeated[0]!r} twice.")


def _check_encoding(encoding: str) -> None:
    probe = "".join(map(chr, range(128)))
    try:
        plain = probe.encode(encoding) == probe.encode("ascii")
        plain = plain and rb"\ud800".decode(encoding, errors="replace") == r"\ud800"
        bytes(range(128, 256)).decode(encoding, errors="replace")
    except (LookupError, ValueError):
        plain = False
    if not plain:  # in UTF-16, for example, one odd record would shift all that follow
        raise ValueError(f"encoding must be one that contains ASCII (utf-8, latin-1, cp1252, ...), got {encoding!r}.")


def blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of the file, cut after newlines, without a byte-order mark at the start.

    Raises:
        DataStructureError: The file cannot be read.
    """
    parts: list[bytes] = []
    for number, piece in enumerate(file_pieces(path)):
        data = piece if number else piece.removeprefix(BYTE_ORDER_MARK)
        cut = data.rfind(b"\n") + 1
        if cut:
            yield b"".join([*parts, data[:cut]])
            parts = []
        parts.append(data[cut:])
    if rest := b"".join(parts):
        yield rest


def file_pieces(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, decompressed if its name ends in ``.gz``.

    Raises:
        DataStructureError: The file cannot be read.
    """
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            while data := file.read(BLOCK):
                yield data
    except (OSError, EOFError, zlib.error):
        compressed = " Its name ends in .gz: is it gzip, and whole?" if path.suffix.lower() == ".gz" else ""
        raise DataStructureError(f"data must be a readable file, got {str(path)!r}.{compressed}") from None


def check_compression(path: Path) -> None:
    """Read a compressed file of lines once: nothing else of one can be broken.

    Raises:
        DataStructureError: The file cannot be read.
    """
    if path.suffix.lower() == ".gz":
        for _ in blocks(path):
            pass


def split_line(line: str, reading: FileFormat) -> list[str]:
    """Split one physical line into cells; a line that the parser refuses has none.

    Example:
        >>> split_line('a, "b, c",d', FileFormat())
        ['a', 'b, c', 'd']
        >>> split_line('a,"never closed', FileFormat())
        ['a', 'never closed']
    """
    if reading.quote not in line:
        return line.split(reading.delimiter)
    try:
        rows = list(csv.reader([line], delimiter=reading.delimiter, quotechar=reading.quote, skipinitialspace=True))
    except csv.Error:  # a field over the parser's limit, a lone carriage return: the row does not count
        return []
    return rows[0] if rows else []


def decoded_line(line: bytes, reading: FileFormat) -> str:
    """Decode one line, without its carriage return; faulty bytes are replaced."""
    return line.removesuffix(b"\r").decode(reading.encoding, errors="replace")


def line_ends(block: bytes) -> np.ndarray:
    """Return where each line ends: at its newline, or at the end of the block."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
    return ends if block.endswith(b"\n") else np.append(ends, len(block))


@dataclass(frozen=True)
class _Lines:
    """A block of bytes, and where its records start and end (at the newline)."""

    block: bytes
    bytes_of: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, block: bytes, ends: np.ndarray) -> "_Lines":
        return cls(block, np.frombuffer(block, np.uint8), np.append(0, ends[:-1] + 1), ends)

    def kept(self, lines: np.ndarray) -> bytes:
        """Return the bytes of the lines that the mask selects."""
        if lines.all():
            return self.block
        lengths = np.diff(np.append(self.starts, len(self.block)))
        return self.bytes_of[np.repeat(lines, lengths)].tobytes()


def cells_of(
    block: bytes, reading: FileFormat, width: int, places: Mapping[str, int], ends: np.ndarray | None = None
) -> tuple[dict[str, Any], np.ndarray]:
    """Read a block of records as columns of cells.

    Args:
        block: Whole lines.
        reading: How to read them.
        width: The number of cells that a line must have to count.
        places: The columns to read: name -> position.
        ends: Where the records end; by default, where lines do.

    Returns:
        An Arrow array of stripped strings for each name, and a mask of the rows that count; the others have empty
        cells.
    """
    lines = _Lines.of(block, line_ends(block) if ends is None else ends)
    plain = _plain(lines, reading, width)
    odd = np.flatnonzero(~plain)
    rows = [split_line(decoded_line(block[lines.starts[i] : lines.ends[i]], reading), reading) for i in odd]
    valid = np.ones(len(plain), bool)
    valid[odd] = [len(cells) == width for cells in rows]
    columns = _by_arrow(lines.kept(plain), int(plain.sum()), reading, width, places)
    if len(odd):
        columns = _merged(columns, [row if len(row) == width else [""] * width for row in rows], plain, places)
    return {name: stripped(values) for name, values in columns.items()}, valid


def _plain(lines: "_Lines", reading: FileFormat, width: int) -> np.ndarray:
    """Return a mask of the lines that Arrow reads as the parser of single lines does.

    No other line changes what is decided about a line.
    """
    block, bytes_of, starts, ends = lines.block, lines.bytes_of, lines.starts, lines.ends
    plain = np.full(len(ends), _known(reading.encoding) and len(block) < _LARGEST_BLOCK)
    delimiters = np.flatnonzero(bytes_of == ord(reading.delimiter))
    if reading.quote.encode() in block:
        quotes = np.flatnonzero(bytes_of == ord(reading.quote))
        before = np.searchsorted(quotes, starts)  # number of quotes in all lines before
        plain &= _well_quoted(lines, quotes, before, reading)
        own = np.searchsorted(quotes, delimiters) - before[np.searchsorted(ends, delimiters)]
        delimiters = delimiters[own % 2 == 0]
    plain &= np.diff(np.searchsorted(delimiters, ends), prepend=0) == width - 1
    if b"\r" in block:
        returns = np.flatnonzero(bytes_of == _RETURN)
        plain[np.searchsorted(ends, returns[~np.isin(returns + 1, ends)])] = False
    if not _one_text(block, reading.encoding):
        plain[np.searchsorted(ends, np.flatnonzero(bytes_of >= _ASCII))] = False
    return plain


def _well_quoted(lines: "_Lines", quotes: np.ndarray, before: np.ndarray, reading: FileFormat) -> np.ndarray:
    """Return a mask of the lines whose quotes stand only around whole cells, none of them doubled."""
    bytes_of, starts, ends = lines.bytes_of, lines.starts, lines.ends
    line = np.searchsorted(ends, quotes)
    opens = (np.arange(len(quotes)) - before[line]) % 2 == 0
    padded = np.concatenate([[_NEWLINE], bytes_of, [_NEWLINE]])
    beside = np.where(opens, padded[quotes], padded[quotes + 2])
    edge = (beside == ord(reading.delimiter)) | (beside == _NEWLINE) | (~opens & (beside == _RETURN))
    well = np.ones(len(ends), bool)
    well[line[~edge]] = False
    counts = np.diff(before, append=len(quotes))
    return well & (counts % 2 == 0) & ((counts == 0) | (ends - starts < _LONGEST))


def _one_text(block: bytes, encoding: str) -> bool:
    """Return whether the whole block may be decoded at once: it is ASCII, or UTF-8 without a fault."""
    if block.isascii():
        return True
    if codecs.lookup(encoding).name != "utf-8":
        return False
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _known(encoding: str) -> bool:
    """Return whether an ASCII byte always means that character; files in other encodings are read line by line."""
    name = codecs.lookup(encoding).name
    return name == "utf-8" or name.startswith(_ONE_BYTE)


def _by_arrow(lines: bytes, rows: int, reading: FileFormat, width: int, places: Mapping[str, int]) -> dict[str, Any]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    if not rows:
        return {name: pa.array([], pa.large_string()) for name in places}
    names = [str(i) for i in range(width)]
    wanted = [names[place] for place in places.values()]
    table = arrow_csv.read_csv(
        pa.BufferReader(b"\n" + lines),  # an empty line first: a byte-order mark at the start would be dropped
        read_options=arrow_csv.ReadOptions(
            use_threads=False, block_size=len(lines) + 2, column_names=names, skip_rows=1
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=reading.delimiter,
            quote_char=reading.quote,
            double_quote=False,
            escape_char=False,
            newlines_in_values=False,
            ignore_empty_lines=False,
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(wanted, pa.large_string()),
            include_columns=list(dict.fromkeys(wanted)),
            check_utf8=False,
            strings_can_be_null=False,
            null_values=[],
        ),
    )
    assert table.num_rows == rows
    return {name: table.column(names[place]).combine_chunks() for name, place in places.items()}


def _merged(
    columns: Mapping[str, Any], rows: Sequence[Sequence[str]], plain: np.ndarray, places: Mapping[str, int]
) -> dict[str, Any]:
    """Put the plain lines and the others into the order of the file."""
    import pyarrow as pa

    order = np.empty(len(plain), np.int64)
    order[plain] = np.arange(plain.sum())
    order[~plain] = plain.sum() + np.arange(len(rows))
    merged = {}
    for name, values in columns.items():
        others = pa.array([as_text(row[places[name]]) for row in rows], pa.large_string())
        merged[name] = pa.concat_arrays([values, others]).take(pa.array(order))
    return merged


def stripped(cells: Any) -> Any:
    """Strip white space around the strings of an Arrow array, as ``str.strip`` does."""
    import pyarrow.compute as pc

    return pc.utf8_trim(cells, SPACES)  # pyright: ignore[reportAttributeAccessIssue]


def as_text(cell: str) -> str:
    r"""Return the cell with half characters, which UTF-8 cannot hold, replaced.

    Example:
        >>> as_text("a\ud800b") == "a\ufffdb"
        True
    """
    try:
        cell.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in cell)
    return cell
