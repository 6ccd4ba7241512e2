"""Numbers or arrays of numbers: checked, in float64, and given back as they came.

Place: the ground of theory. All of theory broadcasts as NumPy does, so that a planner sweeps in one call.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]


def positive(name: str, value: ArrayLike) -> Numbers:
    """``value`` in float64, if all of it is finite and > 0."""
    return _checked(name, value, lambda x: (x > 0) & np.isfinite(x), "finite and > 0")


def non_negative(name: str, value: ArrayLike) -> Numbers:
    """``value`` in float64, if all of it is finite and >= 0."""
    return _checked(name, value, lambda x: (x >= 0) & np.isfinite(x), "finite and >= 0")


def probability(name: str, value: ArrayLike) -> Numbers:
    """``value`` in float64, if all of it is in (0, 1]."""
    return _checked(name, value, lambda x: (x > 0) & (x <= 1), "in (0, 1]")


def moment_order(value: ArrayLike) -> Numbers:
    """The order alpha of a bounded moment, if all of it is in (1, 2]."""
    return _checked("moment_order", value, lambda x: (x > 1) & (x <= 2), "in (1, 2]")


def plain(value: Any) -> Any:
    """A float, a bool or a str for what has no axes; an array as it is."""
    array = np.asarray(value)
    return array.item() if array.ndim == 0 else array


def _checked(name: str, value: ArrayLike, holds: Any, condition: str) -> Numbers:
    array = np.asarray(value, dtype=np.float64)
    if not np.all(holds(array)):
        raise ValueError(f"{name} must be {condition}, got {value!r}.")
    return array
