"""Cells: what one string says, by one fixed pattern that no other row can change.

Place: readers -> [tables.cells] -> survey, encoding. Private.
A number is sign, digits, point, exponent; not what ``float()`` takes (``nan``, ``inf``, ``1_000``, full-width digits).
"""

import re
from datetime import datetime

MISSING, TEXT, NUMBER = 0, 1, 2  # what a cell is; also the first two bins of the survey

DEFAULT_MISSING: tuple[str, ...] = ("", "?", "NA", "N/A", "nan", "NaN", "null")

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_EPOCH = datetime(1970, 1, 1)


def parse_number(cell: str) -> float | None:
    """The cell's number, or ``None``: no match of the pattern, or too large for float64.

    Example:
        >>> [parse_number(cell) for cell in ("-1.5e3", ".5", "1_000", "nan", "1e999")]
        [-1500.0, 0.5, None, None, None]
    """
    if _NUMBER.fullmatch(cell) is None:
        return None
    value = float(cell)
    return None if value in (float("inf"), float("-inf")) else value


def parse_date(cell: str, date_format: str) -> float | None:
    """Days since 1970-01-01 of a cell in the declared format, or ``None``.

    Example:
        >>> parse_date("1970-01-02 12:00", "%Y-%m-%d %H:%M"), parse_date("yesterday", "%Y-%m-%d")
        (1.5, None)
    """
    try:
        moment = datetime.strptime(cell, date_format).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None
    return (moment - _EPOCH).total_seconds() / 86400.0


def number_text(value: float) -> str:
    """The cell of a typed number: integers without a point, so that the label 1 is ``"1"`` in every file format.

    Example:
        >>> number_text(1.0), number_text(0.1), number_text(7)
        ('1', '0.1', '7')
    """
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
