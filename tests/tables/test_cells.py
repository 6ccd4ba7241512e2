import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacita.tables.cells import number_text, parse_date, parse_number


@pytest.mark.parametrize(
    "cell",
    [
        "1_000",
        "nan",
        "inf",
        "-inf",
        "infinity",
        "1e999",
        "0x10",
        "1,5",
        "",
        "+",
        ".",
        "e5",
        "1e",
        "1 2",
        "١٢",
        "１２",
        "1\n",
        "1L",
    ],
)
def test_what_float_might_take_is_no_number(cell):
    assert parse_number(cell) is None


@pytest.mark.parametrize(
    ("cell", "value"),
    [("0", 0.0), ("-0", 0.0), ("+1.", 1.0), (".5", 0.5), ("-1.5E-3", -0.0015), ("1e-999", 0.0), ("9" * 300, 1e300)],
)
def test_numbers(cell, value):
    assert parse_number(cell) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_number_is_read_back(value):
    assert parse_number(repr(value)) == value


@given(st.text())
def test_any_text_is_a_finite_number_or_none(cell):
    value = parse_number(cell)
    assert value is None or math.isfinite(value)


@given(st.text(max_size=12))
def test_dates_never_raise(cell):
    value = parse_date(cell, "%Y-%m-%d %H:%M")
    assert value is None or math.isfinite(value)


def test_dates_with_a_zone_keep_their_wall_time():
    assert parse_date("1970-01-02 00:00+0500", "%Y-%m-%d %H:%M%z") == 1.0


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (-0.0, "0"), (2**60, str(2**60)), (0.5, "0.5"), (1e300, "1e+300")]
)
def test_typed_numbers_have_one_text(value, text):
    assert number_text(value) == text
