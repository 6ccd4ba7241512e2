"""Predict on a file: its rows as they were, with a prediction and, for a classification, a probability for each class.

No privacy is claimed for the rows that are predicted on. They are the caller's own, and go to the caller's own file.
"""

import io
import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from tacita._files import replace_in_pieces
from tacita.errors import DataStructureError
from tacita.tables.csv_lines import FileFormat, blocks, decoded_line, split_line
from tacita.tables.features import NumberTarget
from tacita.tables.json_lines import is_json_lines, lines_of
from tacita.tables.multiline import records
from tacita.tables.parquet_file import words_kept_back
from tacita.tables.readers import open_table
from tacita.tables.table import Table
from tacita.tables.table_file import ROWS
from tacita.tables.table_model import TableModel

PREDICTION = "prediction"
Cells = list[list[str]]  # the cells of the new columns, column by column
PredictedChunks = Iterator[tuple[Cells, np.ndarray]]  # with a mask of the rows that count


def predict_file(model: TableModel, data: str, output: str) -> list[int]:
    """Write ``data`` with predictions to ``output``, whole or not at all; see :func:`predicted_pieces`.

    Returns:
        The numbers, from 0, of the rows that could not be read, and so have no prediction.

    Raises:
        DataStructureError: The file cannot be read, a column is missing, or one is already named like a prediction.
        OSError: The output cannot be written.
    """
    source, target = Path(data), Path(output)
    if target.exists() and source.exists() and target.samefile(source):
        raise ValueError(f"output must not be the file that is read, got {output!r}.")
    unread: list[int] = []
    pieces = predicted_pieces(model, data, as_parquet=target.suffix.lower() == ".parquet", unread=unread)
    replace_in_pieces(target, pieces)
    return unread


def predicted_pieces(
    model: TableModel, data: str, *, as_parquet: bool = False, unread: list[int] | None = None
) -> Iterator[bytes]:
    """Return the bytes of ``data`` with predictions, piece by piece.

    The lines of a CSV stay as they are, byte for byte, and get more cells; the objects of JSON lines get more names. A
    Parquet file becomes Parquet or CSV. For
    an NPZ file the predictions alone are written, as CSV. A row of the wrong width keeps its line and gets empty cells;
    the numbers of such rows, from 0, are added to ``unread``, piece by piece.
    Dates are written as texts by ISO 8601: ``2024-05-01``, or with seconds if the target varies within a day.

    Raises:
        DataStructureError: The file cannot be read, a column is missing, or one is already named like a prediction;
            the last of them when the first piece is asked for.
    """
    source = Path(data)
    reading = model.encoder.reading
    table = open_table(source, reading, only=model.encoder.columns(with_target=False) or None)
    chunks = ((_predicted(model, chunk), chunk.valid) for chunk in _seen(table.chunks(), unread))
    suffix = source.suffix.lower()
    kinds: dict[str, type] = dict.fromkeys(_names(model), float)
    if model.encoder.task == "classification" or _predicts_dates(model):
        kinds[PREDICTION] = str
    if suffix == ".parquet":
        return _parquet(source, kinds, chunks, as_parquet=as_parquet)
    if suffix == ".npz":
        return _alone(_names(model), chunks)
    if is_json_lines(source):
        return _in_objects(source, reading, kinds, chunks)
    return _appended(source, reading, _names(model), chunks)


def _seen(chunks: Iterable[Table], unread: list[int] | None) -> Iterator[Table]:
    """Yield the chunks, and add the numbers of their rows that could not be read to ``unread``."""
    first = 0
    for chunk in chunks:
        if unread is not None:
            unread += (first + np.flatnonzero(~chunk.valid)).tolist()
        first += chunk.num_rows
        yield chunk


def _predicts_dates(model: TableModel) -> bool:
    target = model.encoder.target
    return isinstance(target, NumberTarget) and target.dates


def _names(model: TableModel) -> list[str]:
    """Return the names of the new columns."""
    if model.encoder.task != "classification":
        return [PREDICTION]
    return [PREDICTION, *(f"probability_{name}" for name in model.classes)]


def _predicted(model: TableModel, table: Table) -> Cells:
    """Return the cells of the new columns, column by column."""
    predicted, chances = model.predicted(table)
    if chances is None:
        return [predicted.astype(str).tolist() if _predicts_dates(model) else [f"{value:.9g}" for value in predicted]]
    return [list(predicted), *([f"{value:.6g}" for value in column] for column in chances.T)]


def _alone(names: list[str], chunks: PredictedChunks) -> Iterator[bytes]:
    """Yield a CSV of the new columns alone."""
    yield _line(names, FileFormat()) + b"\n"
    for columns, _ in chunks:
        yield b"".join(_line(cells, FileFormat()) + b"\n" for cells in zip(*columns, strict=True))


def _appended(source: Path, reading: FileFormat, names: list[str], chunks: PredictedChunks) -> Iterator[bytes]:
    """Yield the lines of the file as they are, with the new cells, piece by piece."""
    width = len(reading.columns)
    if reading.header:
        header = next(iter(blocks(source))).partition(b"\n")[0].removesuffix(b"\r")
        width = len(split_line(decoded_line(header, reading), reading))
        _refuse_twice(names, header.decode(reading.encoding, "replace").split(reading.delimiter))
        yield _joined(header, _line(names, reading), reading) + b"\n"
    empty = _line([""] * len(names), reading)
    # The table was read by the same blocks, so that the n-th chunk has a row for each record of the n-th block.
    for (block, ends, _), (columns, valid) in zip(records(source, reading, width), chunks, strict=True):
        starts = np.append(0, ends[:-1] + 1)
        lines = (block[start:end].removesuffix(b"\r") for start, end in zip(starts, ends, strict=True))
        cells = zip(*columns, strict=True)
        out = [
            _joined(line, _line(row, reading) if counts else empty, reading)
            for line, row, counts in zip(lines, cells, valid, strict=True)
        ]
        yield b"".join(line + b"\n" for line in out)


def _in_objects(source: Path, reading: FileFormat, kinds: dict[str, type], chunks: PredictedChunks) -> Iterator[bytes]:
    """Yield the objects as they are, with the new names in those that count."""
    _refuse_twice(list(kinds), reading.columns)
    names = [(json.dumps(name), json.dumps if kind is str else str) for name, kind in kinds.items()]
    for block, (columns, valid) in zip(blocks(source), chunks, strict=True):
        out = []
        for line, row, counts in zip(lines_of(block), zip(*columns, strict=True), valid, strict=True):
            added = ",".join(f"{name}:{write(cell)}" for (name, write), cell in zip(names, row, strict=True))
            begun = line.rstrip().removesuffix(b"}").rstrip()
            comma = b"" if begun.endswith(b"{") else b","
            out.append((begun + comma + added.encode() + b"}" if counts else line) + b"\n")
        yield b"".join(out)


def _joined(line: bytes, cells: bytes, reading: FileFormat) -> bytes:
    return line + reading.delimiter.encode() + cells


def _line(cells, reading: FileFormat) -> bytes:
    return reading.delimiter.join(_quoted(cell, reading) for cell in cells).encode(reading.encoding, "replace")


def _quoted(cell: str, reading: FileFormat) -> str:
    if reading.delimiter in cell or reading.quote in cell:
        return reading.quote + cell.replace(reading.quote, 2 * reading.quote) + reading.quote
    return cell


def _parquet(source: Path, kinds: dict[str, type], chunks: PredictedChunks, *, as_parquet: bool) -> Iterator[bytes]:
    """Yield the file with the new columns, piece by piece, as Parquet or as CSV."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    batches, written = _batches(source), _Written()
    first = next(batches)
    _refuse_twice(list(kinds), first.schema.names)
    new = [pa.field(name, pa.string() if kind is str else pa.float64()) for name, kind in kinds.items()]
    schema = pa.schema([*first.schema, *new], first.schema.metadata)
    rows = (row for columns, _ in chunks for row in zip(*columns, strict=True))
    try:
        with (pyarrow.parquet.ParquetWriter if as_parquet else pyarrow.csv.CSVWriter)(
            pa.PythonFile(written, "w"), schema
        ) as writer:
            # Batches of the file and chunks of predictions differ in size: rows are taken one by one from ``rows``.
            for batch in chain([first], batches):
                cells = zip(*islice(rows, batch.num_rows), strict=True) if batch.num_rows else ((),) * len(new)
                added = [
                    pa.array(map(kind, own), field.type)
                    for kind, own, field in zip(kinds.values(), cells, new, strict=True)
                ]
                writer.write_batch(pa.record_batch([*batch.columns, *added], schema))
                yield written.taken()
        yield written.taken()
    except pa.ArrowException:
        raise DataStructureError(
            "data must hold flat columns to become a CSV: choose an --output that ends in .parquet."
        ) from None


def _batches(source: Path) -> Iterator[Any]:
    """Yield an empty batch, which shows the structure, then all rows."""
    import pyarrow as pa
    import pyarrow.parquet

    with (
        words_kept_back(source),  # those of a damaged column that the model does not need, too
        pyarrow.parquet.ParquetFile(source, pre_buffer=False) as file,  # else it keeps all that was read
    ):
        yield pa.RecordBatch.from_pylist([], file.schema_arrow)
        yield from file.iter_batches(batch_size=ROWS)


class _Written(io.RawIOBase):
    """A file in memory that hands over what was written to it, and keeps nothing."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._parts.append(bytes(data))
        self._length += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._length

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


def _refuse_twice(names: list[str], present) -> None:
    taken = {str(name).strip() for name in present}
    for name in names:
        if name in taken:
            raise DataStructureError(
                f"data already has a column {name!r}, which the predictions would repeat: rename it."
            )
