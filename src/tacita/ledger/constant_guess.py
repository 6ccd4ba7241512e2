"""Whether a score tells a model from a constant. The core has no scores: only statements with one load this module."""

from collections.abc import Mapping
from typing import Any

CONSTANT_AREA = 0.5  # the AUC of a constant


def like_a_guess(score: Any) -> bool:
    """Return whether a score's interval (or an exact score) reaches down to that of always answering the same.

    Where one class is rare, accuracy tells little of a model. An AUC above one half tells it from a constant, too.

    Example:
        >>> score = {"value": 0.8, "interval": [0.74, 0.86], "constant_guess": {"label": "no", "value": 0.76}}
        >>> like_a_guess(score), like_a_guess({**score, "interval": [0.77, 0.83]}), like_a_guess(None)
        (True, False, False)
        >>> noisy = {"label": "no", "value": 0.76, "noise": 0.02}
        >>> like_a_guess({**score, "interval": [0.77, 0.83], "constant_guess": noisy})
        True
        >>> like_a_guess({**score, "AUC": {"value": 0.7, "interval": [0.62, 0.78]}})
        False
    """
    guess = score.get("constant_guess") if isinstance(score, Mapping) else None
    if not isinstance(score, Mapping) or not isinstance(guess, Mapping):
        return False
    low, level, area = _low(score), _high(guess), _low(score.get("AUC"))
    ranks = isinstance(area, int | float) and area > CONSTANT_AREA
    return isinstance(low, int | float) and isinstance(level, int | float) and low <= level and not ranks


def _high(guess: Mapping[str, Any]) -> Any:
    """Return what a constant may score at most, its noise included."""
    value, noise = guess.get("value"), guess.get("noise")
    return value + noise if isinstance(value, int | float) and isinstance(noise, int | float) else value


def _low(value: Any) -> Any:
    """Return the lower end of a value's interval, or the value itself if it is exact."""
    if not isinstance(value, Mapping):
        return None
    interval = value.get("interval")
    return interval[0] if isinstance(interval, list | tuple) and interval else value.get("value")
