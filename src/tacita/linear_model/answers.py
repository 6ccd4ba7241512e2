"""Labels and targets as estimators read them: what one record holds changes neither the dtype nor what is raised.

NumPy chooses the dtype of a list by what its entries hold, so that one ``None`` would turn the labels of all others
into objects. Lists, and arrays of objects, are therefore read entry by entry. Everything here is private.
"""

from typing import Any

import numpy as np
from sklearn.utils.validation import column_or_1d

WHOLE, TEXT = "int ", "text "  # before the labels of a list


def read_targets(y: Any, num_rows: int, name: str = "y") -> np.ndarray:
    """Return the targets of a regression, (rows,), float64; NaN for an entry that is no number.

    Raises:
        ValueError: ``y`` has another length, or a dtype that is not one of real numbers.

    Example:
        >>> read_targets([1, None, "2"], 3)
        array([ 1., nan,  2.])
    """
    targets = _column(y)
    if targets.dtype.kind not in "fiubO":
        raise ValueError(f"Unknown label type: {name} must hold numbers, got dtype {targets.dtype}.")
    if len(targets) != num_rows:
        raise ValueError(f"{name} must have one number for each of {num_rows} rows, got {len(targets)}.")
    return _as_numbers(targets)


def read_weights(sample_weight: Any, num_rows: int, largest: float) -> np.ndarray:
    """Return the weights of rows over the ``largest``, (rows,), float64, cut to [0, 1]; 0 for what is no number.

    Example:
        >>> read_weights([1, None, 8, -1], 4, 2.0)
        array([0.5, 0. , 1. , 0. ])
    """
    weights = read_targets(sample_weight, num_rows, "sample_weight")
    return np.clip(np.nan_to_num(weights, nan=0.0) / largest, 0.0, 1.0)


def read_labels(y: Any, num_rows: int, classes: Any) -> np.ndarray:
    """Return the labels, (rows,), of the kind of the declared classes.

    If none were declared, the entries of an array of objects are texts, and those of a list are texts that keep whether
    they were whole numbers (:func:`named_classes`).

    Raises:
        ValueError: ``y`` has another length, or is an array of real numbers, and no classes were declared.

    Example:
        >>> read_labels([1, None, 0], 3, [0, 1])
        array([ 1., nan,  0.])
        >>> read_labels([1, None, "a"], 3, None).tolist()
        ['int 1', 'text None', 'text a']
    """
    labels = _column(y)
    numbers = classes is not None and np.asarray(classes).dtype.kind in "fiub"
    if labels.dtype.kind == "O":  # sorting objects may raise, by what they hold
        tag = classes is None and isinstance(y, list | tuple)
        labels = _as_numbers(labels) if numbers else np.array([_text(label, tag=tag) for label in labels])
    if labels.dtype.kind == "f" and classes is None:
        raise ValueError("Unknown label type: labels must be integers or texts; pass classes= for real numbers.")
    if len(labels) != num_rows:
        raise ValueError(f"y must have one label for each of {num_rows} rows, got {len(labels)}.")
    return labels


def named_classes(y: Any, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes as the caller named them, sorted, and the labels of :func:`read_labels` that they stand for.

    The classes of a list are whole numbers if all classes that were *bought* are, whatever else the list holds.

    Args:
        y: What :func:`read_labels` read.
        found: Labels that were bought.

    Example:
        >>> named_classes([10, 9, None], np.array(["int 10", "int 9"]))[0]
        array([ 9, 10])
    """
    names = found.tolist()
    if isinstance(y, list | tuple):
        names = [name.removeprefix(WHOLE if name.startswith(WHOLE) else TEXT) for name in names]
        if all(label.startswith(WHOLE) for label in found):
            names = [int(name) for name in names]
    # an array of texts is as wide as its longest: that of the labels may be one that was not released
    classes = np.array(names) if isinstance(y, list | tuple) or found.dtype.kind in "US" else found
    order = np.argsort(classes, kind="stable")
    return classes[order], found[order]


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


def _text(label: Any, *, tag: bool) -> str:
    """Return a label as a text, which says whether it was a whole number if ``tag``."""
    try:
        whole = isinstance(label, int | np.integer)
        text = str(int(label)) if tag and whole else str(label)
    except Exception:  # whatever an object of the user's raises; and whole numbers may be too long for a text
        return TEXT if tag else ""
    return (WHOLE if whole else TEXT) + text if tag else text
