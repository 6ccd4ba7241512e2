"""Draft: names and guessed kinds of a table's columns, as a schema for a person to read and fill in.

Place: table -> [tables.draft] -> a file for the user. NOT private: kinds are guessed by looking at every row. So the
draft holds no value and no bound of the data, says what it is in its first line, and carries ``reviewed = false``,
which training refuses.
"""

import json

import numpy as np

from tacita.tables.cells import DEFAULT_MISSING, MISSING, NUMBER
from tacita.tables.readers import Reading
from tacita.tables.table import ArrayColumn, Column, Table

MOSTLY = 0.9  # of the cells that are not missing
FEW = 50  # a text column with at most so many distinct values looks like a category

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


def draft(table: Table, reading: Reading | None = None, *, target: str | None = None) -> str:
    """A TOML schema of ``table``, to be reviewed; ``target`` goes under ``[target]``."""
    parts = [_TOP, _reading(reading or Reading())]
    if target is not None:
        table.column(target)
        hints = '# task = "classification"           # or "regression"\n# classes = ["no", "yes"]\n'
        parts.append(f"[target]\ncolumn = {_quoted(target)}\n{hints}")
    for name in table.names:
        if name != target:
            parts.append(f"[columns.{_quoted(name)}]\n{_guess(table.column(name), table.valid)}")
    return "\n".join(part for part in parts if part)


def _guess(column: Column, valid: np.ndarray) -> str:
    if isinstance(column, ArrayColumn):
        return _array(column)
    if column.storage == "date":
        return 'kind = "date"\nformat = "%Y-%m-%d"\n# lower = ""\n# upper = ""\n'
    kinds = column.numbers(DEFAULT_MISSING)[1][valid]
    there = kinds[kinds != MISSING]
    codes, _ = column.texts()
    distinct = len(np.unique(codes[valid][kinds != MISSING]))
    if len(there) and (there == NUMBER).mean() >= MOSTLY:
        return 'kind = "number"\n# lower = 0\n# upper = 1\n'
    if len(there) > 1 and distinct == len(there):
        return 'kind = "identifier"                  # every value is different\n'
    if distinct <= FEW:
        return 'kind = "category"\n# values = []\n'
    return 'kind = "text"                        # not used\n'


def _array(column: ArrayColumn) -> str:
    """The shape and, for bytes, the bounds are the file's structure; other bounds are for the user to set."""
    known = column.values.dtype.kind == "u" and column.values.dtype.itemsize == 1
    comment = "" if known else "                            # set the true bounds"
    shape = list(column.shape)
    return f'kind = "array"\nshape = {shape}\nlower = 0{comment}\nupper = {255 if known else 1}\n'


def _reading(reading: Reading) -> str:
    """The settings that are not the defaults."""
    default = Reading()
    names = [name for name in Reading.__struct_fields__ if getattr(reading, name) != getattr(default, name)]
    lines = [f"{name} = {_value(getattr(reading, name))}\n" for name in names]
    return "[reading]\n" + "".join(lines) if lines else ""


def _value(value: str | bool | tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return _quoted(value) if isinstance(value, str) else f"[{', '.join(map(_quoted, value))}]"


def _quoted(text: str) -> str:
    """A TOML string: JSON's escapes, and that of DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
