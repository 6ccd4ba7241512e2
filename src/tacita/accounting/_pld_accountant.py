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
        """The accountant in plain words."""
        return f"PLD (tilted, pessimistic, discretisation {self.interval:.1g})"


def has_pld(spend: Spend) -> bool:
    """Whether the event offers dominating pairs."""
    return spend.guarantee.pairs is not None


def pld_epsilon(spends: Sequence[Spend], delta: float) -> PldReading:
    """Epsilon at ``delta``: the larger one of both directions."""
    parts = pooled(pairs_of(spends))
    return _larger(_at_delta(parts, delta))


def pld_delta(spends: Sequence[Spend], epsilon: float) -> PldReading:
    """Delta at ``epsilon``: the larger one of both directions."""
    parts = pooled(pairs_of(spends))
    return _larger([DeltaAt(parts, swapped, epsilon) for swapped in directions(parts)])


def estimated_epsilon(spends: Sequence[Spend], delta: float) -> float:
    """An estimate, not a bound, that costs next to nothing: where a search for a setting begins."""
    parts = pooled(pairs_of(spends))
    return max(epsilon_at_saddle(parts, delta, swapped=swapped) for swapped in directions(parts))


def approximate_epsilon(spends: Sequence[Spend], delta: float) -> float:
    """About what :func:`pld_epsilon` gives, from two coarse grids: what a grid adds falls with its interval's square.

    Not a bound.
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
        """The question, where another direction gives about ``value``."""
        return self

    def saddle(self, value: float | None = None) -> Saddle:
        """Where to look; once a ``value`` was read, there."""
        if value is None:
            return saddle_at_delta(self.parts, self.asked, swapped=self.swapped)
        return saddle_at_epsilon(self.parts, value, self.asked, swapped=self.swapped)

    def start(self, saddle: Saddle) -> float:
        """The least epsilon that a window shows."""
        return WINDOW_START * saddle.epsilon if saddle.epsilon > saddle.reach else 0.0

    def read(self, total: Total, saddle: Saddle) -> float:
        """The value."""
        return total.epsilon(self.asked, saddle.epsilon)

    def lost(self, total: Total, value: float, saddle: Saddle) -> float:
        """What share of the value is a bound on rounding."""
        steepness = max(saddle.steepness, saddle.theta, 1 / max(saddle.deviation, FINEST))
        return max(total.loss_error, total.rounding_share(value) / steepness) / value

    def is_near(self, value: float, saddle: Saddle) -> bool:
        """Whether the saddle was where the value is."""
        return abs(value - saddle.epsilon) <= EXPECTED * value

    def is_clear(self, value: float) -> bool:
        """Whether the value is the end of the search."""
        return not 0 < value < math.inf


@dataclass(frozen=True)
class DeltaAt:
    """Delta at ``asked``, an epsilon, in one direction; how small it is below ``least`` is not asked."""

    parts: tuple[Part, ...]
    swapped: bool
    asked: float
    least: float = LEAST_DELTA
    nothing = 1.0
    least_scale = 1.0  # delta's own accuracy is asked for, not epsilon's: where epsilon is near 0, that is much less

    def beside(self, value: float) -> "DeltaAt":
        """The question, where another direction gives about ``value``: what is far less need not be known."""
        return replace(self, least=max(LEAST_DELTA, FAR_LESS * value) if value < self.nothing else LEAST_DELTA)

    def saddle(self, value: float | None = None) -> Saddle:
        """Where to look; once a ``value`` was read, there."""
        found = saddle_at_epsilon(self.parts, self.asked, value, swapped=self.swapped)
        if found.delta >= self.least:
            return found
        return saddle_at_delta(self.parts, self.least, swapped=self.swapped)

    def start(self, saddle: Saddle) -> float:
        """The least epsilon that a window shows."""
        return min(self.asked, saddle.epsilon)

    def read(self, total: Total, saddle: Saddle) -> float:
        """The value."""
        return total.delta(self.asked)

    def lost(self, total: Total, value: float, saddle: Saddle) -> float:
        """What share of the value is a bound on rounding."""
        return total.rounding_share(self.asked)

    def is_near(self, value: float, saddle: Saddle) -> bool:
        """Whether the saddle was where the value is, or the value is as small as is asked."""
        return value <= self.least or abs(math.log(value / saddle.delta)) <= EXPECTED * max(1.0, -math.log(value))

    def is_clear(self, value: float) -> bool:
        """Whether the value is the end of the search."""
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
    """The larger value; a direction that is less at first sight, which is a bound, is not looked at again."""
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
    """A first look where the value is expected; and again where it was found, if that is elsewhere."""
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
    fine, _ = _reading(question, _steep(look), FINE, look.blurred)
    return min(look.reading, fine, key=_value)


def _steep(look: Look) -> Saddle:
    """The saddle, with what was seen of how fast delta falls."""
    assert look.saddle is not None
    return replace(look.saddle, steepness=max(look.saddle.steepness, look.reading.steepness))


def _reading(question: Question, saddle: Saddle, grid: tuple[float, int], blurred: bool) -> tuple[PldReading, bool]:
    """By one tilt or by the number of rare losses, whichever resolves the value; else the lesser bound."""
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
    """How fast the logarithm of delta falls where it was read; where large losses are rare, no saddle tells."""
    epsilon = value if isinstance(question, EpsilonAt) else question.asked
    if question.is_clear(value) or epsilon == 0:
        return 0.0
    ends = [max(total.delta(epsilon * share), LEAST_FALL) for share in (1.0, 1 + STEP)]
    return math.log(ends[0] / ends[1]) / (STEP * epsilon)


def _ways(window: Window, blurred: bool) -> Iterator[Callable[[], tuple[Total | None, bool]]]:
    """By the number of rare losses, if that is little of the work or no tilt will do; by one tilt; by the number."""
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
    """The directions to look at, as ``swapped``: one where both have the same law."""
    return (False,) if all(pair.symmetric for pair, _ in parts) else (False, True)


def pairs_of(spends: Sequence[Spend]) -> list[Part]:
    """The pairs of all spends, each of which has them."""
    each = [spend.guarantee.pairs for spend in spends]
    return [part for pairs in each if pairs is not None for part in pairs()]


def pooled(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Equal pairs together, and all plain Gaussian queries as one."""
    square, counted = 0.0, dict[DominatingPair, int]()
    for pair, queries in parts:
        if isinstance(pair, GaussianPair) and pair.is_plain:
            square += queries * pair.mus[0] ** 2
        else:
            counted[pair] = counted.get(pair, 0) + queries
    gaussian = ((GaussianPair((math.sqrt(square),)), 1),) if square > 0 else ()
    return (*gaussian, *counted.items())
