"""Chunks that a thread reads ahead: the same ones, in the same order, with the same errors and settings."""

import numpy as np
import pytest

from tacita.errors import DataStructureError
from tacita.tables.table_file import one_ahead


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
