"""Labels and targets as estimators read them: what one record holds changes neither the dtype nor what is raised.

NumPy chooses the dtype of a list by what its entries hold, so that one ``None`` would turn the labels of all others into
objects. Lists, and arrays of objects, are therefore read entry by entry. Everything here is private.
"""

from typing import Any

import numpy as np
from sklearn.utils.validation import column_or_1d


def read_targets(y: Any, num_rows: int) -> np.ndarray:
    """Return the targets of a regression, (rows,), float64; NaN for an entry that is no number.

    Raises:
        ValueError: ``y`` has another length, or a dtype that is not one of real numbers.

    Example:
        >>> read_targets([1, None, "2"], 3)
        array([ 1., nan,  2.])
    """
    targets = _column(y)
    if targets.dtype.kind not in "fiubO":
        raise ValueError(f"Unknown label type: y must hold numbers, got dtype {targets.dtype}.")
    if len(targets) != num_rows:
        raise ValueError(f"y must have one target for each of {num_rows} rows, got {len(targets)}.")
    return _as_numbers(targets)


def read_labels(y: Any, num_rows: int, classes: Any) -> np.ndarray:
    """Return the labels, (rows,), of the kind of the declared classes; objects are texts if none were declared.

    Raises:
        ValueError: ``y`` has another length, holds real numbers, or is a list, and no classes were declared.

    Example:
        >>> read_labels([1, None, 0], 3, [0, 1])
        array([ 1., nan,  0.])
        >>> read_labels(np.array(["a", None], object), 2, None)
        array(['a', 'None'], dtype='<U4')
    """
    if classes is None and isinstance(y, list | tuple):
        raise ValueError("y must be an array, whose dtype was chosen, or classes= be given: a list may hold anything.")
    labels = _column(y)
    numbers = classes is not None and np.asarray(classes).dtype.kind in "fiub"
    if labels.dtype.kind == "O":  # sorting objects may raise, by what they hold
        labels = _as_numbers(labels) if numbers else labels.astype(str)
    if labels.dtype.kind == "f" and classes is None:
        raise ValueError("Unknown label type: labels must be integers or texts; pass classes= for real numbers.")
    if len(labels) != num_rows:
        raise ValueError(f"y must have one label for each of {num_rows} rows, got {len(labels)}.")
    return labels


def _column(y: Any) -> np.ndarray:
    """Return ``y`` as one column, a list as objects."""
    entries = np.array(y, dtype=object) if isinstance(y, list | tuple) else y
    return np.asarray(column_or_1d(entries, warn=True))


def _as_numbers(values: np.ndarray) -> np.ndarray:
    """Return numbers as float64, and NaN for what is none; a warning would tell what a value is."""
    with np.errstate(all="ignore"):
        if values.dtype.kind != "O":
            return values.astype(np.float64)
        return np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: Any) -> float:
    try:
        return float(value)
    except Exception:  # whatever an object of the user's raises
        return np.nan
