r"""Cells: whether one string is a number, a date, a text or missing, by fixed patterns. Cells are private.

A number is a sign, digits, a point and an exponent. What only ``float()`` accepts is not a number (``nan``, ``inf``,
``1_000``, full-width digits). Numbers as people write them are accepted, too:

* digits in groups of three, separated by a comma (by a point where the decimal mark is a comma), an apostrophe or a
  space: ``1,234``, ``1'234.5``;
* a currency sign before or after: ``$1,234``, ``5 €``;
* a percentage, which is read as a share: ``5%`` is 0.05;
* an ISO 8601 date or timestamp, which is read as days since 1970-01-01 UTC: ``2024-05-01``, ``2024-05-01T12:00:00Z``.

Every rule looks at one cell alone, so that no other row can change what it is. ``numbers_of`` reads many cells at once
and gives the same bits as ``parse_number``.
"""

import re
from datetime import UTC, datetime

import numpy as np

MISSING, TEXT, NUMBER = 0, 1, 2  # kinds of a cell; the first two are also the first two bins of the survey

DEFAULT_MISSING: tuple[str, ...] = ("", "?", "NA", "N/A", "nan", "NaN", "null")
DECIMAL_MARKS = (".", ",")
SPACES = (  # the characters that str.strip() removes; a test compares the two
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
LONGEST = 64  # characters; a longer number with separators or signs, or a longer date, is a text

_PLAIN = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_CURRENCY = "[$\u20ac\u00a3\u00a5\u20b9]"
_GAP = "[ \u00a0\u202f]"
_ISO = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_NUMBER, _DATE = re.compile(_PLAIN), re.compile(_ISO)
_EPOCH = datetime(1970, 1, 1)


def _written(mark: str) -> str:
    """Return the pattern of a number as people write it.

    Groups: sign, sign after the currency, digits, decimals, decimals without digits before them, percent.
    """
    groups = "|".join(f"{gap}[0-9]{{3}}(?:{gap}[0-9]{{3}})*" for gap in ("," if mark == "." else r"\.", "'", _GAP))
    whole = f"(?:[0-9]{{1,3}}(?:{groups})|[0-9]+)"
    decimals = f"(?:{re.escape(mark)}([0-9]*))?"
    return (
        f"([+-]?){_CURRENCY}?{_GAP}?([+-]?)(?:({whole}){decimals}|{re.escape(mark)}([0-9]+))"
        f"(?:{_GAP}?(%)|{_GAP}?{_CURRENCY})?"
    )


_WRITTEN = {mark: re.compile(_written(mark)) for mark in DECIMAL_MARKS}


def parse_number(cell: str, decimal: str = ".") -> float | None:
    """Return the number in a cell, or ``None`` if the cell matches no pattern or is too large for float64.

    Args:
        cell: The text of the cell, without white space around it.
        decimal: The decimal mark, ``"."`` or ``","``.

    Example:
        >>> [parse_number(cell) for cell in ("-1.5e3", ".5", "1_000", "nan", "1e999")]
        [-1500.0, 0.5, None, None, None]
        >>> [parse_number(cell) for cell in ("$1,234", "5%", "1970-01-02", "1,23")]
        [1234.0, 0.05, 1.0, None]
        >>> parse_number("1.234,5", decimal=","), parse_number("1,5e3", decimal=",")
        (1234.5, 1500.0)
    """
    plain = cell if decimal == "." else _with_point(cell)
    if plain is not None and _NUMBER.fullmatch(plain):
        return _finite(float(plain))
    if len(cell) > LONGEST:
        return None
    return _parse_date(cell) if _DATE.fullmatch(cell) else _parse_written(cell, decimal)


def numbers_of(cells, decimal: str = ".") -> tuple[np.ndarray, np.ndarray]:
    """Parse each cell of an Arrow array of strings as :func:`parse_number` does.

    Returns:
        The values (float64, 0 for a cell that is not a number), shape (rows,), and a mask of the cells that are
        numbers.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    values = np.zeros(len(cells))
    pattern = rf"\A{_PLAIN if decimal == '.' else _PLAIN.replace(chr(92) + '.', ',')}\z"
    plain = pc.match_substring_regex(cells, pattern).to_numpy(zero_copy_only=False)  # pyright: ignore
    matched = cells if plain.all() else cells.filter(pa.array(plain))
    if decimal != ".":
        matched = pc.replace_substring(matched, ",", ".")  # pyright: ignore
    values[plain] = _as_floats(matched)
    number = plain & np.isfinite(values)
    others = np.flatnonzero(~plain)
    if len(others):  # each distinct cell is parsed once
        coded = cells.take(pa.array(others)).dictionary_encode()
        read = [None if cell == "" else parse_number(cell, decimal) for cell in coded.dictionary.to_pylist()]
        found = np.array([np.nan if value is None else value for value in read] or [np.nan])
        values[others] = found[coded.indices.to_numpy()]
        number[others] = np.isfinite(values[others])
    return np.where(number, values, 0.0), number


def parse_date(cell: str, date_format: str) -> float | None:
    """Return a date in the declared format as days since 1970-01-01, or ``None`` if the cell is not such a date.

    A date with an offset from UTC (``%z``) is converted to UTC, as an ISO date with one is.

    Example:
        >>> parse_date("1970-01-02 12:00", "%Y-%m-%d %H:%M"), parse_date("yesterday", "%Y-%m-%d")
        (1.5, None)
        >>> parse_date("1970-01-02 12:00 +0600", "%Y-%m-%d %H:%M %z")
        1.25
    """
    try:
        return _days(_in_utc(datetime.strptime(cell, date_format)))
    except (ValueError, OverflowError):
        return None


def check_date_format(date_format: str) -> None:
    """Raise ``ValueError`` unless a date that is written in the format can be read in it.

    Example:
        >>> check_date_format("%d.%m.%Y")
        >>> check_date_format("%d.%m.%Q")
        Traceback (most recent call last):
        ValueError: format must be one of strptime, "%d.%m.%Y" say, got '%d.%m.%Q': no date can be read in it.
    """
    if "%Z" in date_format.replace("%%", ""):
        raise ValueError(
            f"format must have no %Z, got {date_format!r}: which names of time zones can be read depends on the "
            "machine, and none is converted to UTC. Use %z for offsets (+0100), or write a name that never changes as "
            "it is (UTC)."
        )
    try:
        datetime.strptime(datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC).strftime(date_format), date_format)
        readable = "%" in date_format
    except (ValueError, OverflowError, re.error):  # the last one: a directive that stands twice
        readable = False
    if not readable:
        raise ValueError(
            f'format must be one of strptime, "%d.%m.%Y" say, got {date_format!r}: no date can be read in it.'
        )


def number_text(value: float) -> str:
    """Write a typed number as a cell: an integer without a point, so that the label 1 is ``"1"`` in every file format.

    Example:
        >>> number_text(1.0), number_text(0.1), number_text(7)
        ('1', '0.1', '7')
    """
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _with_point(cell: str) -> str | None:
    """Return a cell with a decimal comma as it would be with a point; ``None`` if it has a point already."""
    return None if "." in cell else cell.replace(",", ".")


def _finite(value: float) -> float | None:
    return None if value in (float("inf"), float("-inf")) else value


def _as_floats(cells) -> np.ndarray:
    import pyarrow as pa

    try:
        return cells.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:  # a spelling that this version of Arrow does not accept
        return np.array([float(cell) for cell in cells.to_pylist()])


def _parse_date(cell: str) -> float | None:
    """Return the days of a cell that looks like an ISO date; ``None`` for a day that no calendar has (2024-02-30)."""
    try:
        return _days(_in_utc(datetime.fromisoformat(cell)))
    except (ValueError, OverflowError):
        return None


def _in_utc(moment: datetime) -> datetime:
    """Return a moment without its offset, after converting it to UTC if it has one."""
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _days(moment: datetime) -> float:
    return (moment - _EPOCH).total_seconds() / 86400.0


def _parse_written(cell: str, decimal: str) -> float | None:
    found = _WRITTEN[decimal].fullmatch(cell)
    if found is None:
        return None
    sign, inner_sign, whole, decimals, alone, percent = found.groups()
    if (sign and inner_sign) or (percent and re.search(_CURRENCY, cell)):
        return None
    digits = re.sub("[^0-9]", "", whole or "") + "." + (decimals or alone or "")
    value = float(f"{sign}{inner_sign}{digits}" + ("e-2" if percent else ""))
    return _finite(value)
