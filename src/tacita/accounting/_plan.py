r"""Where to look: the cap, the tilt, the grid and the window that serve a composition; and the composition itself.

Place: _pairs, _tilted -> [accounting._plan] -> _pld_accountant, _profiles. Whatever is chosen here, the total is an
upper bound; the choice decides how tight it is. Derivation: docs/derivations/accounting.md, section 10.

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

from tacita.accounting._loss_law import LARGEST_LOSS, LossLaw
from tacita.accounting._pairs import DominatingPair, Ends, Part, Sample
from tacita.accounting._tilted import Composed, TiltedTotal, composed, moments

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
ACCURACY = 1e-4  # of epsilon: what the grid may add
SPARED = 0.2  # of it, where that takes few points
FEW_POINTS = 2**17
LEAST_POINTS = 256  # up to the cap
MOST_POINTS = 2**20  # of a window, and of one law
BESIDE = 16  # points of a window beside those that are read
BLURRED = 8.0  # deviations of rounding: how far beyond the window's end they reach
SPARE = 0.02  # of a window that is cut off above
GROUPED = 10_000  # so many queries may be composed in two stages
GAIN = 0.25  # of the window's width: a group's window is less
NO_WAY_BACK = 4.0  # times the window's width: how far below 0 losses are told apart


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
        return np.sum([queries * _cumulants(theta, *sample) for *sample, queries in self.samples], axis=0)

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
    down, up = _beside(theta, bearing, samples)
    above = float(samples.cumulants(up)[1]) - epsilon
    below = epsilon - float(samples.cumulants(down)[1])
    fading = max(0.0, -bearing) / theta if theta > 0 else math.inf  # what comes round by more weighs nothing
    return max(above, below + min(fading, max(0.0, above))), theta, up, above


def _beside(theta: float, share: float, samples: Capped) -> tuple[float, float]:
    """Return tilts beyond whose means Chernoff's bound of the tilted mass is at most exp(share), on either side."""
    value = float(samples.cumulants(theta)[0])

    def beyond(step: float) -> float:
        cumulant, at, _ = map(float, samples.cumulants(theta + step))
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


@dataclass(frozen=True)
class Window:
    """A composition in one direction, where it is to be read.

    Attributes:
        parts: Pairs, and how often each is composed.
        aim: Where to look.
        start: The least epsilon to be read.
        swapped: The direction.
        accuracy: Of epsilon.
        least_scale: What epsilon's accuracy refers to, over the steepness of delta's logarithm, where epsilon is less.
        most_points: Of the window, and of one law.
    """

    parts: tuple[Part, ...]
    aim: Aim
    start: float
    swapped: bool
    accuracy: float = ACCURACY
    least_scale: float = 0.0
    most_points: int = MOST_POINTS

    def total(self) -> tuple[TiltedTotal, bool]:
        """Return the total loss, and whether its grid is as fine as the accuracy asks for."""
        aim, groups = self.aim, [self._group(i) for i in range(len(self.parts))]
        intervals = [
            asked if group else max(asked, points / (self.most_points - BESIDE))
            for asked, points, group in zip(self._asked, self._points, groups, strict=True)
        ]
        unit, laws = min(intervals), list[Composed]()
        for (pair, queries), ends, interval, group in zip(self.parts, self._ends, intervals, groups, strict=True):
            lowest = group.least if group else ends[0]
            law = pair.law(_multiple(interval, unit), (lowest, ends[1]), swapped=self.swapped)
            laws.append(group.law(law, self) if group else (law, queries))
        least, most = min(law.interval for law, _ in laws), max(law.interval for law, _ in laws)
        highest = math.inf
        margin = 4 * most + BLURRED * math.sqrt(len(laws) * self.room + self._blur(intervals))  # of rounded losses
        if math.isfinite(aim.above):
            margin += SPARE * aim.above
            highest = max(0.0, aim.epsilon) + aim.above + margin
        size = max(256, 2 ** math.ceil(math.log2((self.width + margin) / least + 4)))
        total = composed(laws, aim.theta, self.start - 2 * least, size, aim.beyond, highest=highest)
        return total, intervals == self._asked

    @property
    def width(self) -> float:
        """The width of the window, in units of epsilon."""
        return self.aim.reach + max(0.0, self.aim.epsilon) - self.start

    @cached_property
    def _ends(self) -> list[Ends]:
        """The losses of each law that are told apart; from lower ones than these no total comes back."""
        found = [pair.reach(tail(self.aim.delta, n), swapped=self.swapped) for pair, n in self.parts]
        lowest = -NO_WAY_BACK * self.width
        return [(max(low, lowest, -LARGEST_LOSS), min(high, self.aim.cap)) for low, high in found]

    @cached_property
    def samples(self) -> Capped:
        """Samples of the losses that are composed."""
        return samples_of(self.parts, self.aim.delta, swapped=self.swapped).at(self.aim.cap)

    @property
    def room(self) -> float:
        r"""What each part's grid may add to the mean square of the total loss.

        A loss l that is split between points a and b of a grid adds :math:`v = (l - a)(b - l)` to its mean square. T
        laws raise the cumulants at theta by about :math:`T \theta (\theta + 1) E[v] / 2`, and epsilon by that over
        theta. On a grid of interval d, E[v] is about :math:`d^2/6`, and less where most losses are far below d.
        """
        return 2 * self._added / self._steepness / len(self.parts)

    @property
    def most(self) -> float:
        """The longest interval: between two points delta is taken for linear, which adds to it once."""
        steepness = self._steepness
        return min(0.5 / steepness, math.sqrt(4 * self._added / steepness), self.aim.cap / LEAST_POINTS)

    @property
    def _added(self) -> float:
        scale = max(self.aim.epsilon, 0.02 * self.aim.deviation, self.least_scale / self._steepness)
        return self.accuracy * scale

    @property
    def _steepness(self) -> float:
        return max(self.aim.steepness, 1 / max(self.aim.deviation, 1e-290)) + 1

    @cached_property
    def _points(self) -> list[float]:
        """The widths that the grids of laws and of the window must reach over."""
        width = self.width + (SPARE * self.aim.above if math.isfinite(self.aim.above) else 0.0)
        return [max(high - low, width) for low, high in self._ends]

    @cached_property
    def _asked(self) -> list[float]:
        """The interval of each law's grid with which all of them add ``accuracy`` to epsilon; less if that is cheap."""
        found = []
        for (losses, chances, _, n), points in zip(self.samples.samples, self._points, strict=True):
            spared, enough = (
                _interval(share * self.room / n, self.aim.theta, losses, chances, self.most) for share in (SPARED, 1.0)
            )
            found.append(min(enough, max(spared, points / FEW_POINTS)))
        return found

    def _blur(self, intervals: Sequence[float]) -> float:
        """Return what grids add to the mean square of the total loss."""
        theta = self.aim.theta
        return math.fsum(
            n * _split(interval, *_tilted(theta, losses, chances))
            for (losses, chances, _, n), interval in zip(self.samples.samples, intervals, strict=True)
        )

    def _group(self, i: int) -> "Group | None":
        """Return how the queries of a part are composed in two stages; ``None`` where one is as good."""
        losses, *chances, queries = self.samples.samples[i]
        if queries < GROUPED or self._points[i] < FEW_POINTS * self._asked[i]:
            return None
        size = math.isqrt(queries)
        count = -(-queries // size)
        one = Capped(((np.maximum(losses, self._ends[i][0]), *chances, size),), self.aim.cap)
        down, up = _beside(self.aim.theta, self.aim.weight + math.log(WRAPPED / count), one)
        _, infinite = _beside(0.0, math.log(WRAPPED * self.aim.delta / count), one)  # what is above counts in full
        down, up = min(0.0, down), max(up, infinite)
        lowest, highest = (float(one.cumulants(tilt)[1]) for tilt in (down, up))
        least = max(self._ends[i][0], lowest - NO_WAY_BACK * (highest - lowest))
        points = max(highest - lowest, self._ends[i][1] - least) / self._asked[i]
        if highest - lowest > GAIN * self.width or points > self.most_points:
            return None
        return Group(size, count, down, up, lowest, highest, least)


@dataclass(frozen=True)
class Group:
    """Queries of one part, composed with one another before they are composed with all others.

    Their total is narrower than that of all, so that a grid that is as fine as one query's losses ask for has few
    points; and what a coarser grid then adds, it adds once a group.

    Attributes:
        size: Queries of a group.
        count: Groups; together they have as many queries as were asked for, or a few more.
        down: A tilt <= 0, which bounds what is below the window.
        up: A tilt, which bounds what is above it.
        lowest: Of the group's window.
        highest: Likewise.
        least: The lowest loss of a query that is told apart.
    """

    size: int
    count: int
    down: float
    up: float
    lowest: float
    highest: float
    least: float

    def law(self, one: LossLaw, window: Window) -> Composed:
        """Return the law of a group from that of one query, on a grid as coarse as the window allows, and the count."""
        d, theta = one.interval, window.aim.theta
        points = 2 ** math.ceil(math.log2((self.highest - self.lowest) / d + 8))
        total = composed([(one, self.size)], theta, self.lowest - 2 * d, points, self.up)
        losses, logs = total.losses, np.log(total.masses) + total.log_scale
        masses = np.minimum(1.0, np.exp(logs - total.theta * losses) * (1 + 1e-12))
        bound = moments([(one, self.size)], self.down)[0] - self.down * float(losses[0])  # of what is below
        masses[0] += math.exp(min(0.0, bound + 1e-9))
        law = LossLaw(d, round(float(losses[0]) / d), masses, total.infinity, total.loss_error)
        widest = _interval(window.room / self.count, 0.0, losses, np.exp(logs - logs.max()), window.most)
        return law.coarsened(round(_multiple(max(d, widest), d) / d)), self.count


def _multiple(interval: float, least: float) -> float:
    """Return the largest power of two times ``least`` that is at most ``interval``."""
    return 2 ** int(math.log2(interval / least) + 1e-9) * least


def _interval(room: float, theta: float, losses: np.ndarray, chances: np.ndarray, most: float) -> float:
    """Return the largest interval, at most ``most``, with which splitting adds ``room`` to a tilted loss's square."""
    sample = _tilted(theta, losses, chances)
    low, high = 0.0, most
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if _split(middle, *sample) < room else (low, middle)
    return high if low > 0 else most * 2.0**-30


def _tilted(theta: float, losses: np.ndarray, chances: np.ndarray) -> Sample:
    exponents = np.where(chances > 0, theta * losses, -np.inf)
    weights = chances * np.exp(exponents - exponents.max())
    return np.abs(losses), weights / weights.sum()


def _split(interval: float, sizes: np.ndarray, weights: np.ndarray) -> float:
    """Return about what splitting losses between the points of a grid adds to their mean square."""
    return interval * float(weights @ np.minimum(interval / 6, sizes))
