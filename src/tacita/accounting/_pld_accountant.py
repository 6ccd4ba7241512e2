r"""Composition of privacy loss distributions: the grid it needs, and epsilon or delta read off it as upper bounds.

Place: events -> [accounting._pld_accountant] -> accountant. All Gaussian queries enter as one (exact); the others are
composed pessimistically, each direction of the neighbouring pair on its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

from tacita.accounting import _pld
from tacita.accounting.events import Spend

FINEST_INTERVAL = 2.0**-20  # below, differences of deltas drown in rounding
MOST_POINTS = 1_000_000  # of one distribution's grid
FIRST_POINTS = 256  # coarse and quick: it only says how fine the grid must be
FFT_SLACK = 32 * 2.0**-52  # of delta, a composition
LOWEST_LOSS = -700.0  # exp of its negative is still a float


@dataclass(frozen=True)
class Reading:
    """A value read off a composition, and the grid it was read from.

    Attributes:
        value: Epsilon or delta; ``inf`` (or 1) if the arithmetic failed.
        interval: The grid's.
        resolved: Whether the grid is as fine as the accuracy asks for.
    """

    value: float
    interval: float
    resolved: bool

    @property
    def name(self) -> str:
        """The accountant in plain words."""
        return f"PLD (dp_accounting, pessimistic, discretisation {self.interval:.1g})"


def has_pld(spend: Spend) -> bool:
    """Whether the event offers a distribution; asked on a coarse grid, which costs next to nothing."""
    if not _discretised(spend):
        return True
    return spend.event.pld(spend.queries, _snapped(spend.event.loss_range(spend.queries) / 16)) is not None


def pld_epsilon(spends: tuple[Spend, ...], delta: float) -> Reading:
    r"""Epsilon at ``delta`` on a grid as fine as it needs.

    A grid of interval d adds at most :math:`d^2/4` to the variance of each of T losses, which moves a small epsilon by
    about a share :math:`T d^2 z^2 / (8 \epsilon^2)`, z^2 near 20: for 0.05 % d is at most 0.015 epsilon / sqrt(T).
    """
    rest = delta - slack(spends)
    widest, queries = _loss_range(spends), max(1, _compositions(spends))
    finest, interval = _snapped(widest / MOST_POINTS), _snapped(widest / FIRST_POINTS)
    best = Reading(math.inf, interval, False)
    while rest > delta / 2:
        try:
            value = _read_epsilon(composed(spends, interval), rest)
        except OverflowError:  # one interval of the grid is wider than exp can take: it says nothing
            value = math.inf
        wanted = _snapped(0.015 * value / math.sqrt(queries)) if 0 < value < math.inf else interval
        best = min(best, Reading(value, interval, interval <= wanted and value < math.inf), key=lambda r: r.value)
        if interval <= max(wanted, finest):
            break
        interval = max(wanted, finest)
    return best


def pld_delta(spends: tuple[Spend, ...], epsilon: float) -> Reading:
    """Delta at ``epsilon``, on the grid that serves epsilon at 1e-5."""
    grid = pld_epsilon(spends, 1e-5)
    try:
        value = float(composed(spends, grid.interval).get_delta_for_epsilon(epsilon)) + slack(spends)
    except OverflowError:
        value = 1.0
    return Reading(min(1.0, value) if value >= 0 else 1.0, grid.interval, grid.resolved)  # a NaN becomes 1


@lru_cache(maxsize=4)
def composed(spends: tuple[Spend, ...], interval: float) -> _pld.PrivacyLossDistribution:
    """All Gaussian queries as one, then the others."""
    mu = _pooled_mu(spends)
    parts = [_pld.gaussian_pld(mu, interval)] if mu > 0 else []
    for spend in spends:
        if _discretised(spend):
            part = spend.event.pld(spend.queries, interval)
            assert part is not None, type(spend.event).__name__
            parts.append(part)
    return reduce(lambda left, right: left.compose(right, tail_mass_truncation=_pld.TAIL_MASS), parts)


def slack(spends: Sequence[Spend]) -> float:
    """What Fourier transforms may have lost of delta: rounding, times T compositions, times 32 for the sizes."""
    return FFT_SLACK * (len(spends) + _compositions(spends))


def _read_epsilon(pld: _pld.PrivacyLossDistribution, delta: float) -> float:
    """Epsilon at ``delta``, checked against the distribution's own delta; infinity if the check fails.

    Rounding of a fine grid adds mass, which is pessimistic; mass that went missing is taken off delta.
    """
    delta -= max(0.0, 1 - float(pld.get_delta_for_epsilon(LOWEST_LOSS)))
    if not delta > 0:
        return math.inf
    try:
        value = float(pld.get_epsilon_for_delta(delta))
    except OverflowError:  # the search passed losses of -700, so epsilon is 0; the check below decides
        value = 0.0
    if not math.isfinite(value):
        return math.inf
    value *= 1 + 1e-9
    return value if float(pld.get_delta_for_epsilon(value)) <= delta * (1 + 1e-6) else math.inf


def _discretised(spend: Spend) -> bool:
    return spend.event.gaussian_mu(spend.queries) is None


def _compositions(spends: Sequence[Spend]) -> int:
    return sum(spend.event.compositions(spend.queries) for spend in spends if _discretised(spend))


def _pooled_mu(spends: Sequence[Spend]) -> float:
    mus = [spend.event.gaussian_mu(spend.queries) for spend in spends]
    return math.hypot(*[mu for mu in mus if mu is not None])


def _loss_range(spends: Sequence[Spend]) -> float:
    mu = _pooled_mu(spends)
    ranges = [spend.event.loss_range(spend.queries) for spend in spends if _discretised(spend)]
    return max([mu * (mu / 2 + 10), *ranges])


def _snapped(interval: float) -> float:
    """The next power of two below: few different grids, so that the caches serve."""
    return max(FINEST_INTERVAL, 2.0 ** math.floor(math.log2(interval)))
