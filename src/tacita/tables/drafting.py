"""Draft a schema: names and guessed kinds of a table's columns, for a person to read and fill in. NOT private.

Kinds are guessed by looking at every row. So the draft holds no value and no bound of the data, says in its first line
that it is not private, and carries ``reviewed = false``, which training refuses.
"""

import json

import numpy as np

from tacita.tables.cells import DEFAULT_MISSING, MISSING, NUMBER
from tacita.tables.csv_lines import FileFormat
from tacita.tables.notation import DATES, date_formats, require_columns
from tacita.tables.table import ArrayColumn, Column, Table, TextColumn

MOSTLY = 0.9  # share of the cells that are not missing; a column with so many numbers is a number
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

_NO_ROWS = """\
# Some records are no row of this table (too many or too few cells), and would count for nothing: tacita check shows
# where. If quoted cells of a CSV hold line breaks, draft again with --multiline.
"""

_NO_TARGET = """\
# [target]                           # the column to predict; or give it to the training: --target NAME
# column = "name"                    # then remove its table [columns."name"] below
"""


def draft(table: Table, reading: FileFormat | None = None, *, target: str | None = None) -> str:
    """Return a TOML schema of ``table``, to be reviewed. The column ``target`` is declared under ``[target]``."""
    reading = reading or FileFormat()
    require_columns(table.names, reading.delimiter)
    parts = [_TOP, "" if table.valid.all() or reading.multiline else _NO_ROWS, _reading(reading)]
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
    return next((one for one in formats if _mostly(column.numbers(DEFAULT_MISSING, one)[1][valid])), None)


def _guess(column: Column, valid: np.ndarray) -> str:
    if isinstance(column, ArrayColumn):
        return _array(column)
    if date_format := _date_format(column, valid):
        return f'kind = "date"\nformat = {_quoted(date_format)}\n# lower = ""\n# upper = ""\n'
    kinds = column.numbers(DEFAULT_MISSING)[1][valid]
    there = kinds[kinds != MISSING]
    codes, _ = column.texts()
    if _mostly(kinds):
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


def _mostly(kinds: np.ndarray) -> bool:
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
