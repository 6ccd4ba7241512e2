"""Privacy units with several rows (such as persons): random choices that concern one unit alone.

Place: [sampling.units] -> splitting, tables.units. Private. The random choices for a unit depend on the key
and on the unit's name, never on other rows or on positions, so adding or removing a unit changes nothing for others.
"""

import math
import numbers
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np

from tacita import _validate
from tacita.random import Key


def unit_codes(units: Iterable[Hashable]) -> tuple[np.ndarray, list[str]]:
    """Number the units; return each row's unit number, int64, and the units' names.

    Two rows are of one unit if their units are equal as :func:`unit_name` compares them. A row without a unit (``None``
    or NaN) gets -1: it is nobody's, and does not count.

    Example:
        >>> unit_codes(["b", "a", "b", None])
        (array([ 1,  0,  1, -1]), ['text a', 'text b'])
    """
    given = [unit_name(unit) for unit in units]
    names = sorted({name for name in given if name is not None})
    place = {name: code for code, name in enumerate(names)}
    return np.array([-1 if name is None else place[name] for name in given], dtype=np.int64), names


def unit_name(unit: Any) -> str | None:
    """Return a text that stands for the unit, the same for equal units and another for any other; ``None`` for no unit.

    Numbers are equal if their exact values are, whatever their type, and a text is never equal to a number.

    Raises:
        TypeError: The unit is neither a text, nor bytes, nor a real number, nor a tuple of these. Its printed form
            might be that of another unit, or change from one process to the next.

    Example:
        >>> unit_name(1) == unit_name(1.0), unit_name(1) == unit_name("1"), unit_name(float("nan"))
        (True, False, None)
    """
    if unit is None or type(unit).__name__ in ("NAType", "NaTType"):  # the missing values of pandas
        return None
    if isinstance(unit, str | bytes):
        return f"text {unit}" if isinstance(unit, str) else f"bytes {unit.hex()}"
    if isinstance(unit, numbers.Real | np.bool_):
        return _number_name(unit)
    if not isinstance(unit, tuple):
        raise TypeError(
            f"units must hold texts, bytes, numbers or tuples of them, got {type(unit).__name__}: convert each to a "
            "text that names it."
        )
    parts = [unit_name(part) for part in unit]
    return None if None in parts else "tuple " + " ".join(f"{len(part or '')} {part}" for part in parts)


def _number_name(number: Any) -> str | None:
    """Return the exact value of a number; ``None`` for NaN."""
    if isinstance(number, numbers.Integral | np.bool_):
        return f"number {int(number):x}"
    if math.isnan(number):
        return None
    if math.isinf(number):
        return "number inf" if number > 0 else "number -inf"
    above, below = number.as_integer_ratio()
    return f"number {above:x}" if below == 1 else f"number {above:x}/{below:x}"


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
