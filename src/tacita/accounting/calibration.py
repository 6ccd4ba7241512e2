"""Calibration: the least noise that keeps a session, and all it is composed with, within epsilon and delta.

Place: accountant -> [accounting.calibration] -> training. It runs the accountant backwards and trusts nothing else:
what it returns has been accounted, and is within the target.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache

from scipy.optimize import brentq

from tacita import _validate
from tacita.accounting.accountant import epsilon, expected_epsilon, near_epsilon
from tacita.accounting.events import Event, Spend
from tacita.accounting.relations import NeighboringRelation, check_relation

TOLERANCE = 1e-3  # the epsilon reached is in [(1 - TOLERANCE) target, target]
AIM = 0.4  # of it below the target is where to look
LARGEST, SMALLEST = 1e9, 1e-9
MOST_STEPS = 60
MOST_CORRECTIONS = 5  # of an estimate, before a search without it
MOST_DOUBLINGS = 12  # of the noise, likewise
MOST_LOOKS = 5  # at near estimates
NEAR = 0.02  # of epsilon: a step that is no longer, on a parabola through three of them, needs no other look
CLOSE = 1e-4  # of the noise, on logarithms: the first guess
BESIDE = 1e-2  # likewise: where its slope is looked at
SURE = 2e-4  # of epsilon: then there is no other look either
STEADY = -1.0  # how the logarithm of epsilon falls with that of the noise, where it is not known
FARTHEST_OFF = 3.0  # an estimate is of no use if it is so far off


def calibrate(
    event_at: Callable[[float], Event],
    relation: NeighboringRelation,
    target_epsilon: float,
    target_delta: float,
    alongside: Sequence[Spend] = (),
    *,
    queries: int = 1,
) -> float:
    """Return the least noise multiplier with which all sessions together are (``target_epsilon``, ``target_delta``)-DP.

    Guarantee: accounting for ``event_at`` of the result, ``queries`` times, alongside ``alongside``, gives at most the
    target; and, where the epsilon is continuous in the noise, at least 99.9 % of it.

    Args:
        event_at: Noise multiplier -> event; epsilon must fall as it grows.
        relation: The relation that the event must be under.
        target_epsilon: > 0 and finite, for all together.
        target_delta: In (0, 1), for all together.
        alongside: Sessions that share records with this one.
        queries: Queries planned for this one.

    Raises:
        ValueError: The target is out of range, or no noise reaches it; the message names the target and a way out.

    Example:
        >>> from tacita.accounting import FullBatchLaw, GaussianSumEvent
        >>> def event_at(multiplier):
        ...     return GaussianSumEvent(
        ...         relation="add_or_remove_one", sampling=FullBatchLaw(), max_contribution=(1.0,),
        ...         noise_std=(multiplier,),
        ...     )
        >>> 3.730 < calibrate(event_at, "add_or_remove_one", 1.0, 1e-5) < 3.735  # 1 / gaussian_mu(1, 1e-5) = 3.7306
        True
    """
    check_relation(relation)
    target = _validate.positive("target_epsilon", target_epsilon)
    _validate.delta("target_delta", target_delta)
    _validate.count("queries", queries)

    def everything(multiplier: float) -> list[Spend]:
        event = event_at(multiplier)
        if event.relation != relation:
            raise ValueError(f"event_at must give events under relation={relation}, got {event.relation}.")
        return [*alongside, Spend(event, queries)]

    def reached(multiplier: float) -> float:
        return _epsilon(everything(multiplier), target_delta)

    already = _epsilon(alongside, target_delta) if alongside else 0.0
    if already >= target:
        raise ValueError(
            f"target_epsilon={target:g} at target_delta={target_delta:g} cannot be reached: the sessions alongside "
            f"already spend {already:.4g}. Give a larger target_epsilon, or plan those sessions with more noise."
        )

    def expected(multiplier: float) -> float | None:
        return expected_epsilon(everything(multiplier), target_delta)

    def near(multiplier: float) -> float | None:
        return near_epsilon(everything(multiplier), target_delta)

    found = _by_estimates(reached, expected, near, target)
    if found is not None:
        return found
    low, high = _bracket(reached, target, target_delta)
    return _narrowed(reached, target, low, high)


def _epsilon(spends: Sequence[Spend], delta: float) -> float:
    try:
        return epsilon(spends, delta).epsilon
    except ArithmeticError:  # no accountant resolves so little noise, or so small a delta
        return math.inf


Point = tuple[float, float]  # noise multiplier, epsilon


def _by_estimates(
    reached: Callable[[float], float],
    expected: Callable[[float], float | None],
    near: Callable[[float], float | None],
    target: float,
) -> float | None:
    """Return a multiplier whose epsilon was computed and is near enough: estimates choose it, readings correct it."""
    wanted = target * (1 - AIM * TOLERANCE)
    try:
        first = _estimated(expected, wanted, 1.0)
        point, known = (None, []) if first is None else _approached(near, wanted, *first)
        readings: list[Point] = []
        for _ in range(MOST_CORRECTIONS):
            if point is None:
                return None
            readings.append((point, reached(point)))
            if target * (1 - TOLERANCE) <= readings[-1][1] <= target:
                return point
            if not target / FARTHEST_OFF < readings[-1][1] < target * FARTHEST_OFF:
                return None
            point = _corrected(readings, known, wanted)
    except (ArithmeticError, ValueError):  # the estimate has none; the search without it says what is wrong
        return None
    return None


def _approached(
    near: Callable[[float], float | None], wanted: float, start: float, slope: float
) -> tuple[float, list[Point]]:
    """Return about where an estimate is ``wanted``, and the points tried before; ``slope`` guides the first step."""
    readings, point = list[Point](), start
    for _ in range(MOST_LOOKS):
        value = near(point)
        if value is None or not 0 < value < math.inf:
            break
        readings.append((point, value))
        off, point = abs(math.log(value / wanted)), _through(readings, wanted, slope)
        if off < SURE or (len(readings) > 2 and off < NEAR):
            break
    return point, readings


def _corrected(readings: list[Point], known: list[Point], wanted: float) -> float:
    """Return where to read next, from the readings so far; after the first one, from the slope of the estimates."""
    if len(readings) > 1 or len(known) < 2:
        return _through(readings, wanted)
    point, value = readings[0]
    scaled = [(at, estimate * value / known[-1][1]) for at, estimate in known[:-1]]
    return _through([*scaled, (point, value)], wanted)


def _through(points: list[Point], wanted: float, slope: float = STEADY) -> float:
    """Return where the line through the last two points, on logarithms, meets ``wanted``; a third point bends it.

    Through one point it has the ``slope`` that is expected.
    """
    last, value = points[-1]
    step = math.log(wanted / value)
    if len(points) > 1 and points[-2][0] != last:
        slope = _clamped(_slope(points[-2], points[-1]))
    straight = step / slope
    if len(points) < 3 or len({at for at, _ in points[-3:]}) < 3 or len({found for _, found in points[-3:]}) < 3:
        return last * math.exp(straight)
    first, second = 1 / _slope(points[-3], points[-2]), 1 / _slope(points[-2], points[-1])
    bend = (second - first) / math.log(value / points[-3][1])
    bent = step * second + bend * step * math.log(wanted / points[-2][1])
    return last * math.exp(bent if abs(bent - straight) <= 0.5 * abs(straight) else straight)


def _slope(left: Point, right: Point) -> float:
    return math.log(right[1] / left[1]) / math.log(right[0] / left[0])


def _clamped(slope: float) -> float:
    return min(-0.2, max(-20.0, slope))


def _estimated(expected: Callable[[float], float | None], wanted: float, start: float) -> tuple[float, float] | None:
    """Return a multiplier at which the estimate is about ``wanted``, and its slope there, on logarithms."""

    @cache
    def excess(log_multiplier: float) -> float:
        value = expected(math.exp(log_multiplier))
        return math.nan if value is None else math.log(max(value, 1e-12) / wanted)

    low = high = math.log(start)
    first = excess(low)
    for _ in range(MOST_DOUBLINGS):
        if math.isnan(first) or math.copysign(1, excess(low)) != math.copysign(1, excess(high)):
            break
        low, high = (low, high + 0.7) if first > 0 else (low - 0.7, high)
    if not excess(low) > 0 > excess(high):
        return None
    found = float(brentq(excess, low, high, xtol=CLOSE))  # type: ignore[arg-type]
    return math.exp(found), _clamped((excess(found + BESIDE) - excess(found)) / BESIDE)


def _bracket(reached: Callable[[float], float], target: float, target_delta: float) -> tuple[Point, Point]:
    """Return multipliers with epsilons above and within the target; the jumps guess that epsilon falls as 1 / noise."""
    point = (1.0, reached(1.0))
    rising = point[1] > target
    while True:
        ratio = min(50.0, max(point[1], target / 50) / target)
        step = max(1.2, 1.1 * ratio) if rising else min(1 / 1.2, ratio / 1.1)
        following = (point[0] * step, reached(point[0] * step))
        if rising != (following[1] > target):
            return (point, following) if rising else (following, point)
        if following[0] > LARGEST:
            raise ValueError(
                f"target_epsilon={target:g} at target_delta={target_delta:g} cannot be reached with any noise: "
                f"at noise multiplier {following[0]:.3g} epsilon is still {following[1]:.4g}. Give a larger "
                "target_epsilon or target_delta, or plan fewer queries."
            )
        if following[0] < SMALLEST:  # nothing depends on this noise: the least that was tried will do
            return (following, following)
        point = following


def _narrowed(reached: Callable[[float], float], target: float, low: Point, high: Point) -> float:
    """Narrow the bracket by regula falsi on logarithms, safeguarded by bisection; ``high`` stays within the target."""
    for step in range(MOST_STEPS):
        if high[1] >= target * (1 - TOLERANCE) or high[0] <= low[0] * (1 + 1e-9):
            break
        multiplier = math.sqrt(low[0] * high[0]) if step % 3 == 2 else _secant(low, high, target)
        point = (multiplier, reached(multiplier))
        low, high = (point, high) if point[1] > target else (low, point)
    return high[0]


def _secant(low: Point, high: Point, target: float) -> float:
    """Return where the line through both points, on logarithms, meets a little less than the target."""
    if not math.isfinite(low[1]) or high[1] <= 0:
        return math.sqrt(low[0] * high[0])
    wanted = math.log(target * (1 - AIM * TOLERANCE))
    share = (math.log(low[1]) - wanted) / (math.log(low[1]) - math.log(high[1]))
    share = min(0.999, max(0.001, share))
    return low[0] * (high[0] / low[0]) ** share
