"""Bugs of tables: a parser that tells about rows, types and bounds that were not bought."""

from types import SimpleNamespace

import numpy as np

from tacita.tables import (
    cells,
    purchases,
)
from tests.planted.plant import bug, put, swap

PURCHASES = "tests/tables/test_purchases.py::"


@bug(38, caught_by=[PURCHASES + "test_floating_point_noise_leaves_no_trace"])
def floating_point_noise_on_counts():
    """Counts get floating-point noise, whose low bits show that they are integers."""
    put(purchases, "np", SimpleNamespace(rint=lambda counts: counts))


@bug(44, 50, caught_by=["tests/tables/test_pickles.py::test_an_object_in_an_npz_file_is_refused_and_not_run"])
def npz_unpickled():
    """Objects in an NPZ file are unpickled, which runs what they hold."""
    whole = np.load
    put(np, "load", lambda path, *, allow_pickle: whole(path, allow_pickle=True))


LINES = "tests/tables/test_csv_lines.py::"


@bug(50, caught_by=[LINES + "test_many_cells_are_read_as_one"])
def cells_cast_by_arrow():
    """Many cells are numbers where Arrow can cast them: nan, inf and what overflows."""
    import pyarrow as pa

    def cast(column, decimal="."):
        values = np.array([float(pa.scalar(cell).cast(pa.float64()).as_py()) if _castable(cell) else np.nan
                           for cell in column.to_pylist()])  # fmt: skip
        return np.nan_to_num(values), ~np.isnan(values)

    swap(cells.numbers_of, cast)


def _castable(cell):
    import pyarrow as pa

    try:
        pa.scalar(cell).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


@bug(
    20, caught_by=["tests/tables/test_table_file.py::test_a_parquet_file_is_read_in_memory_that_does_not_grow_with_it"]
)
def parquet_bytes_kept():
    """Arrow keeps the bytes of every row group that it has read, as it does unless it is told otherwise."""
    from pyarrow import parquet

    whole = parquet.ParquetFile.__init__
    put(
        parquet.ParquetFile,
        "__init__",
        lambda self, source, **more: whole(self, source, **{**more, "pre_buffer": True}),
    )
