"""Privacy units with several rows (such as persons): random choices that concern one unit alone.

Place: [sampling.units] -> oracles.records, tables.units. Private. The random choices for a unit depend only on the key
and on the unit's name, never on other rows or on positions, so adding or removing a unit changes nothing for others.
"""

from collections.abc import Hashable, Iterable, Iterator

import numpy as np

from tacita import _validate
from tacita.random import Key


def unit_codes(units: Iterable[Hashable]) -> tuple[np.ndarray, list[str]]:
    """Number the units; return each row's unit number, int64, and the units' names.

    Example:
        >>> unit_codes(["b", "a", "b"])
        (array([1, 0, 1]), ['a', 'b'])
    """
    names, codes = np.unique(np.array([str(unit) for unit in units], dtype=object), return_inverse=True)
    return codes.astype(np.int64), [str(name) for name in names]


def within_cap(codes: np.ndarray, names: list[str], max_rows_per_unit: int, key: Key) -> np.ndarray:
    """Choose at most ``max_rows_per_unit`` rows of each unit, uniformly; return which rows are kept, bool.

    The choice among a unit's rows follows from that unit's own random stream.

    Args:
        codes: Each row's unit, an index into ``names``; -1 for a row that is never kept.
        names: The units' names.
        max_rows_per_unit: Largest number of rows of one unit, >= 1.
        key: Secret; the same for the whole session.
    """
    cap = _validate.count("max_rows_per_unit", max_rows_per_unit)
    kept = np.zeros(len(codes), dtype=bool)
    for unit, rows in _rows_of(codes, len(names)):
        chosen = rows if len(rows) <= cap else rows[key.stream("rows of a unit", names[unit]).choice(len(rows), cap)]
        kept[chosen] = True
    return kept


def unit_words(codes: np.ndarray, names: list[str], key: Key) -> np.ndarray:
    """Draw a uniform 64-bit word for each unit and return it for each of its rows; rows with code -1 get 0."""
    words = [key.stream("coin of a unit", name).words(1)[0] for name in names]
    return np.array([*words, 0], dtype=np.uint64)[codes]


def _rows_of(codes: np.ndarray, units: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each unit's number and its rows, ascending."""
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(units + 1))
    return ((unit, order[starts[unit] : starts[unit + 1]]) for unit in range(units))
