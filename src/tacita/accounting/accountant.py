r"""Accountant: from what sessions spend to epsilon or delta, as an upper bound.

Place: events -> [accounting.accountant] -> ledger, calibration. In this order:

1. sessions that are Gaussian queries alone: the closed form, exact;
2. every event has a privacy loss distribution: their composition, pessimistically discretised, each direction of the
   neighbouring pair on its own and the larger epsilon taken;
3. every event has a Rényi curve: their sum (also where arithmetic fails the second);
4. otherwise parts that each have one of these, added up by basic composition.

Additive deltas (stable counts, shares) are taken off delta first, and so is what couplings cost: their total variation
times :math:`1 + e^\epsilon` (docs/derivations/noisy-sgd.md). What is returned is finite, or the reason it is not is
named, or an ``ArithmeticError`` is raised: never a NaN, never an estimate.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant

from tacita import _validate
from tacita.accounting._pld_accountant import has_pld, pld_delta, pld_epsilon
from tacita.accounting.events import Event, Spend
from tacita.accounting.gaussian import gaussian_delta, gaussian_epsilon
from tacita.errors import UnsupportedEventError

ORDERS = np.array([*rdp_privacy_accountant.DEFAULT_RDP_ORDERS, 2048.0])
CLOSED_FORM = "closed form of the Gaussian (exact)"
SESSION_FORM = "closed form of the session"
PURE = "basic composition of pure epsilons"
RDP = "RDP (dp_accounting)"
NOTHING = "nothing was released"
NON_PRIVATE = "non-private: a session without noise"
NO_DELTA_LEFT = "the additive failure probabilities leave no delta"
LOST_MOMENT = 1e-12  # stands for the logarithm of a moment that rounding has taken to 0
LEAST_LOG_DELTA = -80.0  # where a search over delta begins
MOST_ROUNDS = 200  # of the iteration that finds a coupled epsilon

Computed = tuple[float, str]  # epsilon or delta, and the accountant


@dataclass(frozen=True)
class Bound:
    """An upper bound, and who computed it.

    Attributes:
        epsilon: >= 0; ``inf`` where nothing is guaranteed.
        delta: In [0, 1].
        accountant: In plain words.
    """

    epsilon: float
    delta: float
    accountant: str


def epsilon(spends: Sequence[Spend], delta: float) -> Bound:
    """The epsilon of all ``spends`` together at ``delta``, rounded up.

    The parameters of the spends must have been fixed before the first release; releases may then be used adaptively.

    Args:
        spends: Sessions that may share records; all under one relation.
        delta: In (0, 1).

    Raises:
        ValueError: ``delta`` out of range, or different relations.
        ArithmeticError: No accountant gives a finite epsilon, at so small a delta say.

    Example:
        >>> from tacita.accounting import FullBatchGaussianEvent
        >>> once = FullBatchGaussianEvent(relation="replace_one", max_contribution=(1.0,), noise_std=(1.0,))
        >>> round(epsilon([Spend(once, 10)], delta=1e-5).epsilon, 4)
        46.2112
    """
    return _coupled_epsilon(_merged(spends), _validate.delta("delta", delta))


def delta(spends: Sequence[Spend], epsilon: float) -> Bound:
    """The delta of all ``spends`` together at ``epsilon`` >= 0, rounded up; 1 where nothing is guaranteed."""
    return _delta(_merged(spends), _validate.non_negative("epsilon", epsilon))


def _coupled_epsilon(spends: tuple[Spend, ...], delta: float) -> Bound:
    r"""The least epsilon :math:`e` that is enough for :math:`\delta - (1 + e^e) g`, :math:`g` the coupling gap.

    What is asked of the other accountants rises with :math:`e`, so the iteration from 0 rises to the least solution; it
    steps a little past what they ask for, and stops at an :math:`e` that they have confirmed.
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
    """What is added to delta where a session differs by ``gap`` from the one that is accounted, in both worlds."""
    return gap * (1 + math.exp(min(epsilon, 700.0)))


@lru_cache(maxsize=256)
def _epsilon(spends: tuple[Spend, ...], delta: float) -> Bound:
    if not spends:
        return Bound(0.0, delta, NOTHING)
    if not all(spend.event.is_private() for spend in spends):
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


@lru_cache(maxsize=256)
def _delta(spends: tuple[Spend, ...], epsilon: float) -> Bound:
    if not spends:
        return Bound(epsilon, 0.0, NOTHING)
    if not all(spend.event.is_private() for spend in spends):
        return Bound(epsilon, 1.0, NON_PRIVATE)
    mu = _gaussian_mu(spends)
    value, accountant = (gaussian_delta(mu, epsilon), CLOSED_FORM) if mu is not None else _least_delta(spends, epsilon)
    return Bound(epsilon, min(1.0, value + _additive(spends) + _swapped(epsilon, _gap(spends))), accountant)


def _tightest(spends: tuple[Spend, ...], delta: float) -> Computed:
    """Epsilon by the first accountant that serves these events; ``delta`` may be 0 where all of them are pure."""
    pure = (_pure(spends), PURE)
    if delta == 0:
        return pure
    mu = _gaussian_mu(spends)
    if mu is not None:
        return min((gaussian_epsilon(mu, delta), CLOSED_FORM), pure)
    found = min(_epsilons(spends, delta), default=None)
    return min(found or _in_parts(spends, delta), pure)


def _epsilons(spends: tuple[Spend, ...], delta: float) -> Iterator[Computed]:
    """By the session's closed form, else by PLD; by RDP where neither serves, or the grid is too coarse."""
    if len(spends) == 1 and _has_closed_form(spends[0]):
        yield _inverted(lambda e: _closed_delta(spends[0], e), delta), SESSION_FORM
        return
    if all(map(has_pld, spends)):
        reading = pld_epsilon(spends, delta)
        yield reading.value, reading.name
        if reading.resolved:
            return
    curve = _rdp(spends)
    if curve is not None:
        yield _rdp_epsilon(curve, delta), RDP


def _least_delta(spends: tuple[Spend, ...], epsilon: float) -> Computed:
    found: list[Computed] = [(0.0 if _pure(spends) <= epsilon else 1.0, PURE)]
    if len(spends) == 1 and _has_closed_form(spends[0]):
        found.append((_closed_delta(spends[0], epsilon), SESSION_FORM))
    elif all(map(has_pld, spends)):
        reading = pld_delta(spends, epsilon)
        found.append((reading.value, reading.name))
    curve = _rdp(spends)
    if curve is not None:
        found.append((_rdp_delta(curve, epsilon), RDP))
    if len(found) == 1 and found[0][0] == 1:
        log_delta = LEAST_LOG_DELTA + _inverted(
            lambda above: _in_parts(spends, math.exp(LEAST_LOG_DELTA + above))[0], epsilon, most=-LEAST_LOG_DELTA
        )
        found.append((math.exp(min(0.0, log_delta)), "basic composition of parts"))
    return min(found)


def _in_parts(spends: tuple[Spend, ...], delta: float) -> Computed:
    """Epsilons added up: events with a PLD, those with a curve only, and each of the rest, delta in equal parts."""
    with_pld = tuple(spend for spend in spends if has_pld(spend))
    with_curve = tuple(spend for spend in spends if spend not in with_pld and _rdp((spend,)) is not None)
    rest = [(spend,) for spend in spends if spend not in with_pld and spend not in with_curve]
    parts = [part for part in (with_pld, with_curve, *rest) if part]
    if len(parts) < 2:
        raise UnsupportedEventError(f"{_names(spends)} offers no guarantee that can be computed.")
    found = [_tightest(part, delta / len(parts)) for part in parts]
    return math.fsum(value for value, _ in found), "basic composition of " + " and ".join(name for _, name in found)


# What the views of several events are together.


def _gaussian_mu(spends: Sequence[Spend]) -> float | None:
    mus = [spend.event.gaussian_mu(spend.queries) for spend in spends]
    known = [mu for mu in mus if mu is not None]
    return math.hypot(*known) if len(known) == len(mus) else None


def _pure(spends: Sequence[Spend]) -> float:
    """Sum of the epsilons at delta 0, or infinity."""
    each = [spend.event.pure_epsilon(spend.queries) for spend in spends]
    return math.fsum(math.inf if value is None else value for value in each)


def _additive(spends: Sequence[Spend]) -> float:
    return math.fsum(spend.event.additive_delta(spend.queries) for spend in spends)


def _gap(spends: Sequence[Spend]) -> float:
    return math.fsum(spend.event.coupling_gap(spend.queries) for spend in spends)


def _rdp(spends: Sequence[Spend]) -> np.ndarray | None:
    curves = [spend.event.rdp(spend.queries, ORDERS) for spend in spends]
    known = [curve for curve in curves if curve is not None]
    return np.sum(known, axis=0) if len(known) == len(curves) else None


def _rdp_epsilon(curve: np.ndarray, delta: float) -> float:
    """Epsilon of a curve; orders without a finite bound are left out."""
    orders, values = _usable(curve)
    if not len(orders):
        return math.inf
    return float(rdp_privacy_accountant.compute_epsilon(orders.tolist(), values.tolist(), delta)[0])


def _rdp_delta(curve: np.ndarray, epsilon: float) -> float:
    """Delta of a curve: Canonne, Kamath and Steinke (2020), Proposition 12, or the root of 1 - exp(-divergence).

    dp_accounting has the same two, but computes 1 - exp(-divergence) so that it vanishes below 1e-16.
    """
    orders, values = _usable(curve)
    if not len(orders):
        return 1.0
    logs = (orders - 1) * (values - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return min(1.0, math.exp(min(0.0, float(logs.min()))), math.sqrt(-math.expm1(-float(values.min()))))


def _usable(curve: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Orders with a finite bound, and the bounds; unless the curve is 0 throughout, zeros in it are lost moments."""
    finite = np.isfinite(curve)
    orders, values = ORDERS[finite], curve[finite]
    return orders, np.where((values > 0) | ~np.any(curve), values, LOST_MOMENT / (orders - 1))


def _has_closed_form(spend: Spend) -> bool:
    return spend.event.delta(1.0, spend.queries) is not None


def _closed_delta(spend: Spend, epsilon: float) -> float:
    value = spend.event.delta(epsilon, spend.queries)
    if value is None or math.isnan(value):
        raise ArithmeticError(f"{type(spend.event).__name__} has no delta at epsilon={epsilon:g}.")
    return value


def _inverted(falling: Callable[[float], float], target: float, most: float = 1e6) -> float:
    """The smallest argument >= 0 at which ``falling`` is at most ``target``, rounded up; ``inf`` beyond ``most``."""
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


def _merged(spends: Sequence[Spend]) -> tuple[Spend, ...]:
    """Spends without those of no queries; equal events that compose query by query are added up (not failures)."""
    relations = {spend.event.relation for spend in spends}
    if len(relations) > 1:
        raise ValueError(f"all spends must have one neighboring relation, got {', '.join(sorted(relations))}.")
    counted: dict[Event, int] = {}
    whole: list[Spend] = []
    for spend in spends:
        alone = not spend.event.per_query or spend.event.coupling_gap(spend.queries) > 0  # a gap is each session's own
        if spend.queries and not alone:
            counted[spend.event] = counted.get(spend.event, 0) + spend.queries
        elif spend.queries:
            whole.append(spend)
    return (*(Spend(event, queries) for event, queries in counted.items()), *whole)


def _names(spends: Sequence[Spend]) -> str:
    return ", ".join(sorted({type(spend.event).__name__ for spend in spends}))
