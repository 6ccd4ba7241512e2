r"""The accountant: turn what sessions spend into epsilon or delta, as an upper bound.

The first method that serves all sessions is used:

1. If all sessions are Gaussian queries: the closed form, which is exact.
2. If every event has a privacy loss distribution (PLD): their composition, discretised pessimistically. Each direction
   of the neighbouring pair is composed on its own, and the larger epsilon is taken.
3. If every event has a Rényi curve: the sum of the curves. It also serves where the arithmetic of the second method
   fails; then the closed form of sessions without sampling is tried, too.
4. Otherwise the sessions are divided into parts that each have one of these, and the parts are added up by basic
   composition.

Additive deltas (stable counts, shares) are subtracted from delta first. So is the cost of couplings, their total
variation times :math:`1 + e^\epsilon` (docs/derivations/noisy-sgd.md). The result is finite, or it is infinite with the
reason in its name, or an ``ArithmeticError`` is raised. It is never a NaN and never an estimate.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from tacita import _validate
from tacita.accounting.events import Event, Spend
from tacita.accounting.events.event import all_known
from tacita.accounting.gaussian import delta_above, gaussian_epsilon
from tacita.accounting.pld_accountant import (
    approximate_epsilon,
    estimated_epsilon,
    has_pld,
    pld_delta,
    pld_epsilon,
)
from tacita.errors import UnsupportedEventError

if TYPE_CHECKING:
    from tacita.accounting.renyi_curve import RenyiCurve

CLOSED_FORM = "closed form of the Gaussian (exact)"
SESSION_FORM = "closed form of the session"
UNSAMPLED = "closed form of the Gaussian, sampling not counted on"
PURE = "basic composition of pure epsilons"
RDP = "RDP (dp_accounting)"
NOTHING = "nothing was released"
NON_PRIVATE = "non-private: a session without noise"
NO_DELTA_LEFT = "the additive failure probabilities leave no delta"
LEAST_LOG_DELTA = -80.0  # where a search over delta begins
MOST_ROUNDS = 200  # of the iteration that finds a coupled epsilon

Computed = tuple[float, str]  # epsilon or delta, and the accountant


@dataclass(frozen=True)
class Bound:
    """An upper bound, and the method that computed it.

    Attributes:
        epsilon: >= 0; ``inf`` if nothing is guaranteed.
        delta: In [0, 1].
        accountant: The name of the method.
    """

    epsilon: float
    delta: float
    accountant: str


def epsilon(spends: Sequence[Spend], delta: float) -> Bound:
    """Return the epsilon of all ``spends`` together at ``delta``, rounded up.

    The parameters of the spends must have been fixed before the first release; releases may then be used adaptively.

    Args:
        spends: Sessions that may share records; all under one relation.
        delta: In (0, 1).

    Raises:
        ValueError: ``delta`` is out of range, or the relations differ.
        ArithmeticError: No method gives a finite epsilon, for instance because delta is too small.

    Example:
        >>> from tacita.accounting import FullBatchLaw, GaussianSumEvent
        >>> once = GaussianSumEvent(
        ...     relation="replace_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(1.0,))
        >>> round(epsilon([Spend(once, 10)], delta=1e-5).epsilon, 4)
        46.2112
    """
    return _coupled_epsilon(merged(spends), _validate.delta("delta", delta))


def expected_epsilon(spends: Sequence[Spend], delta: float) -> float | None:
    """Return a cheap estimate of :func:`epsilon`, which is not a bound; ``None`` if there is none."""
    every = merged(spends)
    return estimated_epsilon(every, delta) if _by_pld_alone(every) else None


def near_epsilon(spends: Sequence[Spend], delta: float) -> float | None:
    """Return a near estimate of :func:`epsilon`, which is not a bound; ``None`` if there is none."""
    every = merged(spends)
    return approximate_epsilon(every, delta) if _by_pld_alone(every) else None


def _by_pld_alone(spends: tuple[Spend, ...]) -> bool:
    known = bool(spends) and all(spend.guarantee.private and has_pld(spend) for spend in spends)
    other = any(spend.guarantee.rdp_may_be_less or _has_closed_form(spend) for spend in spends)
    return known and not other and not _additive(spends) and not _gap(spends)


def delta(spends: Sequence[Spend], epsilon: float) -> Bound:
    """Return the delta of all ``spends`` together at ``epsilon`` >= 0, rounded up; 1 if nothing is guaranteed."""
    return _delta(merged(spends), _validate.non_negative("epsilon", epsilon))


def _coupled_epsilon(spends: tuple[Spend, ...], delta: float) -> Bound:
    r"""Return the least epsilon :math:`e` that suffices at :math:`\delta - (1 + e^e) g`, g being the coupling gap.

    The epsilon that is needed at this smaller delta rises with :math:`e`, so the iteration from 0 rises to the least
    solution. Each step goes slightly beyond the epsilon needed, and the last :math:`e` was confirmed to suffice.
    """
    gap, found = _gap(spends), 0.0
    if gap == 0:
        return _epsilon(spends, delta)
    for _ in range(MOST_ROUNDS):
        rest = delta - _swapped(found, gap)
        if not rest > 0:
            break
        asked = _epsilon(spends, rest)
        if asked.epsilon <= found or math.isinf(asked.epsilon):
            return Bound(max(found, asked.epsilon), delta, f"{asked.accountant}, failures swapped out")
        found = asked.epsilon * (1 + 1e-6)
    return Bound(math.inf, delta, NO_DELTA_LEFT)


def _swapped(epsilon: float, gap: float) -> float:
    """Return what is added to delta if, on both data sets, a session differs by ``gap`` from the accounted one."""
    return gap * (1 + math.exp(min(epsilon, 700.0)))


@lru_cache(maxsize=256)
def _epsilon(spends: tuple[Spend, ...], delta: float) -> Bound:
    if not spends:
        return Bound(0.0, delta, NOTHING)
    if not all(spend.guarantee.private for spend in spends):
        return Bound(math.inf, delta, NON_PRIVATE)
    rest = delta - _additive(spends)
    if abs(rest) <= 1e-12 * delta:  # shares that add up to delta, up to rounding
        rest = 0.0
    if rest < 0 or (rest == 0 and math.isinf(_pure(spends))):
        return Bound(math.inf, delta, NO_DELTA_LEFT)
    value, accountant = _tightest(spends, rest)
    if not math.isfinite(value):
        raise ArithmeticError(
            f"no accountant gives {_names(spends)} a finite epsilon at delta={delta:g}: ask for a larger delta, "
            "smaller failure probabilities, or more noise."
        )
    return Bound(value, delta, accountant)


def noise_delta(spends: tuple[Spend, ...], epsilon: float) -> float:
    """Return delta of private, merged ``spends`` without the failures that are added to it, rounded up."""
    return min(1.0, _least_delta(spends, epsilon)[0])


@lru_cache(maxsize=256)
def _delta(spends: tuple[Spend, ...], epsilon: float) -> Bound:
    if not spends:
        return Bound(epsilon, 0.0, NOTHING)
    if not all(spend.guarantee.private for spend in spends):
        return Bound(epsilon, 1.0, NON_PRIVATE)
    mu = gaussian_mu(spends)
    value, accountant = (delta_above(mu, epsilon), CLOSED_FORM) if mu is not None else _least_delta(spends, epsilon)
    return Bound(epsilon, min(1.0, value + _additive(spends) + _swapped(epsilon, _gap(spends))), accountant)


def _tightest(spends: tuple[Spend, ...], delta: float) -> Computed:
    """Return epsilon by the first method that serves these events; ``delta`` may be 0 if all of them are pure."""
    pure = (_pure(spends), PURE)
    if delta == 0:
        return pure
    mu = gaussian_mu(spends)
    if mu is not None:
        return min((gaussian_epsilon(mu, delta), CLOSED_FORM), pure)
    found = min(_epsilons(spends, delta), default=None)
    return min(found or _in_parts(spends, delta), pure)


def _epsilons(spends: tuple[Spend, ...], delta: float) -> Iterator[Computed]:
    """Yield epsilon by the session's closed form, else by PLD; by RDP if neither serves, or the grid is too coarse."""
    if len(spends) == 1 and _has_closed_form(spends[0]):
        yield _inverted(lambda e: _closed_delta(spends[0], e), delta), SESSION_FORM
        return
    if all(map(has_pld, spends)):
        reading = pld_epsilon(spends, delta)
        yield reading.value, reading.name
        if reading.resolved and not any(spend.guarantee.rdp_may_be_less for spend in spends):
            return
    known = all_known(spend.guarantee.unsampled_mu for spend in spends)
    if known is not None:
        yield gaussian_epsilon(math.hypot(*known), delta), UNSAMPLED
    curve = _rdp(spends)
    if curve is not None:
        yield curve.epsilon(delta), RDP


def _least_delta(spends: tuple[Spend, ...], epsilon: float) -> Computed:
    found: list[Computed] = [(0.0 if _pure(spends) <= epsilon else 1.0, PURE)]
    if len(spends) == 1 and _has_closed_form(spends[0]):
        found.append((_closed_delta(spends[0], epsilon), SESSION_FORM))
    elif all(map(has_pld, spends)):
        reading = pld_delta(spends, epsilon)
        found.append((reading.value, reading.name))
        if reading.resolved and not any(spend.guarantee.rdp_may_be_less for spend in spends):
            return min(found)
    curve = _rdp(spends)
    if curve is not None:
        found.append((curve.delta(epsilon), RDP))
    if len(found) == 1 and found[0][0] == 1:
        log_delta = LEAST_LOG_DELTA + _inverted(
            lambda above: _in_parts(spends, math.exp(LEAST_LOG_DELTA + above))[0], epsilon, most=-LEAST_LOG_DELTA
        )
        found.append((math.exp(min(0.0, log_delta)), "basic composition of parts"))
    return min(found)


def _in_parts(spends: tuple[Spend, ...], delta: float) -> Computed:
    """Add up epsilons of events with a PLD, events with only a curve, and each other event, at equal parts of delta."""
    with_pld = tuple(spend for spend in spends if has_pld(spend))
    with_curve = tuple(spend for spend in spends if spend not in with_pld and spend.guarantee.rdp is not None)
    rest = [(spend,) for spend in spends if spend not in with_pld and spend not in with_curve]
    parts = [part for part in (with_pld, with_curve, *rest) if part]
    if len(parts) < 2:
        raise UnsupportedEventError(f"{_names(spends)} offers no guarantee that can be computed.")
    found = [_tightest(part, delta / len(parts)) for part in parts]
    return math.fsum(value for value, _ in found), "basic composition of " + " and ".join(name for _, name in found)


# The forms of several guarantees together.


def gaussian_mu(spends: Sequence[Spend]) -> float | None:
    """Return ``mu`` of all sessions together, if each of them is one Gaussian query."""
    known = all_known(spend.guarantee.mu for spend in spends)
    return None if known is None else math.hypot(*known)


def _pure(spends: Sequence[Spend]) -> float:
    """Return the sum of the epsilons at delta 0, or infinity."""
    each = [spend.guarantee.pure_epsilon for spend in spends]
    return math.fsum(math.inf if value is None else value for value in each)


def _additive(spends: Sequence[Spend]) -> float:
    return math.fsum(spend.guarantee.additive_delta for spend in spends)


def _gap(spends: Sequence[Spend]) -> float:
    return math.fsum(spend.guarantee.coupling_gap for spend in spends)


def _rdp(spends: Sequence[Spend]) -> "RenyiCurve | None":
    """Return the Rényi curve of all sessions together; ``None`` if one of them has none."""
    curves = all_known(spend.guarantee.rdp for spend in spends)
    if curves is None:
        return None
    from tacita.accounting.renyi_curve import RenyiCurve  # loaded where it is asked for

    return RenyiCurve(curves)


def _has_closed_form(spend: Spend) -> bool:
    return spend.guarantee.delta is not None


def _closed_delta(spend: Spend, epsilon: float) -> float:
    closed = spend.guarantee.delta
    value = None if closed is None else closed(epsilon)
    if value is None or math.isnan(value):
        raise ArithmeticError(f"{type(spend.event).__name__} has no delta at epsilon={epsilon:g}.")
    return value


def _inverted(falling: Callable[[float], float], target: float, most: float = 1e6) -> float:
    """Return the least argument >= 0 at which ``falling`` is <= ``target``, rounded up; ``inf`` beyond ``most``."""
    if falling(0.0) <= target:
        return 0.0
    upper = 1e-3
    while falling(upper) > target:
        if upper >= most:
            return math.inf
        upper = min(most, upper * 2)
    lower = 0.0
    while upper - lower > 1e-10 * upper:
        middle = (lower + upper) / 2
        lower, upper = (middle, upper) if falling(middle) > target else (lower, middle)
    return upper


def merged(spends: Sequence[Spend]) -> tuple[Spend, ...]:
    """Drop spends without queries, and merge equal events that compose query by query and have no coupling gap."""
    relations = {spend.event.relation for spend in spends}
    if len(relations) > 1:
        raise ValueError(f"all spends must have one neighboring relation, got {', '.join(sorted(relations))}.")
    counted: dict[Event, int] = {}
    whole: list[Spend] = []
    for spend in spends:
        alone = not spend.event.per_query or spend.guarantee.coupling_gap > 0  # a gap is each session's own
        if spend.queries and not alone:
            counted[spend.event] = counted.get(spend.event, 0) + spend.queries
        elif spend.queries:
            whole.append(spend)
    return (*(Spend(event, queries) for event, queries in counted.items()), *whole)


def _names(spends: Sequence[Spend]) -> str:
    return ", ".join(sorted({type(spend.event).__name__ for spend in spends}))
