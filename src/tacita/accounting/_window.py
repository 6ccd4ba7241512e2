r"""The total loss of a composition, on grids that are as fine as the accuracy asks for.

Place: aim, _tilted -> [accounting._window] -> pld_accountant, privacy_profiles.
Proof: docs/derivations/accounting.md, section 10. Whatever is chosen here, the total is an upper bound.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tacita.accounting._loss_law import LARGEST_LOSS, UNIT, LossLaw, set_apart
from tacita.accounting._tilted import Composed, TiltedTotal, composed, moments
from tacita.accounting.aim import WRAPPED, Aim, Capped, beside, samples_of, tail
from tacita.accounting.dominating_pairs import ContinuousPair, Ends, Part, Sample, points_of

ACCURACY = 1e-4  # of epsilon: what the grid may add
SPARED = 0.2  # of it, where that takes few points
FEW_POINTS = 2**17
LEAST_POINTS = 256  # up to the cap
MOST_POINTS = 2**20  # of a window, and of one law
BESIDE = 16  # points of a window beside those that are read
BLURRED = 8.0  # deviations of rounding: how far beyond the window's end they reach
SPARE = 0.02  # of a window that is cut off above
DETAIL = 0.5  # of the cut: interval of large losses, at most
BOUNDS = 12  # tilts of Chernoff's bounds
MANY = 10_000  # queries of a part whose large losses may be set apart
RARE, MOST_NUMBER = 1e-5, 1000.0  # of the queries have a large loss; and never more, of tilted ones, than so many
NO_WAY_BACK = 4.0  # times the window's width: how far below 0 losses are told apart


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
        aim, apart = self.aim, [self._apart(i) for i in range(len(self.parts))]
        intervals = [
            max(asked, points / (self.most_points - BESIDE)) if rare is None else rare.fine
            for asked, points, rare in zip(self._asked, self._points, apart, strict=True)
        ]
        unit, laws, fine = min(intervals), list[Composed](), True
        for (pair, queries), ends, interval, rare in zip(self.parts, self._ends, intervals, apart, strict=True):
            if rare is None:
                laws.append((pair.law(_multiple(interval, unit), ends, swapped=self.swapped), queries))
            else:
                found, enough = rare.laws(ends, unit, self)
                laws, fine = laws + found, fine and enough
        least, most = min(law.interval for law, _ in laws), max(law.interval for law, _ in laws)
        highest = math.inf
        margin = 4 * most + BLURRED * math.sqrt(len(laws) * self.room + self._blur(intervals))  # of rounded losses
        if math.isfinite(aim.above):
            margin += SPARE * aim.above
            highest = max(0.0, aim.epsilon) + aim.above + margin
        # Of a narrow total the margin may be most, and more than a circle has room for.
        size = max(256, 2 ** math.ceil(math.log2(min((self.width + margin) / least + 4, 4 * self.most_points))))
        total = composed(laws, aim.theta, self.start - 2 * least, size, aim.beyond, highest=highest)
        known = zip(intervals, self._asked, apart, strict=True)
        return total, fine and all(rare is not None or interval <= asked for interval, asked, rare in known)

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
            found.append(self.interval(n, *_tilted(self.aim.theta, losses, chances), points))
        return found

    def interval(self, queries: int, sizes: np.ndarray, weights: np.ndarray, points: float = 0.0) -> float:
        """Return the interval with which splitting losses uses up some of the room, or all if points are many."""
        spared, enough = (_interval(share * self.room / queries, sizes, weights, self.most) for share in (SPARED, 1.0))
        return min(enough, max(spared, points / FEW_POINTS))

    def _blur(self, intervals: Sequence[float]) -> float:
        """Return what grids add to the mean square of the total loss."""
        theta = self.aim.theta
        return math.fsum(
            n * _split(interval, *_tilted(theta, losses, chances))
            for (losses, chances, _, n), interval in zip(self.samples.samples, intervals, strict=True)
        )

    def _apart(self, i: int) -> "Apart | None":
        """Return how the large losses of a part are set apart; ``None`` where one grid is as good."""
        (losses, chances, _, queries), (pair, _) = self.samples.samples[i], self.parts[i]
        many = queries >= MANY and self._points[i] >= FEW_POINTS * self._asked[i]
        if not (many and isinstance(pair, ContinuousPair)):
            return None
        sizes, weights = _tilted(self.aim.theta, losses, chances)
        order = np.argsort(-sizes)
        number = queries * np.cumsum((weights + chances)[order])
        cut = float(sizes[order[min(np.searchsorted(number, min(MOST_NUMBER, RARE * queries)), len(order) - 1)]])
        if 2 * cut > sizes.max():
            return None
        small = sizes <= cut
        coarse = min(DETAIL * cut, self.interval(queries, np.where(small, 0.0, sizes), weights))
        coarse = max(coarse, self.width / (self.most_points - BESIDE))
        if coarse > cut:  # so wide a total has no grid that tells small losses from large ones
            return None
        fine = min(coarse, self.interval(queries, np.where(small, sizes, 0.0), weights))
        return Apart(pair, queries, cut, max(fine, 4 * cut / self.most_points), coarse)


@dataclass(frozen=True)
class Apart:
    """The large losses of one part, which are rare, apart from its small ones.

    The small losses of some queries are composed on a fine grid; as none of them is large, their total is narrow. What
    a coarser grid then adds, it adds once a group. The large losses have a coarse grid from the start.

    Attributes:
        pair: Of the part.
        queries: Likewise.
        cut: A loss of at most this size, about, is a small one.
        fine: Interval of the grid of small losses.
        coarse: Of large ones.
    """

    pair: ContinuousPair
    queries: int
    cut: float
    fine: float
    coarse: float

    @property
    def size(self) -> int:
        """The number of queries of a group."""
        return math.isqrt(self.queries)

    def laws(self, ends: Ends, unit: float, window: Window) -> tuple[list[Composed], bool]:
        """Return laws of groups of small losses, of those left, and of large ones; and whether grids are fine enough.

        Args:
            ends: The losses that are told apart.
            unit: The interval of which all others are powers of two.
            window: Where the total is read.
        """
        fine, coarse = _multiple(self.fine, unit), _multiple(self.coarse, unit)
        (first, last), cut, stride = points_of(coarse, ends), math.ceil(self.cut / coarse), round(coarse / fine)
        low, high = max(first, -cut), min(last, cut)
        below, above = np.arange(first, low) * coarse, np.arange(high + 1, last + 1) * coarse
        inner = np.arange(low * stride, high * stride + 1) * fine
        masses, infinity, error = self.pair.at(np.concatenate([below, inner, above]), swapped=window.swapped)
        lower, small, upper = np.split(masses, [len(below), len(below) + len(inner)])
        large = np.concatenate([lower, np.zeros(high + 1 - low), upper])
        one, rare = set_apart(LossLaw(fine, low * stride, small, 0.0, error), LossLaw(coarse, first, large, infinity))
        group, enough = self._group(one, window)
        rest = one.coarsened(round(group.interval / fine))  # fewer than a group has
        laws = [(group, self.queries // self.size), (rest, self.queries % self.size), (rare, self.queries)]
        return laws, enough

    def _group(self, one: LossLaw, window: Window) -> tuple[LossLaw, bool]:
        """Return the law of a group from that of one query, on a grid as coarse as the accuracy and points allow."""
        aim, count, most = window.aim, self.queries // self.size, window.most_points - BESIDE

        def cumulants(theta: float) -> tuple[float, float]:
            return moments([(one, self.size)], theta)

        down, up = beside(aim.theta, aim.weight + math.log(WRAPPED / count), cumulants)
        _, infinite = beside(0.0, math.log(WRAPPED * aim.delta / count), cumulants)  # what is above counts in full
        down, up = min(0.0, down), max(up, infinite)
        lowest, highest = cumulants(down)[1], cumulants(up)[1]
        enough = (highest - lowest) / one.interval <= 2 * most
        if not enough:
            one = one.coarsened(2 ** math.ceil(math.log2((highest - lowest) / one.interval / most)))
        d = one.interval
        points = 2 ** math.ceil(math.log2((highest - lowest) / d + 8))
        total = composed([(one, self.size)], aim.theta, lowest - 2 * d, points, up)
        losses, logs = total.losses, np.log(total.masses) + total.log_scale - total.theta * total.losses
        for tilt in np.linspace(aim.theta, up, BOUNDS):  # of what is at a point or above: less than rounding
            logs = np.minimum(logs, _chernoff(cumulants(float(tilt))[0], tilt, losses))
        masses = np.exp(np.minimum(logs, 0.0)) * (1 + 1e-12)
        masses[0] += math.exp(min(0.0, float(_chernoff(cumulants(down)[0], down, losses[0]))))  # of what is below
        law = LossLaw(d, round(float(losses[0]) / d), masses, total.infinity, total.loss_error)
        widest = window.interval(count, *_tilted(aim.theta, losses, masses), window.width)
        coarse = _multiple(max(d, widest, window.width / most), d)
        return law.coarsened(round(coarse / d)), enough and widest * most >= window.width


def _chernoff(cumulant: float, tilt: float, losses: np.ndarray) -> np.ndarray:
    """Return the logarithm of Chernoff's bound of the mass at and above losses, or below if the tilt is negative."""
    exponents = tilt * losses
    return cumulant - exponents + 1e-12 + 8 * UNIT * np.abs(exponents)


def _multiple(interval: float, least: float) -> float:
    """Return the largest power of two times ``least`` that is at most ``interval``."""
    return 2 ** int(math.log2(interval / least) + 1e-9) * least


def _interval(room: float, sizes: np.ndarray, weights: np.ndarray, most: float) -> float:
    """Return the largest interval, at most ``most``, with which splitting losses adds ``room`` to their mean square."""
    low, high = 0.0, most
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if _split(middle, sizes, weights) < room else (low, middle)
    return high if low > 0 else most * 2.0**-30


def _tilted(theta: float, losses: np.ndarray, chances: np.ndarray) -> Sample:
    exponents = np.where(chances > 0, theta * losses, -np.inf)
    weights = chances * np.exp(exponents - exponents.max())
    return np.abs(losses), weights / weights.sum()


def _split(interval: float, sizes: np.ndarray, weights: np.ndarray) -> float:
    """Return about what splitting losses between the points of a grid adds to their mean square."""
    return interval * float(weights @ np.minimum(interval / 6, sizes))
