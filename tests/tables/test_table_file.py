"""Chunks that a thread reads ahead: the same ones, in the same order, with the same errors and settings."""

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tacita.errors import DataStructureError
from tacita.tables import predict as predict_module
from tacita.tables.readers import FileFormat, one_ahead, open_table, places


def test_the_items_come_in_their_order_and_none_twice():
    assert list(one_ahead(i for i in range(50))) == list(range(50))
    assert list(one_ahead(i for i in ())) == []


def test_what_fails_ahead_is_raised_after_the_items_before_it():
    def items():
        yield 1
        yield 2
        raise DataStructureError("broken")

    ahead = one_ahead(items())
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(DataStructureError, match="broken"):
        next(ahead)


def test_who_stops_early_closes_the_source():
    closed = []

    def items():
        try:
            yield from range(10)
        finally:
            closed.append(True)

    ahead = one_ahead(items())
    assert next(ahead) == 0
    ahead.close()
    assert closed == [True]


def test_the_thread_warns_of_nothing_that_its_caller_does_not(recwarn):
    """That a value overflows is a fact about a row: ``private_rows`` silences NumPy, in the thread too."""

    def items():
        for _ in range(3):
            yield float((np.array([1e308]) * np.array([1e308]))[0])

    with np.errstate(all="ignore"):
        assert list(one_ahead(items())) == [np.inf] * 3
    assert not recwarn.list


@pytest.mark.parametrize("read", ["to train", "to predict"])
def test_a_parquet_file_is_read_in_memory_that_does_not_grow_with_it(tmp_path, read):
    """Arrow counts what it holds: bytes of row groups that were read before must not be among it."""
    path, groups, rows = tmp_path / "t.parquet", 60, 20_000
    numbers = np.random.default_rng(0).normal(size=groups * rows)  # which no encoding makes smaller
    parquet.write_table(pyarrow.table({"x": numbers}), path, row_group_size=rows, use_dictionary=False)
    before, held = pyarrow.total_allocated_bytes(), []
    for chunk in open_table(path, FileFormat()).chunks() if read == "to train" else predict_module._batches(path):
        held.append(pyarrow.total_allocated_bytes() - before)
        del chunk
    assert len(held) > 10
    assert max(held) < 0.4 * numbers.nbytes


def test_a_mistyped_column_is_answered_with_none_of_the_files_own_names():
    """In a file without a header the first line is a record; a name that is declared and there may be suggested."""
    with pytest.raises(DataStructureError, match="no column 'alice_cancr'") as error:
        places(["alice_cancer", "x"], ["alice_cancr", "x"])
    assert "alice_cancer" not in str(error.value)
    with pytest.raises(DataStructureError, match="Did you mean 'label'"):
        places(["label", "x"], ["lable", "label"])
