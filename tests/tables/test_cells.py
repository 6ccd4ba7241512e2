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


@pytest.mark.parametrize(
    ("cell", "days"),
    [
        ("1970-01-02 06:00+0600", 1.0),
        ("1970-01-01 18:00-0600", 1.0),
        ("1970-01-02 00:00+00:00", 1.0),
        ("1970-01-02 00:00Z", 1.0),
        ("1970-01-02 00:30+0030", 1.0),
        ("0001-01-01 00:00+0100", None),  # before the calendar's first day
        ("9999-12-31 23:30-0100", None),
        ("1970-01-02 00:00", None),
    ],
)
def test_dates_with_an_offset_are_those_of_utc(cell, days):
    assert parse_date(cell, "%Y-%m-%d %H:%M%z") == days
    assert days is None or parse_number(cell) in {days, None}  # as an ISO date with an offset is read


def test_a_zone_changes_nothing_but_the_offset():
    """The same moment, written in two zones, is one number; an hour between them is 1/24."""
    written = "%d/%b/%Y:%H:%M:%S %z"
    here, there = (parse_date(cell, written) for cell in ("10/Oct/2000:13:55:36 -0700", "10/Oct/2000:22:55:36 +0200"))
    assert here == there
    assert parse_date("10/Oct/2000:22:55:36 +0100", written) - there == pytest.approx(1 / 24, abs=1e-9)


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (-0.0, "0"), (2**60, str(2**60)), (0.5, "0.5"), (1e300, "1e+300")]
)
def test_typed_numbers_have_one_text(value, text):
    assert number_text(value) == text
