"""Units: persons with several rows, and coins that belong to one person alone. Private.

A person's coin is a pseudo-random function of the session's key and that person's name. It depends on no other row and
on no position, so that adding or removing a person moves nobody else. Persons are told apart by the text of their cell;
a row without one does not count.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from tacita import _validate
from tacita.random import Key
from tacita.sampling.units import unit_words, within_cap
from tacita.tables.table import Table
from tacita.tables.table_file import TableFile

AnyTable = TypeVar("AnyTable", Table, TableFile)


def cap_rows(table: AnyTable, unit: str, max_rows: int, missing: Sequence[str], key: Key) -> AnyTable:
    """Return the table in which at most ``max_rows`` rows of each person count, chosen by that person's own coin.

    A row of the wrong width, or whose unit is missing, does not count at all. The column of units is held in memory.
    """
    codes, persons = _persons(table.whole((unit,)), unit, missing)
    return table.keep(within_cap(codes, persons, max_rows, key))


def held_out(
    table: Table, fraction: float, key: Key, *, unit: str | None = None, missing: Sequence[str] = (), first: int = 0
) -> np.ndarray:
    """Return a mask of the rows that are held out: each by its own coin of chance ``fraction``, or by its person's.

    If the table is a chunk of a longer one, ``first`` is the number of its first row there.
    """
    _validate.probability("fraction", fraction)
    if unit is None:
        return key.stream("held out").bernoulli(table.num_rows, fraction, first)
    codes, persons = _persons(table, unit, missing)
    coins = unit_words(codes, persons, key) / 2.0**64
    return (coins < fraction) & (codes >= 0)


def _persons(table: Table, unit: str, missing: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Return the number of each row's person, -1 for rows that do not count, and the names of the persons."""
    codes, names = table.column(unit).texts()
    absent = np.array([name in set(missing) or not name for name in names] or [True], dtype=bool)
    return np.where(table.valid & ~absent[codes], codes, -1), names
