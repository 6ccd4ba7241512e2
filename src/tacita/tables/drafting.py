"""Draft a schema: names and guessed kinds of a table's columns, for a person to read and fill in. NOT private.

Kinds are guessed by looking at every row. So the draft holds no value and no bound of the data, says in its first line
that it is not private, and carries ``reviewed = false``, which training refuses.

The formats of dates in a draft, and the notations that ``tacita check`` tells of, are what the texts of a column could
be read as by another setting. Training never guesses a notation from the rows.
"""

import json
import re
from collections.abc import Iterable, Sequence

import numpy as np

from tacita.errors import DataStructureError
from tacita.tables.cells import DECIMAL_MARKS, DEFAULT_MISSING, MISSING, NUMBER, parse_date, parse_number
from tacita.tables.csv_lines import FileFormat
from tacita.tables.table import ArrayColumn, Column, Table, TextColumn

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
MOSTLY = 0.9  # of the texts must fit; of the cells that are not missing, for a column to be one of numbers
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
    if _mostly(parse_number(text, other) is not None for text in some):
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


FEW = 50  # a column of texts with at most so many distinct values looks like a category

_TOP = """\
# NOT PRIVATE: the kinds below were guessed by looking at every row. Do not publish this file before you have read it.
# Fill in bounds and values from public knowledge, not from the data; what you leave out is bought from the budget.
# Then set reviewed = true.
reviewed = false
# rows = 10000                       # a public number; left out, it is bought
# privacy_unit = "one row = one patient"
# unit = "patient"                   # the column that names the person, if a person has several rows
# max_rows_per_unit = 5
"""

_NO_TARGET = """\
# [target]                           # the column to predict; or give it to the training: --target NAME
# column = "name"                    # then remove its table [columns."name"] below
"""


def draft(table: Table, reading: FileFormat | None = None, *, target: str | None = None) -> str:
    """Return a TOML schema of ``table``, to be reviewed. The column ``target`` is declared under ``[target]``."""
    reading = reading or FileFormat()
    require_columns(table.names, reading.delimiter)
    parts = [_TOP, _reading(reading)]
    if target is not None:
        parts.append(f"[target]\ncolumn = {_quoted(target)}\n{_hints(table.column(target), table.valid)}")
    else:
        parts.append(_NO_TARGET)
    for name in table.names:
        if name != target:
            parts.append(f"[columns.{_quoted(name)}]\n{_guess(table.column(name), table.valid)}")
    return "\n".join(part for part in parts if part)


def _hints(column: Column, valid: np.ndarray) -> str:
    """Return what may be declared about the target."""
    if date_format := _date_format(column, valid):
        return f"dates = true\nformat = {_quoted(date_format)}\n"
    return '# task = "classification"           # or "regression"\n# classes = ["no", "yes"]\n'


def _date_format(column: Column, valid: np.ndarray) -> str | None:
    """Return the format that most cells of a column of dates have, ``None`` for another column."""
    if column.storage == "date":
        return DATES[0]
    texts = column.texts()[1] if isinstance(column, TextColumn) else []
    formats = date_formats([text for text in texts if text not in DEFAULT_MISSING])
    return next((one for one in formats if _are_numbers(column.numbers(DEFAULT_MISSING, one)[1][valid])), None)


def _guess(column: Column, valid: np.ndarray) -> str:
    if isinstance(column, ArrayColumn):
        return _array(column)
    if date_format := _date_format(column, valid):
        return f'kind = "date"\nformat = {_quoted(date_format)}\n# lower = ""\n# upper = ""\n'
    kinds = column.numbers(DEFAULT_MISSING)[1][valid]
    there = kinds[kinds != MISSING]
    codes, _ = column.texts()
    if _are_numbers(kinds):
        return 'kind = "number"\n# lower = 0\n# upper = 1\n'
    return _guess_of_texts(len(there), len(np.unique(codes[valid][kinds != MISSING])))


def _guess_of_texts(cells: int, distinct: int) -> str:
    """Guess the kind of a column of texts from the number of cells that are not missing and of distinct ones."""
    if not cells:
        return 'kind = "text"                        # not used: no cell holds a value\n'
    if 1 < cells == distinct:
        return 'kind = "identifier"                  # every value is different\n'
    if distinct <= FEW:
        return 'kind = "category"\n# values = []\n'
    return 'kind = "text"                        # not used\n'


def _are_numbers(kinds: np.ndarray) -> bool:
    """Return whether most cells that are not missing are numbers (or dates)."""
    there = kinds[kinds != MISSING]
    return bool(len(there)) and (there == NUMBER).mean() >= MOSTLY


def _array(column: ArrayColumn) -> str:
    """Declare the shape and, for bytes, the bounds, which are structure of the file; the user sets any other bounds."""
    known = column.values.dtype.kind == "u" and column.values.dtype.itemsize == 1
    comment = "" if known else "                            # set the true bounds"
    shape = list(column.shape)
    return f'kind = "array"\nshape = {shape}\nlower = 0{comment}\nupper = {255 if known else 1}\n'


def _reading(reading: FileFormat) -> str:
    """Write the settings that are not the defaults."""
    default = FileFormat()
    names = [name for name in FileFormat.__struct_fields__ if getattr(reading, name) != getattr(default, name)]
    lines = [f"{name} = {_value(getattr(reading, name))}\n" for name in names]
    return "[reading]\n" + "".join(lines) if lines else ""


def _value(value: str | bool | tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return _quoted(value) if isinstance(value, str) else f"[{', '.join(map(_quoted, value))}]"


def _quoted(text: str) -> str:
    """Return a TOML string: it has the escapes of JSON, and one for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
