r"""Composition of dominating pairs: epsilon or delta, read off tilted laws of the total loss as upper bounds.

Place: events -> [accounting._pld_accountant] -> accountant. All Gaussian queries enter as one (exact); the others are
composed on a grid, each direction of the neighbouring pairs on its own, and the larger epsilon counts.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tacita.accounting._pairs import DominatingPair, GaussianPair, Part
from tacita.accounting._saddle import Saddle, epsilon_at_saddle, saddle_at_delta, saddle_at_epsilon
from tacita.accounting._tilted import TiltedTotal
from tacita.accounting._totals import ACCURACY, FINEST, MOST_POINTS, Total, Window, is_beyond
from tacita.accounting.events import Spend

FIRST = (1e-2, 2**16)  # accuracy of epsilon, and most points, of a first look
SECOND = (1e-3, 2**18)  # of a second one, for an estimate
FINE = (ACCURACY, MOST_POINTS)
ROUGHER = ((1e-3, MOST_POINTS), (1e-2, MOST_POINTS))  # where a fine grid would take too many points
MANY_POINTS = 2**15  # of one tilted transform; above, the number of rare losses is tried first
FEWER = 5.0  # times as many points as the bulk alone: then the number of rare losses is worth it
EXPECTED = 0.1  # of epsilon, or of the logarithm of delta: the saddle was near enough
MOST_LOOKS = 5
LEAST_DELTA = 1e-40  # a smaller one is not looked for
FAR_LESS = 1e-3  # of another direction's delta
STEP = 0.05  # of epsilon
LEAST_FALL = 1e-300
WINDOW_START = 0.5  # at this share of epsilon, where that makes the window narrower
LEAST_GAIN = 0.7  # squared ratio of two intervals; above, nothing is read off the difference
RESOLVED = 5e-4  # of epsilon: rounding that leaves a reading accurate


@dataclass(frozen=True)
class PldReading:
    """A value read off a composition, and the grid it was read from.

    Attributes:
        value: Epsilon or delta; ``inf`` (or 1) if there is none.
        interval: The grid's.
        resolved: Whether the grid is as fine as the accuracy asks for.
        steepness: How fast the logarithm of delta falls there, if that was looked at.
    """

    value: float
    interval: float
    resolved: bool
    steepness: float = 0.0

    @property
    def name(self) -> str:
        """The name of the accountant, for the statement."""
        return f"PLD (tilted, pessimistic, discretisation {self.interval:.1g})"


def has_pld(spend: Spend) -> bool:
    """Return whether the event offers dominating pairs."""
    return spend.guarantee.pairs is not None


def pld_epsilon(spends: Sequence[Spend], delta: float) -> PldReading:
    """Return epsilon at ``delta``: the larger value of the two directions."""
    parts = pooled(pairs_of(spends))
    return _larger(_at_delta(parts, delta))


def pld_delta(spends: Sequence[Spend], epsilon: float) -> PldReading:
    """Return delta at ``epsilon``: the larger value of the two directions."""
    parts = pooled(pairs_of(spends))
    return _larger([DeltaAt(parts, swapped, epsilon) for swapped in directions(parts)])


def estimated_epsilon(spends: Sequence[Spend], delta: float) -> float:
    """Return a cheap estimate of epsilon, which is no bound: a search for a setting begins there."""
    parts = pooled(pairs_of(spends))
    return max(epsilon_at_saddle(parts, delta, swapped=swapped) for swapped in directions(parts))


def approximate_epsilon(spends: Sequence[Spend], delta: float) -> float:
    """Return about what :func:`pld_epsilon` gives, from two coarse grids.

    It is no bound. What a grid adds to epsilon falls with the square of its interval.
    """
    parts = pooled(pairs_of(spends))
    looks = [(_seen(question), question) for question in _at_delta(parts, delta)]
    look, question = max(looks, key=lambda seen: seen[0].reading.value)
    if look.saddle is None:
        return look.reading.value
    finer = _reading(question, _steep(look), SECOND, look.blurred)[0]
    squares = (finer.interval / look.reading.interval) ** 2
    gain = max(0.0, look.reading.value - finer.value)
    return finer.value - (gain * squares / (1 - squares) if squares < LEAST_GAIN else 0.0)


@dataclass(frozen=True)
class EpsilonAt:
    """Epsilon at ``asked``, a delta, in one direction."""

    parts: tuple[Part, ...]
    swapped: bool
    asked: float
    nothing = math.inf  # what is read where nothing is guaranteed
    least_scale = 0.0

    def beside(self, value: float) -> "EpsilonAt":
        """Return the question to ask once the other direction has given about ``value``."""
        return self

    def saddle(self, value: float | None = None) -> Saddle:
        """Return where to look: at the estimate, or at ``value`` once it was read."""
        if value is None:
            return saddle_at_delta(self.parts, self.asked, swapped=self.swapped)
        return saddle_at_epsilon(self.parts, value, self.asked, swapped=self.swapped)

    def start(self, saddle: Saddle) -> float:
        """Return the least epsilon that the window must hold."""
        return WINDOW_START * saddle.epsilon if saddle.epsilon > saddle.reach else 0.0

    def read(self, total: Total, saddle: Saddle) -> float:
        """Return the value that is read off the total."""
        return total.epsilon(self.asked, saddle.epsilon)

    def lost(self, total: Total, value: float, saddle: Saddle) -> float:
        """Return the share of the value that may be rounding."""
        steepness = max(saddle.steepness, saddle.theta, 1 / max(saddle.deviation, FINEST))
        return max(total.loss_error, total.rounding_share(value) / steepness) / value

    def is_near(self, value: float, saddle: Saddle) -> bool:
        """Return whether the saddle was near the value."""
        return abs(value - saddle.epsilon) <= EXPECTED * value

    def is_clear(self, value: float) -> bool:
        """Return whether the search ends here, because the value is 0 or says nothing."""
        return not 0 < value < math.inf


@dataclass(frozen=True)
class DeltaAt:
    """Delta at ``asked``, an epsilon, in one direction. A value below ``least`` need not be exact."""

    parts: tuple[Part, ...]
    swapped: bool
    asked: float
    least: float = LEAST_DELTA
    nothing = 1.0
    least_scale = 1.0  # delta's own accuracy is asked for, not epsilon's: where epsilon is near 0, that is much less

    def beside(self, value: float) -> "DeltaAt":
        """Return the question to ask once the other direction has given about ``value``: far less need not be exact."""
        return replace(self, least=max(LEAST_DELTA, FAR_LESS * value) if value < self.nothing else LEAST_DELTA)

    def saddle(self, value: float | None = None) -> Saddle:
        """Return where to look: at the estimate, or at ``value`` once it was read."""
        found = saddle_at_epsilon(self.parts, self.asked, value, swapped=self.swapped)
        if found.delta >= self.least:
            return found
        return saddle_at_delta(self.parts, self.least, swapped=self.swapped)

    def start(self, saddle: Saddle) -> float:
        """Return the least epsilon that the window must hold."""
        return min(self.asked, saddle.epsilon)

    def read(self, total: Total, saddle: Saddle) -> float:
        """Return the value that is read off the total."""
        return total.delta(self.asked)

    def lost(self, total: Total, value: float, saddle: Saddle) -> float:
        """Return the share of the value that may be rounding."""
        return total.rounding_share(self.asked)

    def is_near(self, value: float, saddle: Saddle) -> bool:
        """Return whether the saddle was near the value, or the value is at most ``least``."""
        return value <= self.least or abs(math.log(value / saddle.delta)) <= EXPECTED * max(1.0, -math.log(value))

    def is_clear(self, value: float) -> bool:
        """Return whether the search ends here, because the value is 0 or says nothing."""
        return not 0 < value < 1


Question = EpsilonAt | DeltaAt


@dataclass(frozen=True)
class Look:
    """A first look at a question.

    Attributes:
        reading: On a coarse grid.
        saddle: That belongs to the value; ``None`` if nothing is left to be seen.
        blurred: Whether the rounding of a single tilt shows.
    """

    reading: PldReading
    saddle: Saddle | None = None
    blurred: bool = False


def _at_delta(parts: tuple[Part, ...], delta: float) -> list[EpsilonAt]:
    return [EpsilonAt(parts, swapped, delta) for swapped in directions(parts)]


def _larger(questions: Sequence[Question]) -> PldReading:
    """Return the larger value. A direction whose first look, a bound, is smaller is not read again."""
    looks = [(_seen(questions[0]), questions[0])]
    for question in questions[1:]:
        beside = question.beside(looks[0][0].reading.value)
        looks.append((_seen(beside), beside))
    best: PldReading | None = None
    for look, question in sorted(looks, key=lambda seen: -seen[0].reading.value):
        if best is None:
            best = _read(question, look)
        elif look.reading.value > best.value:
            again = question.beside(best.value)
            best = max(best, _read(again, look if again == question else _seen(again)), key=_value)
    if best is None:
        raise ValueError("a composition has at least one direction.")
    return best


def _seen(question: Question) -> Look:
    """Take a first look where the value is expected, and look again where it was found if that is elsewhere."""
    best = PldReading(question.nothing, math.inf, False)
    if is_beyond(question.parts, question.swapped):
        return Look(best)
    saddle, blurred = question.saddle(), False
    for _ in range(MOST_LOOKS):
        found, blurred = _reading(question, saddle, FIRST, blurred)
        best = min(best, found, key=_value)
        if best.value == 0:
            return Look(best)
        if question.is_clear(best.value):  # no bound: a fine grid may have one
            break
        if question.is_near(best.value, saddle):
            break
        saddle = question.saddle(best.value)
    return Look(best, saddle, blurred)


def _read(question: Question, look: Look) -> PldReading:
    if look.saddle is None:
        return look.reading
    for grid in (FINE, *ROUGHER):
        fine, _ = _reading(question, _steep(look), grid, look.blurred)
        if fine.value != question.nothing:
            break
    return min(look.reading, fine, key=_value)


def _steep(look: Look) -> Saddle:
    """Return the saddle with the steepness of delta that was measured at the first look."""
    assert look.saddle is not None
    return replace(look.saddle, steepness=max(look.saddle.steepness, look.reading.steepness))


def _reading(question: Question, saddle: Saddle, grid: tuple[float, int], blurred: bool) -> tuple[PldReading, bool]:
    """Read the value by one tilt or by the number of rare losses, whichever resolves it; else take the lesser bound."""
    accuracy, most = grid
    start = question.start(saddle)
    window = Window(question.parts, saddle, start, question.swapped, accuracy, question.least_scale, most)
    best = PldReading(question.nothing, math.inf, False)
    for way in _ways(window, blurred):
        total, fine = way()
        if total is None:
            continue
        value = question.read(total, saddle)
        clear = not question.is_clear(value) and question.lost(total, value, saddle) <= RESOLVED
        blurred = blurred or (isinstance(total, TiltedTotal) and not clear)
        found = PldReading(value, total.interval, (fine and clear) or value == 0, _steepness(total, question, value))
        best = min(best, found, key=_value)
        if best.resolved or (clear and grid is not FINE):
            break
    return best, blurred


def _steepness(total: Total, question: Question, value: float) -> float:
    """Return how fast the logarithm of delta falls where it was read; with rare large losses no saddle tells."""
    epsilon = value if isinstance(question, EpsilonAt) else question.asked
    if question.is_clear(value) or epsilon == 0:
        return 0.0
    ends = [max(total.delta(epsilon * share), LEAST_FALL) for share in (1.0, 1 + STEP)]
    return math.log(ends[0] / ends[1]) / (STEP * epsilon)


def _ways(window: Window, blurred: bool) -> Iterator[Callable[[], tuple[Total | None, bool]]]:
    """Yield ways to compute the total: first by the number of rare losses where that is cheap or no tilt will do."""
    points, known = window.points, False
    blurred = blurred or not window.is_fine
    if blurred or points > MANY_POINTS:
        found = window.by_number(math.inf if blurred else points / FEWER)
        known = blurred or found[0] is not None
        yield lambda: found
    yield window.tilted
    if not known:
        yield lambda: window.by_number(math.inf)


def _value(reading: PldReading) -> float:
    return reading.value


def directions(parts: Sequence[Part]) -> tuple[bool, ...]:
    """Return the directions to look at, as values of ``swapped``: one alone if both have the same law."""
    return (False,) if all(pair.symmetric for pair, _ in parts) else (False, True)


def pairs_of(spends: Sequence[Spend]) -> list[Part]:
    """Return the dominating pairs of all spends, each of which has some."""
    each = [spend.guarantee.pairs for spend in spends]
    return [part for pairs in each if pairs is not None for part in pairs()]


def pooled(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Merge equal pairs, and make one query of all plain Gaussian ones."""
    square, counted = 0.0, dict[DominatingPair, int]()
    for pair, queries in parts:
        if isinstance(pair, GaussianPair) and pair.is_plain:
            square += queries * pair.mus[0] ** 2
        else:
            counted[pair] = counted.get(pair, 0) + queries
    gaussian = ((GaussianPair((math.sqrt(square),)), 1),) if square > 0 else ()
    return (*gaussian, *counted.items())
