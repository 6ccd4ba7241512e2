"""Units: persons with several rows, and coins that belong to one person alone.

Place: table -> [tables.units] -> purchases, training. Private. What a person's coin says depends on the session's key
and on that person's name only (a pseudo-random function of it), never on the other rows or on positions, so that a
person added or removed moves nobody else. Persons are told apart by their cell's text; a row without one does not
count.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tacita import _validate
from tacita.tables.table import Table


class Words(Protocol):
    """A stream of random words."""

    def words(self, count: int, offset: int = 0) -> np.ndarray:
        """``count`` words, uint64."""
        ...

    def bernoulli(self, count: int, probability: float, offset: int = 0) -> np.ndarray:
        """``count`` coins, bool."""
        ...


class Streams(Protocol):
    """A key: names lead to independent streams (``tacita.random.Key``)."""

    def stream(self, *labels: str | int) -> Words:
        """The stream of these labels."""
        ...


def cap_rows(table: Table, unit: str, max_rows: int, missing: Sequence[str], key: Streams) -> Table:
    """The table in which at most ``max_rows`` rows of each person count, the others dropped by that person's own coin.

    A row of the wrong width, or whose unit is missing, does not count at all.
    """
    _validate.count("max_rows_per_unit", max_rows)
    codes, persons = _persons(table, unit, missing)
    kept = np.zeros(table.num_rows, dtype=bool)
    for person, rows in _rows_of(codes, len(persons)):
        if len(rows) <= max_rows:
            kept[rows] = True
            continue
        words = key.stream("rows of a unit", persons[person]).words(len(rows))
        kept[rows[np.argsort(words, kind="stable")[:max_rows]]] = True
    return table.keep(kept)


def held_out(
    table: Table, fraction: float, key: Streams, *, unit: str | None = None, missing: Sequence[str] = ()
) -> np.ndarray:
    """Which rows are held out, bool (rows,): each by its own coin of chance ``fraction``, or by its person's."""
    _validate.probability("fraction", fraction)
    if unit is None:
        return key.stream("held out").bernoulli(table.num_rows, fraction)
    codes, persons = _persons(table, unit, missing)
    coins = [bool(key.stream("held out", person).bernoulli(1, fraction)[0]) for person in persons]
    return np.array([*coins, False], dtype=bool)[codes]


def _persons(table: Table, unit: str, missing: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """For each row its person's number, -1 for rows that do not count; and the persons' names."""
    codes, names = table.column(unit).texts()
    absent = np.array([name in set(missing) or not name for name in names] or [True], dtype=bool)
    return np.where(table.valid & ~absent[codes], codes, -1), names


def _rows_of(codes: np.ndarray, persons: int):
    """Each person's rows, in the order of the file."""
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(persons + 1))
    return ((person, order[starts[person] : starts[person + 1]]) for person in range(persons))
