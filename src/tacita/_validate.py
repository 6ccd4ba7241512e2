"""Checks of settings: each names the argument, the condition, the value and the way out.

Place: the ground. ``not (x > 0)`` and the like are written so that NaN is refused too.
"""

import math


def positive(name: str, value: float, *, hint: str = "") -> float:
    """Return ``value`` if it is a finite number > 0."""
    if isinstance(value, bool) or not (value > 0) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number > 0, got {value!r}.{_tail(hint)}")
    return float(value)


def non_negative(name: str, value: float, *, hint: str = "") -> float:
    """Return ``value`` if it is a finite number >= 0."""
    if isinstance(value, bool) or not (value >= 0) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}.{_tail(hint)}")
    return float(value)


def probability(name: str, value: float, *, hint: str = "") -> float:
    """Return ``value`` if it is in (0, 1]."""
    if isinstance(value, bool) or not (0 < value <= 1):
        raise ValueError(f"{name} must be in (0, 1], got {value!r}.{_tail(hint)}")
    return float(value)


def below_one(name: str, value: float) -> float:
    """Return ``value`` if it is in [0, 1)."""
    found = non_negative(name, value)
    if not found < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}.")
    return found


def inside(name: str, value: float, *, hint: str = "") -> float:
    """Return ``value`` if it is in (0, 1)."""
    if isinstance(value, bool) or not (0 < value < 1):
        raise ValueError(f"{name} must be in (0, 1), got {value!r}.{_tail(hint)}")
    return float(value)


def delta(name: str, value: float) -> float:
    """Return ``value`` if it is in (0, 1)."""
    return inside(name, value, hint="It should be well below 1 / (number of records).")


def count(name: str, value: int, *, at_least: int = 1, hint: str = "") -> int:
    """Return ``value`` if it is an integer >= ``at_least``."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < at_least:
        raise ValueError(f"{name} must be an integer >= {at_least}, got {value!r}.{_tail(hint)}")
    return value.__index__()


def _tail(hint: str) -> str:
    return f" {hint}" if hint else ""
