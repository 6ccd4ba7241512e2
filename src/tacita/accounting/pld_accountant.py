r"""Composition of dominating pairs: epsilon or delta, read off tilted laws of the total loss as upper bounds.

Place: events -> [accounting.pld_accountant] -> accountant. All Gaussian queries enter as one (exact); the others are
composed on a grid, each direction of the neighbouring pairs on its own, and the larger epsilon counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tacita.accounting._tilted import TiltedTotal
from tacita.accounting._window import ACCURACY, MOST_POINTS, Window
from tacita.accounting.aim import Aim, aim_at_delta, aim_at_epsilon, expected_epsilon
from tacita.accounting.dominating_pairs import DominatingPair, Part
from tacita.accounting.events import Spend
from tacita.accounting.line_pairs import GaussianPair

FIRST = (1e-2, 2**16)  # accuracy of epsilon, and most points, of a first look
SECOND = (1e-3, 2**18)  # of a second one, for an estimate
FINE = (ACCURACY, MOST_POINTS)
EXPECTED = 0.1  # of epsilon, or of the logarithm of delta: the aim was near enough
MOST_LOOKS, MOST_READINGS = 8, 3
LEAST_DELTA = 1e-40  # a smaller one is not looked for
FAR_LESS = 1e-3  # of another direction's delta
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
    """

    value: float
    interval: float
    resolved: bool

    @property
    def name(self) -> str:
        """The name of the accountant, for the statement."""
        return f"PLD (tilted, pessimistic, discretisation {self.interval:.1g})"


def has_pld(spend: Spend) -> bool:
    """Return whether the event offers dominating pairs."""
    return spend.guarantee.pairs is not None


def pld_epsilon(spends: Sequence[Spend], delta: float) -> PldReading:
    """Return epsilon at ``delta``: the larger value of the two directions."""
    return epsilon_of(pairs_of(spends), delta)


def epsilon_of(parts: Sequence[Part], delta: float) -> PldReading:
    """Return epsilon at ``delta`` of pairs that are composed."""
    return _larger(_at_delta(pooled(parts), delta))


def pld_delta(spends: Sequence[Spend], epsilon: float) -> PldReading:
    """Return delta at ``epsilon``: the larger value of the two directions."""
    parts = pooled(pairs_of(spends))
    return _larger([DeltaQuery(parts, swapped, epsilon) for swapped in directions(parts)])


def estimated_epsilon(spends: Sequence[Spend], delta: float) -> float:
    """Return a cheap estimate of epsilon, which is no bound: a search for a setting begins there."""
    parts = pooled(pairs_of(spends))
    return max(expected_epsilon(parts, delta, swapped=swapped) for swapped in directions(parts))


def approximate_epsilon(spends: Sequence[Spend], delta: float) -> float:
    """Return about what :func:`pld_epsilon` gives, from two coarse grids.

    It is no bound. What a grid adds to epsilon falls with the square of its interval.
    """
    parts = pooled(pairs_of(spends))
    estimates = [(*_estimate(query), query) for query in _at_delta(parts, delta)]
    reading, aim, query = max(estimates, key=lambda found: found[0].value)
    if aim is None:
        return reading.value
    finer, _ = _reading(query, aim, SECOND)
    squares = (finer.interval / reading.interval) ** 2
    gain = max(0.0, reading.value - finer.value)
    return finer.value - (gain * squares / (1 - squares) if squares < LEAST_GAIN else 0.0)


@dataclass(frozen=True)
class EpsilonQuery:
    """Epsilon at ``asked``, a delta, in one direction."""

    parts: tuple[Part, ...]
    swapped: bool
    asked: float
    nothing = math.inf  # what is read where nothing is guaranteed
    least_scale = 0.0

    def after_other_direction(self, value: float) -> "EpsilonQuery":
        """Return the query to make once the other direction has given about ``value``."""
        return self

    def aim(self, value: float | None = None) -> Aim | None:
        """Return where to look: at the estimate, or at ``value`` once it was read."""
        if value is None:
            return aim_at_delta(self.parts, self.asked, swapped=self.swapped)
        return aim_at_epsilon(self.parts, value, self.asked, swapped=self.swapped)

    def start(self, aim: Aim) -> float:
        """Return the least epsilon that the window must hold."""
        return WINDOW_START * aim.epsilon if aim.epsilon > aim.reach else 0.0

    def read(self, total: TiltedTotal, aim: Aim) -> float:
        """Return the value that is read off the total."""
        return total.epsilon(self.asked)

    def lost(self, total: TiltedTotal, value: float, aim: Aim) -> float:
        """Return the share of the value that may be rounding."""
        steepness = max(aim.steepness, aim.theta, 1 / max(aim.deviation, 1e-290))
        return max(total.loss_error, total.rounding_share(value) / steepness) / value

    def is_near(self, value: float, aim: Aim) -> bool:
        """Return whether the aim was near the value."""
        return abs(value - aim.epsilon) <= EXPECTED * value


@dataclass(frozen=True)
class DeltaQuery:
    """Delta at ``asked``, an epsilon, in one direction. A value below ``least`` need not be exact."""

    parts: tuple[Part, ...]
    swapped: bool
    asked: float
    least: float = LEAST_DELTA
    nothing = 1.0
    least_scale = 1.0  # delta's own accuracy is asked for, not epsilon's: where epsilon is near 0, that is much less

    def after_other_direction(self, value: float) -> "DeltaQuery":
        """Return the query to make once the other direction has given about ``value``: far less need not be exact."""
        return replace(self, least=max(LEAST_DELTA, FAR_LESS * value) if value < self.nothing else LEAST_DELTA)

    def aim(self, value: float | None = None) -> Aim | None:
        """Return where to look: at the estimate, or at ``value`` once it was read."""
        found = aim_at_epsilon(self.parts, self.asked, value, swapped=self.swapped)
        if found is None or found.delta >= self.least:
            return found
        return aim_at_delta(self.parts, self.least, swapped=self.swapped)

    def start(self, aim: Aim) -> float:
        """Return the least epsilon that the window must hold."""
        return min(self.asked, aim.epsilon)

    def read(self, total: TiltedTotal, aim: Aim) -> float:
        """Return the value that is read off the total."""
        return total.delta(self.asked)

    def lost(self, total: TiltedTotal, value: float, aim: Aim) -> float:
        """Return the share of the value that may be rounding."""
        return total.rounding_share(self.asked)

    def is_near(self, value: float, aim: Aim) -> bool:
        """Return whether the aim was near the value, or the value is at most ``least``."""
        return value <= self.least or abs(math.log(value / aim.delta)) <= EXPECTED * max(1.0, -math.log(value))


Query = EpsilonQuery | DeltaQuery
Estimate = tuple[PldReading, Aim | None]  # on a coarse grid, and where to look again unless nothing is left to be seen


def _at_delta(parts: tuple[Part, ...], delta: float) -> list[EpsilonQuery]:
    return [EpsilonQuery(parts, swapped, delta) for swapped in directions(parts)]


def _larger(queries: Sequence[Query]) -> PldReading:
    """Return the larger value. A direction whose first look, a bound, is smaller is not read again."""
    estimates = [(_estimate(queries[0]), queries[0])]
    for query in queries[1:]:
        informed = query.after_other_direction(estimates[0][0][0].value)
        estimates.append((_estimate(informed), informed))
    best: PldReading | None = None
    for estimate, query in sorted(estimates, key=lambda found: -found[0][0].value):
        if best is None:
            best = _refined(query, estimate)
        elif estimate[0].value > best.value:
            again = query.after_other_direction(best.value)
            best = max(best, _refined(again, estimate if again == query else _estimate(again)), key=_value)
    if best is None:
        raise ValueError("a composition has at least one direction.")
    return best


def _estimate(query: Query) -> Estimate:
    """Take a first look where the value is expected, and look again where it was found if that is elsewhere."""
    best, aim = PldReading(query.nothing, math.inf, False), query.aim()
    for _ in range(MOST_LOOKS):
        if aim is None:
            return best, None
        found, fine = _reading(query, aim, FIRST)
        best = min(best, found, key=_value)
        if best.value == 0:
            return best, None
        if not fine or found.value in (0.0, query.nothing) or query.is_near(found.value, aim):
            break
        aim = query.aim(found.value)
    return best, aim


def _refined(query: Query, estimate: Estimate) -> PldReading:
    best, aim = estimate
    for _ in range(MOST_READINGS):
        if aim is None:
            break
        found, fine = _reading(query, aim, FINE)
        best = min(best, found, key=_value)
        if not fine or found.value in (0.0, query.nothing) or query.is_near(found.value, aim):
            break
        aim = query.aim(found.value)
    return best


def _reading(query: Query, aim: Aim, grid: tuple[float, int]) -> tuple[PldReading, bool]:
    """Read the value on a grid of an accuracy and at most so many points, and say whether these are enough."""
    window = Window(query.parts, aim, query.start(aim), query.swapped, grid[0], query.least_scale, grid[1])
    total, fine = window.total()
    value = query.read(total, aim)
    clear = value == 0 or (value < query.nothing and query.lost(total, value, aim) <= RESOLVED)
    return PldReading(value, total.interval, fine and clear), fine


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
    """Merge equal pairs, and make one query of all Gaussian ones."""
    square, counted = 0.0, dict[DominatingPair, int]()
    for pair, queries in parts:
        if isinstance(pair, GaussianPair):
            square += queries * pair.mu**2
        else:
            counted[pair] = counted.get(pair, 0) + queries
    gaussian = ((GaussianPair(math.sqrt(square)), 1),) if square > 0 else ()
    return (*gaussian, *counted.items())
