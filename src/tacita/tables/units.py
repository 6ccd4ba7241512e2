"""Units: persons with several rows, and coins that belong to one person alone.

Place: table -> [tables.units] -> purchases, training. Private. What a person's coin says depends on the session's key
and on that person's name only (a pseudo-random function of it), never on the other rows or on positions, so that a
person added or removed moves nobody else. Persons are told apart by their cell's text; a row without one does not
count.
"""

from collections.abc import Sequence

import numpy as np

from tacita import _validate
from tacita.random import Key
from tacita.sampling.units import unit_words, within_cap
from tacita.tables.table import Table


def cap_rows(table: Table, unit: str, max_rows: int, missing: Sequence[str], key: Key) -> Table:
    """The table in which at most ``max_rows`` rows of each person count, the others dropped by that person's own coin.

    A row of the wrong width, or whose unit is missing, does not count at all.
    """
    codes, persons = _persons(table, unit, missing)
    return table.keep(within_cap(codes, persons, max_rows, key))


def held_out(
    table: Table, fraction: float, key: Key, *, unit: str | None = None, missing: Sequence[str] = ()
) -> np.ndarray:
    """Which rows are held out, bool (rows,): each by its own coin of chance ``fraction``, or by its person's."""
    _validate.probability("fraction", fraction)
    if unit is None:
        return key.stream("held out").bernoulli(table.num_rows, fraction)
    codes, persons = _persons(table, unit, missing)
    coins = unit_words(codes, persons, key) / 2.0**64
    return (coins < fraction) & (codes >= 0)


def _persons(table: Table, unit: str, missing: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """For each row its person's number, -1 for rows that do not count; and the persons' names."""
    codes, names = table.column(unit).texts()
    absent = np.array([name in set(missing) or not name for name in names] or [True], dtype=bool)
    return np.where(table.valid & ~absent[codes], codes, -1), names
