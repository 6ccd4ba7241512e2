"""The least epsilon at which a bound of delta, which falls, is small enough.

Place: the ground of accounting; functions in, numbers out.
"""

import math
from collections.abc import Callable

NARROW = 3e-6  # of epsilon, and of the logarithm of delta
MOST_TURNS = 60

Bounds = Callable[[float], float]  # epsilon -> an upper bound of delta, which falls


def least_epsilon(bound: Bounds, delta: float, low: float, high: float, *, guess: float) -> float:
    """Return the least epsilon in [low, high] with ``bound`` at most ``delta``, rounded up; ``inf`` if there is none.

    The search begins at ``guess``. What is returned has been evaluated and is within.
    """
    if bound(low) <= delta:
        return low
    step = 0.01 * max(guess, 1e-3 * (high - low))
    upper = min(high, max(low, guess))
    while bound(upper) > delta:
        if upper >= high:
            return math.inf
        low, upper, step = upper, min(high, upper + step), 2 * step
    return _narrowed(bound, delta, low, upper)


def _narrowed(bound: Bounds, delta: float, low: float, high: float) -> float:
    """Narrow the bracket by the Illinois method on log delta, which is nearly linear; ``high`` stays within."""
    wanted = math.log(delta)
    values = [_log(bound(end)) - wanted for end in (low, high)]
    for turn in range(MOST_TURNS):
        if high - low <= NARROW * high or values[1] > -NARROW:
            break
        share = 0.5 if turn % 8 == 7 else values[0] / (values[0] - values[1])
        middle = low + (high - low) * min(0.999, max(0.001, share * (1 + NARROW)))
        found = bound(middle)
        value = _log(found) - wanted
        if found <= delta:  # and not the logarithms, which are rounded
            high, values = middle, [values[0] / 2, min(0.0, value)]
        else:
            low, values = middle, [value, values[1] / 2]
    return high


def _log(value: float) -> float:
    return math.log(max(value, 1e-300))
