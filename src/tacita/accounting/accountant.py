r"""Accountant: from what sessions spend to epsilon or delta, as an upper bound.

Place: events -> [accounting.accountant] -> ledger, calibration. In this order:

1. sessions that are Gaussian queries alone: the closed form, exact;
2. every event has a privacy loss distribution: their composition, pessimistically discretised, each direction of the
   neighbouring pair on its own and the larger epsilon taken;
3. every event has a Rényi curve: their sum (also where arithmetic fails the second);
4. otherwise parts that each have one of these, added up by basic composition.

Additive deltas (stable counts, shares) are taken off delta first. What is returned is finite, or the reason it is not
is named, or an ``ArithmeticError`` is raised: never a NaN, never an estimate.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant

from tacita import _validate
from tacita.accounting import _pld
from tacita.accounting.events import Event, Spend
from tacita.accounting.gaussian import gaussian_delta, gaussian_epsilon
from tacita.errors import UnsupportedEventError

ORDERS = np.array([*rdp_privacy_accountant.DEFAULT_RDP_ORDERS, 2048.0])
FINEST_INTERVAL = 2.0**-20  # below, differences of deltas drown in rounding
MOST_POINTS = 1_000_000  # of one distribution's grid
FFT_SLACK = 32 * 2.0**-52  # a composition, see _slack
CLOSED_FORM = "closed form of the Gaussian (exact)"
RDP = "RDP (dp_accounting)"


@dataclass(frozen=True)
class Bound:
    """An upper bound, and who computed it.

    Attributes:
        epsilon: >= 0; ``inf`` where nothing is guaranteed.
        delta: In (0, 1].
        accountant: In plain words.
    """

    epsilon: float
    delta: float
    accountant: str


def epsilon(spends: Sequence[Spend], delta: float) -> Bound:
    """The epsilon of all ``spends`` together at ``delta``, rounded up.

    The parameters of the spends must have been fixed before the first release; then releases may be chosen adaptively.

    Args:
        spends: Sessions that may share records; all under one relation.
        delta: In (0, 1).

    Raises:
        ValueError: ``delta`` out of range, or different relations.
        ArithmeticError: No accountant gives a finite epsilon at so small a delta.

    Example:
        >>> from tacita.accounting import FullBatchGaussianEvent
        >>> once = FullBatchGaussianEvent(relation="replace_one", max_contribution=(1.0,), noise_std=(1.0,))
        >>> round(epsilon([Spend(once, 10)], delta=1e-5).epsilon, 4)
        46.2112
    """
    _validate.delta("delta", delta)
    return _epsilon(_merged(spends), float(delta))


def delta(spends: Sequence[Spend], epsilon: float) -> Bound:
    """The delta of all ``spends`` together at ``epsilon`` >= 0, rounded up; 1 where nothing is guaranteed."""
    _validate.non_negative("epsilon", epsilon)
    merged = _merged(spends)
    if not all(spend.event.is_private() for spend in merged):
        return Bound(epsilon, 1.0, "non-private: a session without noise")
    added = _additive(merged)
    value, accountant = _delta(merged, float(epsilon))
    return Bound(epsilon, min(1.0, value + added), accountant)


@lru_cache(maxsize=256)
def _epsilon(spends: tuple[Spend, ...], delta: float) -> Bound:
    if not spends:
        return Bound(0.0, delta, "nothing was released")
    if not all(spend.event.is_private() for spend in spends):
        return Bound(math.inf, delta, "non-private: a session without noise")
    rest = delta - _additive(spends)
    if abs(rest) <= 1e-12 * delta:  # shares that add up to delta, up to rounding
        rest = 0.0
    if rest < 0:
        return Bound(math.inf, delta, "the additive failure probabilities alone exceed delta")
    value, accountant = _tightest(spends, rest)
    if not math.isfinite(value):
        raise ArithmeticError(
            f"no finite epsilon at delta={delta:g} for {_names(spends)}: "
            "ask for a larger delta (smaller additive failure probabilities leave more of it), or add noise."
        )
    return Bound(value, delta, accountant)


def _tightest(spends: tuple[Spend, ...], delta: float) -> tuple[float, str]:
    """The first accountant that serves these events; where it fails, the next. ``delta`` may be 0 for pure events."""
    pure = _pure(spends)
    if delta == 0:
        return pure, "basic composition of pure epsilons"
    mu = _gaussian_mu(spends)
    if mu is not None:
        return gaussian_epsilon(mu, delta), CLOSED_FORM
    found = min(_attempts(spends, delta), default=None)
    if found is None:
        found = _in_parts(spends, delta)
    return min(found, (pure, "basic composition of pure epsilons"))


def _attempts(spends: tuple[Spend, ...], delta: float):
    """Epsilons by closed form, PLD, RDP; the RDP only where neither of the others is finite."""
    if len(spends) == 1 and spends[0].event.delta(1.0, spends[0].queries) is not None:
        yield _inverted(lambda e: _closed_delta(spends[0], e), delta), "closed form of the session"
        return
    value = math.inf
    if all(_has_pld(spend) for spend in spends):
        value, interval = _pld_epsilon(spends, delta)
        yield value, _pld_name(interval)
    if not math.isfinite(value) or value == 0:
        curve = _rdp(spends)
        if curve is not None:
            yield _rdp_epsilon(curve, delta), RDP


def _in_parts(spends: tuple[Spend, ...], delta: float) -> tuple[float, str]:
    """Basic composition of the events with a PLD, those with a curve only, and each of the rest, delta in equal parts."""
    parts = [tuple(spend for spend in spends if _has_pld(spend))]
    parts += [tuple(spend for spend in spends if not _has_pld(spend) and _rdp((spend,)) is not None)]
    grouped = {spend for part in parts for spend in part}
    parts += [(spend,) for spend in spends if spend not in grouped]
    parts = [part for part in parts if part]
    if len(parts) < 2:
        raise UnsupportedEventError(f"{_names(spends)} offers no guarantee that can be computed.")
    found = [_tightest(part, delta / len(parts)) for part in parts]
    return math.fsum(value for value, _ in found), "basic composition of " + " and ".join(name for _, name in found)


def _delta(spends: tuple[Spend, ...], epsilon: float) -> tuple[float, str]:
    if not spends:
        return 0.0, "nothing was released"
    if _pure(spends) <= epsilon:
        return 0.0, "basic composition of pure epsilons"
    mu = _gaussian_mu(spends)
    if mu is not None:
        return gaussian_delta(mu, epsilon), CLOSED_FORM
    if len(spends) == 1 and spends[0].event.delta(1.0, spends[0].queries) is not None:
        return _closed_delta(spends[0], epsilon), "closed form of the session"
    if all(_has_pld(spend) for spend in spends):
        interval = _pld_epsilon(spends, 1e-5)[1]
        composed = _composed(spends, interval)
        return float(composed.get_delta_for_epsilon(epsilon)) + _slack(spends), _pld_name(interval)
    curve = _rdp(spends)
    if curve is not None:
        return float(rdp_privacy_accountant.compute_delta(ORDERS, curve, epsilon)[0]), RDP  # type: ignore[arg-type]
    value = _inverted(lambda log_delta: -_in_parts(spends, math.exp(-log_delta))[0], -epsilon, high=80.0)
    return (math.exp(-value) if math.isfinite(value) else 1.0), "basic composition of parts"


# --- Gaussian and pure parts -------------------------------------------------------------------------------------


def _gaussian_mu(spends: Sequence[Spend]) -> float | None:
    """mu of all together, or ``None`` if one is more than Gaussian queries."""
    mus = [spend.event.gaussian_mu(spend.queries) for spend in spends]
    known = [mu for mu in mus if mu is not None]
    return math.hypot(*known) if len(known) == len(mus) else None


def _pure(spends: Sequence[Spend]) -> float:
    """Sum of the epsilons at delta 0, or infinity."""
    each = [spend.event.pure_epsilon(spend.queries) for spend in spends]
    return math.fsum(math.inf if value is None else value for value in each)


def _additive(spends: Sequence[Spend]) -> float:
    return math.fsum(spend.event.additive_delta(spend.queries) for spend in spends)


def _closed_delta(spend: Spend, epsilon: float) -> float:
    value = spend.event.delta(epsilon, spend.queries)
    if value is None or math.isnan(value):
        raise ArithmeticError(f"{type(spend.event).__name__} has no delta at epsilon={epsilon:g}.")
    return value


def _inverted(falling: Callable[[float], float], target: float, high: float = 1e6) -> float:
    """The smallest argument >= 0 at which ``falling`` is at most ``target``, rounded up; ``inf`` beyond ``high``."""
    if falling(0.0) <= target:
        return 0.0
    upper = 1.0
    while falling(upper) > target:
        upper *= 2
        if upper > high:
            return math.inf
    lower = 0.0
    while upper - lower > 1e-10 * upper:
        middle = (lower + upper) / 2
        lower, upper = (middle, upper) if falling(middle) > target else (lower, middle)
    return upper


# --- privacy loss distributions ----------------------------------------------------------------------------------


def _has_pld(spend: Spend) -> bool:
    """Whether the event offers one, asked on a coarse grid, which costs next to nothing."""
    if spend.event.gaussian_mu(spend.queries) is not None:
        return True
    return (
        type(spend.event).pld is not Event.pld
        and spend.event.pld(1, _snapped(spend.event.loss_range(1) / 16)) is not None
    )


def _pld_epsilon(spends: tuple[Spend, ...], delta: float) -> tuple[float, float]:
    """Epsilon on a grid as fine as it needs, and that grid's interval.

    A grid of interval d adds up to d^2/4 to the variance of each of T losses, which moves a small epsilon by about
    relative T d^2 z^2 / (8 epsilon^2), z^2 about 2 log(1/delta): for 0.05 % d is at most ``0.015 epsilon / sqrt(T)``.
    """
    if delta <= 2 * _slack(spends):
        return math.inf, FINEST_INTERVAL
    queries = max(1, sum(spend.event.compositions(spend.queries) for spend in spends if _discretised(spend)))
    widest = _loss_range(spends)
    interval = _snapped(widest / 10_000)
    best = (math.inf, interval)
    for _ in range(4):
        value = _read(_composed(spends, interval), delta - _slack(spends))
        best = min(best, (value, interval))
        finest = max(FINEST_INTERVAL, widest / MOST_POINTS)
        wanted = _snapped(max(finest, 0.015 * best[0] / math.sqrt(queries)))
        if not interval > wanted:
            break
        interval = wanted
    return best


def _discretised(spend: Spend) -> bool:
    return spend.event.gaussian_mu(spend.queries) is None


def _loss_range(spends: Sequence[Spend]) -> float:
    mu = _pooled_mu(spends)
    ranges = [spend.event.loss_range(spend.queries) for spend in spends if _discretised(spend)]
    return max([mu * (mu / 2 + 10), *ranges])


def _pooled_mu(spends: Sequence[Spend]) -> float:
    mus = [spend.event.gaussian_mu(spend.queries) for spend in spends]
    return math.hypot(*[mu for mu in mus if mu is not None])


@lru_cache(maxsize=4)
def _composed(spends: tuple[Spend, ...], interval: float) -> _pld.PrivacyLossDistribution:
    """All Gaussian queries as one, then the others, each direction on its own."""
    mu = _pooled_mu(spends)
    parts = [_pld.gaussian_pld(mu, interval)] if mu > 0 else []
    parts += [spend.event.pld(spend.queries, interval) for spend in spends if _discretised(spend)]
    return reduce(lambda left, right: left.compose(right, tail_mass_truncation=_pld.TAIL_MASS), parts)


def _read(composed: _pld.PrivacyLossDistribution, delta: float) -> float:
    """Epsilon at ``delta``, checked against the distribution's own delta; infinity if the check fails."""
    try:
        value = float(composed.get_epsilon_for_delta(delta))
    except OverflowError:  # the search went below losses of -700: epsilon is 0, or the grid is damaged
        value = 0.0
    if not math.isfinite(value):
        return math.inf
    value *= 1 + 1e-9
    held = float(composed.get_delta_for_epsilon(value)) <= delta * (1 + 1e-6)
    whole = abs(float(composed.get_delta_for_epsilon(-700.0)) - 1) < 1e-6  # the masses sum to 1
    return value if held and whole else math.inf


def _slack(spends: Sequence[Spend]) -> float:
    """What Fourier transforms may have lost of delta: rounding 2^-52 a step, times T compositions, times 32 for the sizes."""
    return FFT_SLACK * (
        len(spends) + sum(spend.event.compositions(spend.queries) for spend in spends if _discretised(spend))
    )


def _snapped(interval: float) -> float:
    """The next power of two below: few different grids, so that the caches serve."""
    return max(FINEST_INTERVAL, 2.0 ** math.floor(math.log2(interval)))


def _pld_name(interval: float) -> str:
    return f"PLD (dp_accounting, pessimistic, discretisation {interval:.1g})"


# --- Rényi curves --------------------------------------------------------------------------------------------------


def _rdp(spends: Sequence[Spend]) -> np.ndarray | None:
    curves = [spend.event.rdp(spend.queries, ORDERS) for spend in spends]
    known = [curve for curve in curves if curve is not None]
    return np.sum(known, axis=0) if len(known) == len(curves) else None


def _rdp_epsilon(curve: np.ndarray, delta: float) -> float:
    if np.isnan(curve).any() or not np.isfinite(curve).any():
        return math.inf
    finite = np.isfinite(curve)
    return float(rdp_privacy_accountant.compute_epsilon(ORDERS[finite], curve[finite], delta)[0])  # type: ignore[arg-type]


# --- spends --------------------------------------------------------------------------------------------------------


def _merged(spends: Sequence[Spend]) -> tuple[Spend, ...]:
    """Spends without those of no queries; equal events that compose query by query are added up."""
    relations = {spend.event.relation for spend in spends}
    if len(relations) > 1:
        raise ValueError(f"all spends must have one neighboring relation, got {', '.join(sorted(relations))}.")
    counted: dict[Event, int] = {}
    whole: list[Spend] = []
    for spend in spends:
        if spend.queries and spend.event.per_query:
            counted[spend.event] = counted.get(spend.event, 0) + spend.queries
        elif spend.queries:
            whole.append(spend)
    return (*(Spend(event, queries) for event, queries in counted.items()), *whole)


def _names(spends: Sequence[Spend]) -> str:
    return ", ".join(sorted({type(spend.event).__name__ for spend in spends}))
