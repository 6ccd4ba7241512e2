r"""Where to look: the tilt, the grid and the window that serve a composition, from its cumulants.

Place: _pairs -> [accounting._saddle] -> _pld_accountant. Nothing here enters a bound; it decides how tight one is.

With K the cumulant generating function of the total loss, the tilt is the theta with :math:`K'(\theta) = \epsilon`: the
tilted law has its mean at epsilon, and :math:`\delta \approx e^{K - \theta\epsilon}\, E[e^{-\theta Z}(1 - e^{-Z})^+]`,
Z normal of variance :math:`K''(\theta)`: a saddle-point approximation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx

from tacita.accounting._pairs import Part

LEFT_OUT = 1e-7  # of delta: tails cut from one query's losses
WRAPPED = 1e-6  # of the tilted mass that makes delta: what may lie outside of the window
LEAST_SHARE = 1e-10  # of a query's mass may be moved to its lowest loss, over the number of queries
NEARLY = 1e-3  # accuracy of a window's ends, as tilts
LARGEST_THETA = 1e14
LEAST_DELTA = 1e-30  # below, a delta is not asked for
LEAST_LOG_DELTA = -600.0
LEAST_TILT = 4.0  # in standard deviations of the total loss
SHARES = (1.0, 0.8, 0.6)  # of the saddle's tilt
LOW_SHARES = (0.25, 0.05, 0.0)  # of that least one, where the saddle's tilt is below it


@dataclass(frozen=True)
class Saddle:
    """A tilt and what it is for.

    Attributes:
        theta: The tilt, >= 0.
        steepness: The tilt of the saddle point: about how fast the logarithm of delta falls at epsilon.
        epsilon: About the epsilon that is asked for, or belongs to the delta that is.
        delta: About the delta.
        deviation: Standard deviation of the total loss, where the tilted law has its mean at epsilon.
        reach: How far above epsilon a window must go, so that little mass comes round.
        above: How far above epsilon it is to be read; what comes round from below stands higher.
        beyond: The tilt that bounds what is above it.
    """

    theta: float
    steepness: float
    epsilon: float
    delta: float
    deviation: float
    reach: float
    above: float
    beyond: float


def saddle_at_delta(parts: Sequence[Part], delta: float, *, swapped: bool) -> Saddle:
    """Return the tilt with which epsilon at ``delta`` is read."""
    total = _total(parts, delta, swapped)
    theta = _root(lambda t: math.log(delta) - _log_delta(t, total(t)))
    return _narrowest(theta, float(total(theta)[1]), delta, total)


def epsilon_at_saddle(parts: Sequence[Part], delta: float, *, swapped: bool) -> float:
    """Return about the epsilon at ``delta``, without a window to read it from."""
    total = _total(parts, delta, swapped)
    return float(total(_root(lambda t: math.log(delta) - _log_delta(t, total(t))))[1])


def saddle_at_epsilon(parts: Sequence[Part], epsilon: float, delta: float | None, *, swapped: bool) -> Saddle:
    """Return the tilt with which delta at ``epsilon`` is read; give an approximate ``delta`` if it is known."""
    total = _total(parts, delta or LEAST_DELTA, swapped)
    theta = _root(lambda t: total(t)[1] - epsilon)
    if delta is None:
        delta = math.exp(min(0.0, max(LEAST_LOG_DELTA, _log_delta(theta, total(theta)))))
    return _narrowest(theta, epsilon, delta, total)


def tail(delta: float, queries: int) -> float:
    """Return how much of one query's mass may count as infinite loss, or be moved to the lowest loss."""
    return min(LEFT_OUT * delta, LEAST_SHARE) / queries


Total = Callable[[float], np.ndarray]


def _total(parts: Sequence[Part], delta: float, swapped: bool) -> Total:
    def total(theta: float) -> np.ndarray:
        return np.sum([n * pair.cumulants(theta, tail(delta, n), swapped=swapped) for pair, n in parts], axis=0)

    return total


def _log_delta(theta: float, cumulants: np.ndarray) -> float:
    value, mean, variance = map(float, cumulants)
    width = math.sqrt(max(variance, 1e-300) / 2)
    mass = float(erfcx(theta * width) - erfcx((theta + 1) * width)) / 2
    return value - theta * mean + math.log(max(mass, 1e-300))


def _narrowest(theta: float, epsilon: float, delta: float, total: Total) -> Saddle:
    """Return the saddle, or another tilt if its window is narrower: at a smaller one rare large losses weigh less."""
    deviation = math.sqrt(max(0.0, float(total(theta)[2])))
    floor = LEAST_TILT / max(deviation, 1e-12)  # so that what comes round from below weighs little
    tilts = {max(floor, theta * share) for share in SHARES}
    if theta < floor:
        tilts |= {floor * share for share in LOW_SHARES}
    reach, tilt, beyond, above = min(_window(tilt, epsilon, delta, total) for tilt in tilts)
    return Saddle(tilt, theta, epsilon, delta, deviation, reach, above if tilt < floor else math.inf, beyond)


def _window(theta: float, epsilon: float, delta: float, total: Total) -> tuple[float, float, float, float]:
    """Return how far a window must reach above epsilon, the tilt, a tilt beyond it, and where reading may end."""
    value = float(total(theta)[0])
    bearing = (
        math.log(WRAPPED * delta) + theta * epsilon - value
    )  # log of the tilted mass that makes delta, a share of it

    def beyond(step: float) -> float:
        """``bearing`` over Chernoff's bound of the tilted mass beyond the mean of another tilt."""
        cumulant, at, _ = map(float, total(theta + step))
        return value - cumulant + step * at + bearing

    up, down = _root(beyond, NEARLY), _root(lambda step: beyond(-step), NEARLY)
    above, below = float(total(theta + up)[1]) - epsilon, epsilon - float(total(theta - down)[1])
    fading = max(0.0, -bearing) / theta if theta > 0 else math.inf  # what comes round by more weighs nothing
    return max(above, below + min(fading, max(0.0, above))), theta, theta + up, above


def _root(rising: Callable[[float], float], accuracy: float = 1e-7) -> float:
    """Return about where an increasing function passes 0; at most ``LARGEST_THETA``, and 0 if it starts above."""
    if rising(0.0) >= 0:
        return 0.0
    low = high = 1.0
    while rising(high) < 0:
        low, high = high, high * 8
        if high > LARGEST_THETA:
            return low
    while low == high or rising(low) >= 0:
        low, high = low / 8, min(high, low)
        if low < 1 / LARGEST_THETA:
            return low
    ends = math.log(low), math.log(high)
    if not rising(math.exp(ends[0])) < 0 < rising(math.exp(ends[1])):  # a sum that overflows, or the ends' rounding
        return low
    return math.exp(brentq(lambda x: rising(math.exp(x)), *ends, xtol=accuracy))  # type: ignore[arg-type]
