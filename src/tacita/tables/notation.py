"""Notations: how the texts of a column could be read as numbers or dates by another setting. NOT private.

Training never guesses a notation from the rows. The holder of the data is told of one by ``tacita check``, and a
drafted schema declares the format of dates.
"""

import re
from collections.abc import Iterable, Sequence

from tacita.errors import DataStructureError
from tacita.tables.cells import DECIMAL_MARKS, parse_date, parse_number

DATES = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%Y/%m/%d",
    "%d-%m-%Y",
    "%d.%m.%Y %H:%M",
    "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M",
)
MOSTLY = 0.9  # of the texts must fit
MANY = 10  # distinct texts; fewer are as good as categories
TRIED = 200  # texts
_DELIMITERS = ";\t|,"
_MARKS = {".": "point", ",": "comma"}
_UNIT = r"[^\W\d_]|[$%/\u00b0\u00b2\u00b3\u20ac\u00a3]"  # letters, and signs that units are written with
_BESIDE = re.compile(rf"(?:(?:{_UNIT}){{1,8}}\.? )?([0-9.,' +-]*[0-9])(?: ?(?:{_UNIT}){{1,8}}\.?)?")


def notation(texts: Iterable[str], decimal: str) -> str | None:
    """Say which notation the distinct texts of a column have, and what to do about it; ``None`` if there is none.

    Example:
        >>> notation([f"{i},5" for i in range(20)], ".")
        'numbers with a decimal comma: give --decimal ,'
        >>> notation([f"{i:02}.12.2024" for i in range(1, 31)], ".")
        'dates: declare kind = "date" and format = "%d.%m.%Y" in a schema'
        >>> notation([f"{i} km" for i in range(20)], ".")
        'numbers with a word or a unit beside them: remove it in the file'
    """
    some = _spread(sorted(texts))
    if len(some) < MANY:
        return None
    (other,) = set(DECIMAL_MARKS) - {decimal}
    if _mostly(parse_number(text, other) is not None and parse_number(text, decimal) is None for text in some):
        return f"numbers with a decimal {_MARKS[other]}: give --decimal {other}"
    if formats := date_formats(some):
        several = "; more than one format fits" if len(formats) > 1 else ""
        return f'dates: declare kind = "date" and format = "{formats[0]}" in a schema{several}'
    found = [_BESIDE.fullmatch(text) for text in some]
    if _mostly(one is not None and parse_number(one[1], decimal) is not None for one in found):
        return "numbers with a word or a unit beside them: remove it in the file"
    return None


def date_formats(texts: Sequence[str]) -> list[str]:
    """Return the formats of :data:`DATES` that most texts have; days up to 12 may leave more than one."""
    some = _spread(texts)
    return [one for one in DATES if some and _mostly(parse_date(text, one) is not None for text in some)]


def require_columns(names: Sequence[str], delimiter: str) -> None:
    """Raise ``DataStructureError`` if the names of all columns seem to stand in one, by another delimiter.

    Example:
        >>> require_columns(["age;income;label"], ",")
        Traceback (most recent call last):
        tacita.errors.DataStructureError: data has a single column with the delimiter ',', ...: give --delimiter ';'.
    """
    if len(names) != 1:
        return
    found = max(_DELIMITERS, key=names[0].count)
    if found != delimiter and found in names[0]:
        raise DataStructureError(
            f"data has a single column with the delimiter {delimiter!r}, and its first line holds another: give "
            f"--delimiter {found!r}."
        )


def _spread(texts: Sequence[str]) -> Sequence[str]:
    """Return at most ``TRIED`` of the texts, spread over all of them."""
    return texts[:: -(-len(texts) // TRIED)] if texts else texts


def _mostly(fits: Iterable[bool]) -> bool:
    fits = list(fits)
    return sum(fits) >= MOSTLY * len(fits)
