"""Calibration: the least noise that keeps a session, and all it is composed with, within epsilon and delta.

Place: accountant -> [accounting.calibration] -> training. It runs the accountant backwards and trusts nothing else:
what it returns has been accounted, and is within the target.
"""

import math
from collections.abc import Callable, Sequence

from tacita import _validate
from tacita.accounting.accountant import epsilon
from tacita.accounting.events import Event, Spend
from tacita.accounting.relations import NeighboringRelation, check_relation

TOLERANCE = 5e-4  # the epsilon reached is in [(1 - TOLERANCE) target, target]
LARGEST, SMALLEST = 1e9, 1e-9
MOST_STEPS = 60


def calibrate(
    event_at: Callable[[float], Event],
    relation: NeighboringRelation,
    target_epsilon: float,
    target_delta: float,
    alongside: Sequence[Spend] = (),
    *,
    queries: int = 1,
) -> float:
    """The least noise multiplier at which everything together is (``target_epsilon``, ``target_delta``)-private.

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
        >>> from tacita.accounting import FullBatchGaussianEvent
        >>> def event_at(multiplier):
        ...     return FullBatchGaussianEvent(
        ...         relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(multiplier,)
        ...     )
        >>> 3.730 < calibrate(event_at, "add_or_remove_one", 1.0, 1e-5) < 3.735  # 1 / gaussian_mu(1, 1e-5) = 3.7306
        True
    """
    check_relation(relation)
    target = _validate.positive("target_epsilon", target_epsilon)
    _validate.delta("target_delta", target_delta)
    _validate.count("queries", queries)

    def reached(multiplier: float) -> float:
        event = event_at(multiplier)
        if event.relation != relation:
            raise ValueError(f"event_at must give events under relation={relation}, got {event.relation}.")
        return _epsilon([*alongside, Spend(event, queries)], target_delta)

    already = _epsilon(alongside, target_delta) if alongside else 0.0
    if already >= target:
        raise ValueError(
            f"target_epsilon={target:g} at target_delta={target_delta:g} cannot be reached: the sessions alongside "
            f"already spend {already:.4g}. Give a larger target_epsilon, or plan those sessions with more noise."
        )
    low, high = _bracket(reached, target, target_delta)
    return _narrowed(reached, target, low, high)


def _epsilon(spends: Sequence[Spend], delta: float) -> float:
    try:
        return epsilon(spends, delta).epsilon
    except ArithmeticError:  # no accountant resolves so little noise, or so small a delta
        return math.inf


Point = tuple[float, float]  # noise multiplier, epsilon


def _bracket(reached: Callable[[float], float], target: float, target_delta: float) -> tuple[Point, Point]:
    """Two multipliers with epsilons above the target and within it; the jumps guess that epsilon falls as 1 / noise."""
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
    """Regula falsi on logarithms with bisection as its safeguard; ``high`` is always within the target."""
    for step in range(MOST_STEPS):
        if high[1] >= target * (1 - TOLERANCE) or high[0] <= low[0] * (1 + 1e-9):
            break
        multiplier = math.sqrt(low[0] * high[0]) if step % 3 == 2 else _secant(low, high, target)
        point = (multiplier, reached(multiplier))
        low, high = (point, high) if point[1] > target else (low, point)
    return high[0]


def _secant(low: Point, high: Point, target: float) -> float:
    """Where the line through both points, on logarithms, meets a little less than the target."""
    if not math.isfinite(low[1]) or high[1] <= 0:
        return math.sqrt(low[0] * high[0])
    wanted = math.log(target * (1 - TOLERANCE / 2))
    share = (math.log(low[1]) - wanted) / (math.log(low[1]) - math.log(high[1]))
    share = min(0.999, max(0.001, share))
    return low[0] * (high[0] / low[0]) ** share
