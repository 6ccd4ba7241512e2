"""A Parquet file as a table: the types of its columns say what is a number, a date or a text.

The content is private, except for the names and types of the columns.
"""

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tacita._npz import TOO_LARGE
from tacita.errors import DataStructureError
from tacita.tables.csv_lines import stripped
from tacita.tables.table import Column, NumberColumn, Table, TextColumn
from tacita.tables.table_file import ROWS, TableFile, places

_INDEX = re.compile(r"__index_level_[0-9]+__")  # pandas writes an index without a name under this name


class ParquetFile(TableFile):
    """A table in a Parquet file; a column that pandas wrote as its index is not read."""

    def __init__(self, path: Path, only: Sequence[str] | None, decimal: str):
        from pyarrow import parquet

        self._decimal = decimal
        with words_kept_back(path):
            schema = parquet.read_schema(path)
        _distinct(schema.names)
        names = [name for name in schema.names if not _INDEX.fullmatch(name)]
        kinds = {name: schema.field(name).type for name in places(names, only)}
        with words_kept_back(path):
            columns = {name: _from_arrow(name, _no_values(kind), self._decimal) for name, kind in kinds.items()}
        super().__init__(path, columns, names)

    def _read(self, wanted: Sequence[str]) -> Generator[Table, None, None]:
        from pyarrow import parquet

        # Without pre_buffer=False, Arrow keeps the bytes of every row group that it has read until the end of the file.
        with words_kept_back(self._path), parquet.ParquetFile(self._path, memory_map=False, pre_buffer=False) as file:
            batches = file.iter_batches(batch_size=ROWS, columns=list(wanted), use_threads=False)
            while (batch := next(batches, None)) is not None:
                valid = np.ones(batch.num_rows, bool)
                yield Table({name: _from_arrow(name, batch.column(name), self._decimal) for name in wanted}, valid)


def _no_values(kind: Any) -> Any:
    import pyarrow as pa

    return pa.array([], kind)


@contextmanager
def words_kept_back(path: Path) -> Iterator[None]:
    """Replace every error of the library in this block, because its words may quote the file."""
    try:
        yield
    except (DataStructureError, GeneratorExit):
        raise
    except MemoryError:
        raise DataStructureError(TOO_LARGE.format(str(path))) from None
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
