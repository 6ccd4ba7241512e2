"""Whether a score tells a model from a constant. The core has no scores: only statements with one load this module."""

from collections.abc import Mapping
from typing import Any


def like_a_guess(score: Any) -> bool:
    """Return whether a score's interval (or an exact score) reaches down to that of always answering the same.

    Example:
        >>> score = {"value": 0.8, "interval": [0.74, 0.86], "constant_guess": {"label": "no", "value": 0.76}}
        >>> like_a_guess(score), like_a_guess({**score, "interval": [0.77, 0.83]}), like_a_guess(None)
        (True, False, False)
    """
    guess = score.get("constant_guess") if isinstance(score, Mapping) else None
    if not isinstance(score, Mapping) or not isinstance(guess, Mapping):
        return False
    interval = score.get("interval")
    low = interval[0] if isinstance(interval, list | tuple) and interval else score.get("value")
    level = guess.get("value")
    return isinstance(low, int | float) and isinstance(level, int | float) and low <= level
