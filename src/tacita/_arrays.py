"""Conversions and checks of numbers that may be arrays.

All of theory computes in float64 and broadcasts as NumPy does, so that a planner can sweep a setting in one call.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]


def positive(name: str, value: ArrayLike) -> Numbers:
    """Return ``value`` in float64; raise ``ValueError`` unless every number is finite and > 0."""
    return _checked(name, value, lambda x: (x > 0) & np.isfinite(x), "finite and > 0")


def non_negative(name: str, value: ArrayLike) -> Numbers:
    """Return ``value`` in float64; raise ``ValueError`` unless every number is finite and >= 0."""
    return _checked(name, value, lambda x: (x >= 0) & np.isfinite(x), "finite and >= 0")


def probability(name: str, value: ArrayLike) -> Numbers:
    """Return ``value`` in float64; raise ``ValueError`` unless every number is in (0, 1]."""
    return _checked(name, value, lambda x: (x > 0) & (x <= 1), "in (0, 1]")


def moment_order(value: ArrayLike) -> Numbers:
    """Return the moment order alpha in float64; raise ``ValueError`` unless every number is in (1, 2]."""
    return _checked("moment_order", value, lambda x: (x > 1) & (x <= 2), "in (1, 2]")


def plain(value: Any) -> Any:
    """Return a scalar as a float, bool or str, and an array unchanged."""
    array = np.asarray(value)
    return array.item() if array.ndim == 0 else array


def _checked(name: str, value: ArrayLike, holds: Any, condition: str) -> Numbers:
    array = np.asarray(value, dtype=np.float64)
    if not np.all(holds(array)):
        raise ValueError(f"{name} must be {condition}, got {value!r}.")
    return array
