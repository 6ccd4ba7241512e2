r"""Where to look: the cap, the tilt and the window that serve a composition, from its cumulants.

Place: dominating_pairs -> [accounting.aim] -> _window, pld_accountant.
Nothing here enters a bound; it says how tight one is.

With K the cumulant generating function of the total loss, the tilt is the theta with :math:`K'(\theta) = \epsilon`: the
tilted law has its mean at epsilon, and :math:`\delta \approx e^{K - \theta\epsilon}\, E[e^{-\theta Z}(1 - e^{-Z})^+]`,
Z normal of variance :math:`K''(\theta)`: a saddle-point approximation. Losses above the cap are split between the cap
and infinity, which changes nothing as long as the other losses add up to more than epsilon less the cap.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx

from tacita.accounting._loss_law import LARGEST_LOSS
from tacita.accounting.dominating_pairs import DominatingPair, Part, Sample

LEFT_OUT = 1e-7  # of delta: tails cut from one query's losses
LEAST_SHARE = 1e-10  # of a query's mass may be moved to its lowest loss, over the number of queries
WRAPPED = 1e-6  # of the tilted mass that makes delta: what may lie outside of the window
NEARLY = 1e-3  # accuracy of a window's ends, as tilts
LARGEST_THETA = 1e14
NO_LESS = -1 + 2.0**-50
LEAST_DELTA = 1e-30  # below, a delta is not asked for
LEAST_LOG_DELTA = -600.0
LEAST_WEIGHT = -12.0  # log of the tilted mass that makes delta; in less of it the rounding of transforms shows
LEAST_TILT = 4.0  # in standard deviations of the total loss
SHARES = (1.0, 0.8, 0.6)  # of the saddle's tilt
LOW_SHARES = (0.25, 0.05, 0.0)  # of that least one, where the saddle's tilt is below it
ABOVE, DEVIATIONS = 1.2, 5.0  # the cap: in epsilons, and in deviations of the other losses
LESS = 0.7  # a cap that is only so much lower changes nothing
ROUNDS = 12


Cumulants = Callable[[float], Sequence[float] | np.ndarray]  # log E exp(theta loss), and its derivatives


@dataclass(frozen=True)
class Aim:
    """Where a composition is read.

    Attributes:
        epsilon: About the epsilon that is asked for, or belongs to the delta that is.
        delta: About the delta.
        cap: The largest loss of a query that is told apart from infinity.
        theta: The tilt, >= 0.
        steepness: The tilt of the saddle point: about how fast the logarithm of delta falls at epsilon.
        deviation: Standard deviation of the total loss, where the tilted law has its mean at epsilon.
        reach: How far above epsilon a window must go, so that little mass comes round.
        above: How far above epsilon it is to be read; what comes round from below stands higher.
        beyond: The tilt that bounds what is above it.
        weight: Log of the tilted mass that makes delta.
    """

    epsilon: float
    delta: float
    cap: float
    theta: float
    steepness: float
    deviation: float
    reach: float
    above: float
    beyond: float
    weight: float


@dataclass(frozen=True)
class Capped:
    """Samples of all losses, none above a cap, with the cumulants of their sum.

    Attributes:
        samples: Losses, their chances and what is missing in these to 1, and the number of queries, of each part.
        cap: The largest loss.
    """

    samples: tuple[tuple[np.ndarray, np.ndarray, float, int], ...]
    cap: float

    @cached_property
    def lost(self) -> float:
        """The chance of an infinite loss in all queries."""
        return math.fsum(queries * lost for _, _, lost, queries in self.samples)

    def cumulants(self, theta: float) -> np.ndarray:
        """Return log E exp(theta loss) of the total, and its first two derivatives."""
        return np.sum([n * _cumulants(theta, losses, p, lost) for losses, p, lost, n in self.samples], axis=0)

    def spread(self, loss: float) -> float:
        """Return the standard deviation of the total, if losses count up to the size ``loss`` only."""
        return math.sqrt(sum(n * (p @ np.minimum(np.abs(losses), loss) ** 2) for losses, p, _, n in self.samples))

    def cap_at(self, epsilon: float) -> float:
        """Return the cap above which splitting a loss changes next to nothing at ``epsilon``."""
        spread = self.cap
        for _ in range(ROUNDS):
            spread = min(spread, DEVIATIONS * self.spread(spread))
        return min(LARGEST_LOSS, ABOVE * max(0.0, epsilon) + spread)

    def at(self, cap: float) -> "Capped":
        """Return the samples with a cap that is no higher."""
        found = []
        for losses, chances, lost, queries in self.samples:
            over = -np.expm1(np.minimum(0.0, cap - losses))
            found.append((np.minimum(losses, cap), chances * (1 - over), lost + float(chances @ over), queries))
        return Capped(tuple(found), cap)


def _cumulants(theta: float, losses: np.ndarray, chances: np.ndarray, lost: float) -> np.ndarray:
    exponents = theta * losses
    if np.abs(exponents).max() < LARGEST_LOSS:
        weights = chances * np.exp(exponents)
        value = math.log1p(max(NO_LESS, float(chances @ np.expm1(exponents)) - lost))
    else:
        with np.errstate(divide="ignore"):
            logs = exponents + np.log(chances)
        weights, value = np.exp(logs - logs.max()), float(np.logaddexp.reduce(logs))
    weights = weights / weights.sum()
    mean = float(weights @ losses)
    return np.array([value, mean, float(weights @ (losses - mean) ** 2)])


def samples_of(parts: Sequence[Part], delta: float, *, swapped: bool) -> Capped:
    """Return samples of the losses, for about this ``delta``."""
    return Capped(tuple((*_sampled(pair, tail(delta, n), swapped), 0.0, n) for pair, n in parts), math.inf).at(
        LARGEST_LOSS
    )


@lru_cache(maxsize=64)
def _sampled(pair: DominatingPair, tail: float, swapped: bool) -> Sample:
    losses, chances = pair.sample(tail, swapped=swapped)
    kept = chances > 0
    return np.maximum(losses[kept], -LARGEST_LOSS), chances[kept] / chances.sum()


def tail(delta: float, queries: int) -> float:
    """Return how much of one query's mass may count as infinite loss, or be moved to the lowest loss."""
    return min(LEFT_OUT * delta, LEAST_SHARE) / queries


def aim_at_delta(parts: Sequence[Part], delta: float, *, swapped: bool) -> Aim | None:
    """Return where epsilon at ``delta`` is read; ``None`` if losses of queries are too large for floating point."""
    theta, epsilon, samples = _saddle(parts, delta, swapped)
    if epsilon == math.inf:
        return None
    return _narrowest(theta, epsilon, delta, samples)


def expected_epsilon(parts: Sequence[Part], delta: float, *, swapped: bool) -> float:
    """Return about the epsilon at ``delta``, without a window to read it from."""
    return _saddle(parts, delta, swapped)[1]


def aim_at_epsilon(parts: Sequence[Part], epsilon: float, delta: float | None, *, swapped: bool) -> Aim | None:
    """Return where delta at ``epsilon`` is read; give an approximate ``delta`` if it is known."""
    samples = samples_of(parts, delta or LEAST_DELTA, swapped=swapped)
    if samples.lost > 0.5 * (delta or LEAST_DELTA):
        return None
    samples = samples.at(samples.cap_at(epsilon))
    theta = _root(lambda t: samples.cumulants(t)[1] - epsilon)
    if delta is None:
        delta = math.exp(min(0.0, max(LEAST_LOG_DELTA, _log_delta(theta, samples.cumulants(theta)))))
    return _narrowest(theta, epsilon, delta, samples)


def _saddle(parts: Sequence[Part], delta: float, swapped: bool) -> tuple[float, float, Capped]:
    """Return the saddle's tilt and epsilon at ``delta``, with a cap that is just high enough there.

    Epsilon is infinite where the losses of single queries are too large for floating point.
    """
    whole = samples = samples_of(parts, delta, swapped=swapped)
    theta = epsilon = 0.0
    for _ in range(ROUNDS):
        rest = delta - samples.lost
        if rest < delta / 2 and samples.cap == LARGEST_LOSS:
            return 0.0, math.inf, samples
        if rest < delta / 2:  # too low
            samples = whole.at(min(LARGEST_LOSS, 2 * samples.cap))
            continue
        theta = _root(lambda t, s=samples, d=rest: math.log(d) - _log_delta(t, s.cumulants(t)))
        epsilon = float(samples.cumulants(theta)[1])
        cap = whole.cap_at(epsilon)
        if cap > LESS * samples.cap:
            break
        samples = whole.at(cap)
    return theta, epsilon, samples


def _log_delta(theta: float, cumulants: np.ndarray) -> float:
    value, mean, variance = map(float, cumulants)
    width = math.sqrt(max(variance, 1e-300) / 2)
    mass = float(erfcx(theta * width) - erfcx((theta + 1) * width)) / 2
    return value - theta * mean + math.log(max(mass, 1e-300))


def _narrowest(theta: float, epsilon: float, delta: float, samples: Capped) -> Aim:
    """Aim with the saddle's tilt, or with another one if its window is narrower and rounding does not show in it."""
    deviation = math.sqrt(max(0.0, float(samples.cumulants(theta)[2])))
    floor = LEAST_TILT / max(deviation, 1e-290)  # so that what comes round from below weighs little
    tilts = {max(floor, theta * share) for share in SHARES}
    if theta < floor:
        tilts |= {theta, *(floor * share for share in LOW_SHARES)}

    def weight(tilt: float) -> float:
        """Return the log of the tilted mass that makes delta."""
        return math.log(delta) + tilt * epsilon - float(samples.cumulants(tilt)[0])

    heaviest = max(map(weight, tilts))
    heavy = [tilt for tilt in tilts if weight(tilt) >= min(heaviest, LEAST_WEIGHT)]
    reach, tilt, beyond, above = min(_window(tilt, epsilon, weight(tilt), samples) for tilt in heavy)
    above = above if tilt < floor else math.inf
    return Aim(epsilon, delta, samples.cap, tilt, theta, deviation, reach, above, beyond, weight(tilt))


def _window(theta: float, epsilon: float, weight: float, samples: Capped) -> tuple[float, float, float, float]:
    """Return how far a window must reach above epsilon, the tilt, a tilt beyond it, and where reading may end."""
    bearing = weight + math.log(WRAPPED)
    down, up = beside(theta, bearing, samples.cumulants)
    above = float(samples.cumulants(up)[1]) - epsilon
    below = epsilon - float(samples.cumulants(down)[1])
    fading = max(0.0, -bearing) / theta if theta > 0 else math.inf  # what comes round by more weighs nothing
    return max(above, below + min(fading, max(0.0, above))), theta, up, above


def beside(theta: float, share: float, cumulants: Cumulants) -> tuple[float, float]:
    """Return tilts beyond whose means Chernoff's bound of the tilted mass is at most exp(share), on either side."""
    value = float(cumulants(theta)[0])

    def beyond(step: float) -> float:
        cumulant, at = map(float, cumulants(theta + step)[:2])
        return value - cumulant + step * at + share

    return theta - _root(lambda step: beyond(-step), NEARLY), theta + _root(beyond, NEARLY)


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
