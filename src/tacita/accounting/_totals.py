r"""The total loss of a composition, on grids that are as fine as the accuracy asks for.

Place: _saddle, _tilted, _rare_losses -> [accounting._totals] -> _pld_accountant, _profiles.
Source of the rules: docs/derivations/accounting.md, section 10, "How fine". Whatever is chosen, the total is a bound.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacita.accounting._loss_law import LARGEST_LOSS, LossLaw, Stretch
from tacita.accounting._pairs import DominatingPair, Part
from tacita.accounting._rare_losses import RareTotal, rare_total
from tacita.accounting._saddle import LEAST_SHARE, Saddle, tail
from tacita.accounting._several_rare_losses import Rare
from tacita.accounting._tilted import Composed, TiltedTotal, composed

ACCURACY = 1e-4  # of epsilon: what the grid may add
SPARED = 0.2  # of it, where that takes few points
FEW_POINTS = 2**17
SPARE = 0.02  # of a window that is cut off above
BESIDE = 16  # points of a window beside those that are read
FINEST = 1e-12  # interval; below, the rounding of losses shows
MOST_POINTS = 2**20  # of a window, and of one law
RARE_POINTS = 2**17  # of one law of large losses
NUMBER = 1e-3  # of large losses, expected in all queries
LOW_NUMBER = 1e-5  # of losses far below 0, which count as less low
NO_NUMBER = 1e-290
NO_WAY_BACK = 4.0  # times the window's width: how far below 0 losses are told apart
LOWER = 4.0  # times the cut: how far below 0 the bulk is looked at
DETAIL = 5e-3  # of epsilon: the coarser grid, so that it shows how large losses fall
ROUNDING = 1e-12  # of sums

Total = TiltedTotal | RareTotal


def is_beyond(parts: Sequence[Part], swapped: bool) -> bool:
    """Return whether the losses of a query are too large for floating point."""
    spans = [pair.span(LEAST_SHARE, swapped=swapped) / (2 if pair.symmetric else 1) for pair, _ in parts]
    return max(spans, default=0.0) > 0.95 * LARGEST_LOSS


@dataclass(frozen=True)
class Window:
    """A composition in one direction, where it is to be read.

    Attributes:
        parts: Pairs, and how often each is composed.
        saddle: Where to look.
        start: The least epsilon to be read.
        swapped: The direction.
        accuracy: Of epsilon.
        least_scale: What epsilon's accuracy refers to, over the steepness of delta's logarithm, where epsilon is less.
        most_points: Of the window, and of one law.
    """

    parts: tuple[Part, ...]
    saddle: Saddle
    start: float
    swapped: bool
    accuracy: float = ACCURACY
    least_scale: float = 0.0
    most_points: int = MOST_POINTS

    @property
    def width(self) -> float:
        """The width of the window, in units of epsilon."""
        return self.saddle.reach + max(0.0, self.saddle.epsilon) - self.start

    @property
    def points(self) -> float:
        """About the number of points of a transform if a single tilt is used."""
        return max(self.width, *self._spans) / min(self._intervals[0])

    @property
    def is_fine(self) -> bool:
        """Whether the grid of a single tilt is fine enough."""
        return self._intervals[1]

    def tilted(self) -> tuple[TiltedTotal, bool]:
        """Return the total, computed by a single tilt, and whether its grid is fine enough."""
        intervals, resolved = self._intervals
        saddle, least = self.saddle, min(intervals)
        laws: list[tuple[LossLaw, int]] = []
        for (pair, queries), interval in zip(self.parts, intervals, strict=True):
            law = self._law(pair, _multiple(interval, least), tail(saddle.delta, queries))
            laws.append((law, queries))
        highest, margin = math.inf, 0.0
        if math.isfinite(saddle.above):
            margin = SPARE * saddle.above + 4 * max(intervals)  # the largest loss of a law may be a point above
            highest = max(0.0, saddle.epsilon) + saddle.above + margin
        size = max(256, 2 ** math.ceil(math.log2((self.width + margin) / least + 4)))
        return composed(laws, saddle.theta, self.start - 2 * least, size, saddle.beyond, highest=highest), resolved

    def by_number(self, most_points: float = math.inf) -> tuple[RareTotal | None, bool]:
        """Return the total, computed by the number of rare large losses, and whether its grid is fine enough.

        ``None`` where the bulk needs more than ``most_points``.
        """
        most_points = min(most_points, self.most_points)
        fine = self._asked((SPARED + 1) / 2 * self.accuracy)
        wanted, least = max(min(fine), self._coarse), max(self._spans) / RARE_POINTS
        interval = _multiple(max(wanted, least), min(fine))
        found = [
            _parted(part, min(_multiple(d, min(fine)), interval), interval, most_points, self)
            for part, d in zip(self.parts, fine, strict=True)
        ]
        known = [one for one in found if one is not None]
        if len(known) < len(found):
            return None, False
        rare = _together([one.rare for one in known])
        infinity = math.fsum(one.infinity for one in known)
        bulks: list[Composed] = [(one.bulk, queries) for one, (_, queries) in zip(known, self.parts, strict=True)]
        total = rare_total(bulks, rare, infinity, (max(self.saddle.epsilon, 0.0), self.saddle.delta), most_points)
        return total, least <= wanted

    @property
    def lowest(self) -> float:
        """The least loss that is told apart from smaller ones, which are raised to it: no total comes back from it."""
        return -NO_WAY_BACK * self.width

    def _law(self, pair: DominatingPair, interval: float, tail: float) -> LossLaw:
        ends = pair.reach(tail, swapped=self.swapped)
        if ends is None or ends[0] >= self.lowest:
            return pair.law(interval, tail, swapped=self.swapped)
        first = math.floor(self.lowest / interval)
        return pair.stretch(
            interval, first, max(first + 1, math.ceil(ends[1] / interval)), swapped=self.swapped
        ).whole()

    @property
    def _spans(self) -> list[float]:
        return [self._span(pair, tail(self.saddle.delta, n)) for pair, n in self.parts]

    def _span(self, pair: DominatingPair, tail: float) -> float:
        ends = pair.reach(tail, swapped=self.swapped)
        if ends is None or ends[0] >= self.lowest:
            return pair.span(tail, swapped=self.swapped)
        return max(ends[1], 0.0) - self.lowest

    @property
    def _scale(self) -> float:
        return max(self.saddle.epsilon, 0.02 * self.saddle.deviation, self.least_scale / self._steepness)

    @property
    def _steepness(self) -> float:
        return max(self.saddle.steepness, 1 / max(self.saddle.deviation, FINEST)) + 1

    @property
    def _coarse(self) -> float:
        """The interval for large losses: they are few, and matter little where delta exceeds their expected number."""
        room = 12 * SPARED * self.accuracy * self._scale / self._steepness / 3
        detail = DETAIL * self._scale * math.sqrt(self.accuracy / ACCURACY)
        return min(math.sqrt(room), detail, 0.5 / self._steepness) * math.sqrt(max(1.0, self.saddle.delta / NUMBER))

    def _asked(self, share: float) -> list[float]:
        r"""T laws on a grid of interval d raise the cumulants at theta by about :math:`T \theta (\theta + 1) d^2 / 12`.

        They raise epsilon by that over theta, which is to be ``share`` of it.
        """
        room = 12 * share * self._scale / self._steepness / len(self.parts)
        return [max(FINEST, min(math.sqrt(room / queries), 0.5 / self._steepness)) for _, queries in self.parts]

    @property
    def _intervals(self) -> tuple[list[float], bool]:
        """The interval of each law's grid, and whether all of them are fine enough."""
        fine, enough = self._asked(SPARED * self.accuracy), self._asked(self.accuracy)
        spans, width = self._spans, self.width
        found = [
            min(b, max(a, span / FEW_POINTS, width / FEW_POINTS))
            for a, b, span in zip(fine, enough, spans, strict=True)
        ]
        most = self.most_points - BESIDE  # so that a transform has no more points than are allowed
        whole = width + (SPARE * self.saddle.above if math.isfinite(self.saddle.above) else 0.0)
        least = [max(a, span / most, whole / most, FINEST) for a, span in zip(found, spans, strict=True)]
        return least, least == found


@dataclass(frozen=True)
class Parted:
    """The laws of one part: without large losses, and these apart."""

    bulk: LossLaw
    rare: Rare
    infinity: float


def _parted(part: Part, fine: float, interval: float, most_points: float, window: Window) -> Parted | None:
    """Return losses up to a cut on a fine grid, and those above it on a coarse one; ``None`` if that is too much."""
    (pair, queries), swapped = part, window.swapped
    least = tail(window.saddle.delta, queries)
    known, low, ends = [pair.reach(x, swapped=swapped) for x in (NUMBER / queries, LOW_NUMBER / queries, least)]
    if known is None or low is None or ends is None or queries == 1:
        if pair.span(least, swapped=swapped) / fine > most_points:
            return None
        law = pair.law(fine, least, swapped=swapped)
        whole = LossLaw(fine, law.first, law.masses, 0.0, law.loss_error)
        return Parted(whole, Rare(interval, 1, np.array([NO_NUMBER]), 0.0), queries * law.infinity)
    cut = max(1, math.ceil(known[1] / interval))
    lowest = max(ends[0], min(low[0], -LOWER * cut * interval), min(window.lowest, -LOWER * cut * interval))
    first, last = math.floor(lowest / fine), cut * round(interval / fine)
    highest = max(cut + 1, math.ceil(ends[1] / interval))
    if max(last - first, highest - cut) > most_points:
        return None
    bulk = pair.stretch(fine, first, last, swapped=swapped).without_above()
    large = pair.stretch(interval, cut, highest, swapped=swapped)
    return Parted(bulk, _rare(bulk, large, queries), queries * large.above)


def _rare(bulk: LossLaw, large: Stretch, queries: int) -> Rare:
    """Return how often large losses are expected, if every query also has a loss of the bulk."""
    mass = float(bulk.masses.sum()) * (1 - ROUNDING)
    shift = max(0.0, math.log(float((bulk.masses * np.exp(-bulk.losses)).sum()) / mass)) + ROUNDING
    expected = np.maximum(large.masses, NO_NUMBER) * (queries / mass) * (1 + ROUNDING)
    return Rare(large.interval, large.first, expected, large.loss_error + shift)


def _together(rares: Sequence[Rare]) -> Rare:
    first = min(rare.first for rare in rares)
    masses = np.zeros(max(rare.first + len(rare.masses) for rare in rares) - first)
    for rare in rares:
        masses[rare.first - first : rare.first - first + len(rare.masses)] += rare.masses
    return Rare(rares[0].interval, first, masses, max(rare.loss_error for rare in rares))


def _multiple(interval: float, least: float) -> float:
    """Return the largest power of two times ``least`` that is at most ``interval``."""
    return 2 ** int(math.log2(interval / least) + 1e-9) * least
