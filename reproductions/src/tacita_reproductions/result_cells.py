"""The table of a result: cells in words, and the table for a terminal."""

import math
import re
from typing import Any

from rich import box
from rich.table import Table

from tacita.ledger.text_lines import rounded_up
from tacita_reproductions.runner import Result


def as_table(result: Result) -> Table:
    """Return the rows as a table for a terminal, with numbers to four digits."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = list(result.rows[0]) if result.rows else []
    for name in columns:
        numbers = all(isinstance(row[name], int | float) or row[name] is None for row in result.rows)
        shown.add_column(name, justify="right" if numbers else "left")
    for row in result.rows:
        shown.add_row(*(cell(name, row[name]) for name in columns))
    return shown


def in_words(value: Any) -> str:
    """Return a cell's text: numbers to four digits, yes or no, a dash for ``None``."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "yes" if value is True else "no" if value is False else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def cell(column: str, value: Any) -> str:
    """Return a cell's text; an epsilon is rounded up, so that it is still a bound.

    Example:
        >>> cell("real epsilon", 53187.9), cell("accuracy", 0.531879)
        ('53190', '0.5319')
    """
    number = isinstance(value, float) and math.isfinite(value)
    return rounded_up(value) if number and is_epsilon(column) else in_words(value)


def is_epsilon(column: str) -> bool:
    """Return whether a column has epsilons, by its name.

    Example:
        >>> [is_epsilon(name) for name in ("real epsilon, delta 1e-5", "epsilon of a client", "delta at epsilon 1")]
        [True, True, False]
    """
    return re.fullmatch(r"(\w+ )?epsilon( of .+|, delta .+)?", column) is not None
