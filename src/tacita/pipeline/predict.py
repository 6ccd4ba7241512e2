"""Score a file: its rows as they were, plus a prediction and, for a classifier, a probability a class.

Place: load -> [pipeline.predict] -> command line. No privacy is claimed here for the rows that are scored: they are the
caller's own, and go to the caller's own file.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np

from tacita._files import replace_durably
from tacita.errors import DataStructureError
from tacita.pipeline.load import TableModel
from tacita.tables.readers import Reading, read_table

PREDICTION = "prediction"


def predict_file(model: TableModel, data: str, output: str) -> None:
    """Write ``data`` with predictions to ``output``: CSV lines stay as they are, byte for byte, with cells appended.

    Parquet gives Parquet or CSV, by the ending of ``output``; NPZ gives CSV of the predictions alone. A row of the
    wrong width keeps its line and gets empty cells.

    Raises:
        DataStructureError: The file cannot be read, a column is missing, or one is already named like a prediction.
        OSError: The output cannot be written.
    """
    source, target = Path(data), Path(output)
    if target.exists() and source.exists() and target.samefile(source):
        raise ValueError(f"output must not be the file that is read, got {output!r}.")
    reading = model.encoder.reading
    table = read_table(source, reading, only=model.encoder.columns(with_target=False) or None)
    names, columns = _predicted(model, table)
    suffix = source.suffix.lower()
    if suffix == ".parquet":
        written = _parquet(source, target, names, columns)
    elif suffix == ".npz":
        rows = [_line(cells, Reading()) for cells in (names, *zip(*columns, strict=True))]
        written = b"\n".join(rows) + b"\n"
    else:
        written = _appended(source, reading, names, columns, table.valid)
    replace_durably(target, written)


def _predicted(model: TableModel, table) -> tuple[list[str], list[list[str]]]:
    """Names of the new columns, and their cells, column by column."""
    predicted = model.predict_table(table)
    if model.encoder.task != "classification":
        return [PREDICTION], [[f"{value:.9g}" for value in predicted]]
    chances = model.probabilities(table)
    names = [PREDICTION, *(f"probability_{name}" for name in model.classes)]
    return names, [list(predicted), *([f"{value:.6g}" for value in column] for column in chances.T)]


def _appended(source: Path, reading: Reading, names: list[str], columns: list[list[str]], valid: np.ndarray) -> bytes:
    lines = _physical_lines(source)
    out: list[bytes] = []
    if reading.header:
        header, *lines = lines
        _refuse_twice(names, header.decode(reading.encoding, "replace").split(reading.delimiter))
        out.append(_joined(header, _line(names, reading), reading))
    empty = _line([""] * len(names), reading)
    cells = zip(*columns, strict=True)
    for line, row, counts in zip(lines, cells, valid, strict=True):
        out.append(_joined(line, _line(row, reading) if counts else empty, reading))
    return b"\n".join(out) + b"\n"


def _physical_lines(source: Path) -> list[bytes]:
    try:
        data = source.read_bytes()
        data = gzip.decompress(data) if source.suffix.lower() == ".gz" else data
    except (OSError, EOFError, zlib.error):
        raise DataStructureError(f"data must be a readable file, got {str(source)!r}.") from None
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [line.removesuffix(b"\r") for line in (lines if lines[-1] else lines[:-1])]


def _joined(line: bytes, cells: bytes, reading: Reading) -> bytes:
    return line + reading.delimiter.encode() + cells


def _line(cells, reading: Reading) -> bytes:
    return reading.delimiter.join(_quoted(cell, reading) for cell in cells).encode(reading.encoding, "replace")


def _quoted(cell: str, reading: Reading) -> str:
    if reading.delimiter in cell or reading.quote in cell:
        return reading.quote + cell.replace(reading.quote, 2 * reading.quote) + reading.quote
    return cell


def _parquet(source: Path, target: Path, names: list[str], columns: list[list[str]]) -> bytes:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(source)
    except Exception:  # a column that the model does not need is damaged: the library's words may quote it
        raise DataStructureError(f"data must be a readable Parquet file, got {str(source)!r}.") from None
    _refuse_twice(names, table.column_names)
    for name, cells in zip(names, columns, strict=True):
        numbers = name != PREDICTION or len(names) == 1
        table = table.append_column(name, pa.array([float(cell) for cell in cells] if numbers else cells))
    sink = pa.BufferOutputStream()
    if target.suffix.lower() == ".parquet":
        pyarrow.parquet.write_table(table, sink)
        return sink.getvalue().to_pybytes()
    try:
        pyarrow.csv.write_csv(table, sink)
    except pa.ArrowException:
        raise DataStructureError(
            f"data must hold flat columns to become a CSV: give an output that ends in .parquet, got {str(target)!r}."
        ) from None
    return sink.getvalue().to_pybytes()


def _refuse_twice(names: list[str], present) -> None:
    taken = {str(name).strip() for name in present}
    for name in names:
        if name in taken:
            raise DataStructureError(
                f"data already has a column {name!r}, which the predictions would repeat: rename it."
            )
