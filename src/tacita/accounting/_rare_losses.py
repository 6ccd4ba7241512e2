r"""Rare large losses apart from the bulk: totals with a peak, and a thin tail far from it.

Place: _tilted -> [accounting._rare_losses] -> _pld_accountant. Proof: docs/derivations/accounting.md, section 10.

With :math:`\beta` the part of a query's losses up to a cut and :math:`\rho` T times the rest, T losses have at most the
divergence of :math:`\beta^{*T} * (1 + \rho + \rho^{*2}/2! + \dots)`. The bulk's total :math:`\beta^{*T}` is narrow: it
gets a fine grid, and its sum a coarse one. No and one large loss are added up term by term, which loses nothing
however small delta is; two and more (_several_rare_losses) are rarer than delta's rounding needs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from tacita.accounting._loss_law import UNIT, LossLaw
from tacita.accounting._search import least_epsilon
from tacita.accounting._several_rare_losses import Rare, several
from tacita.accounting._tilted import Composed, TiltedTotal, composed, moments

LEFT_OUT, LEAST_DELTA = 1e-10, 1e-280  # of delta: of the bulk's upper tail
BELOW = 30.0  # minus log of the bulk's lower tail, which counts as less low
SHARES = (0.0, 0.5, 1.0)  # of the steepest tilt
BOUNDS = 12  # tilts of Chernoff's bound
LARGEST_TILT = 1e9
LEAST_MASS = 1e-300
MOST_STORED = 2**17  # points below the first mass
ROUNDING = 1e-9  # of a tilt times a loss
MARGIN = 1 + 1e-9


@dataclass(frozen=True)
class Divergence:
    """Hockey-stick divergences of a measure on a grid, at the grid's points; between them they are linear in exp.

    Attributes:
        interval: Distance of two points.
        first: The first point, in intervals.
        values: From there up to the measure's last point, where it is 0.
        total: The measure's mass, all of it above the first point where a value below that is asked for.
    """

    interval: float
    first: int
    values: np.ndarray
    total: float

    def between(self, start: int, stop: int) -> np.ndarray:
        r"""Return the values from ``start`` up to ``stop``, which is left out.

        Below the first point f, with all mass S above: :math:`(1 - e^{(i - f) d}) S + e^{(i - f) d} D_f`.
        """
        known = self.values[max(0, start - self.first) : max(0, stop - self.first)]
        if start >= self.first:
            return known
        gaps = (np.arange(start, min(stop, self.first)) - self.first) * self.interval
        below = -np.expm1(gaps) * self.total + np.exp(gaps) * float(self.values[0])
        return np.append(below * (1 + 8 * UNIT), known)


def divergence(first: int, masses: np.ndarray, interval: float, lowest: int) -> Divergence:
    r"""Return divergences from ``lowest``: :math:`D_i = (1 - e^{-d}) S_i + e^{-d} D_{i+1}`, S the mass above a point.

    No term is negative, so nothing cancels. Values far below the first mass are computed where they are asked for.
    """
    lowest = max(lowest, first - MOST_STORED)
    padded = np.concatenate([np.zeros(max(0, first - lowest)), masses[max(0, lowest - first) :]])
    above = np.append(0.0, np.cumsum(padded[::-1])[:-1])
    less = math.exp(-interval)
    values = lfilter([-math.expm1(-interval)], [1.0, -less], above)[::-1]
    more = 1 + 8 * UNIT * len(padded)
    total = float(padded.sum()) * more if lowest <= first else math.inf  # masses that were left out may be above
    return Divergence(interval, lowest, np.asarray(values) * more, total)


@dataclass(frozen=True)
class RareTotal:
    """An upper bound of the total loss, by the number of rare large losses.

    Attributes:
        bulk: The bulk's total, on the grid of ``rare``.
        uncertain: What of ``bulk`` is a bound on the rounding of transforms.
        rare: Large losses.
        more: Two of them or more.
        infinity: Chance of an infinite total loss.
        none: Divergence of the bulk's total.
        fine: Interval of its grid.
        one: Divergence of the large losses.
    """

    bulk: LossLaw
    uncertain: LossLaw
    rare: Rare
    more: TiltedTotal
    infinity: float
    none: Divergence
    fine: float
    one: Divergence

    def delta(self, epsilon: float) -> float:
        """Return delta at ``epsilon`` >= 0, rounded up."""
        exactly = self._without(self.none, self.fine, epsilon) + self._with_one(self.bulk, epsilon)
        return min(1.0, self.infinity + (exactly + self.more.delta(epsilon)) * MARGIN)

    def epsilon(self, delta: float, guess: float) -> float:
        """Return the smallest epsilon >= 0 at ``delta``, rounded up; ``inf`` if there is none."""
        return least_epsilon(self.delta, delta, 0.0, float(self.more.losses[-1]), guess=guess)

    @property
    def interval(self) -> float:
        """The interval of the grid of large losses."""
        return self.rare.interval

    @property
    def loss_error(self) -> float:
        """The amount by which every loss may be too small."""
        return self.more.loss_error

    def rounding_share(self, epsilon: float) -> float:
        """Return about which share of :meth:`delta` is the bound on the rounding of transforms."""
        least = -1 - self.uncertain.first - len(self.uncertain.masses)
        none = divergence(self.uncertain.first, self.uncertain.masses, self.interval, min(-1, least))
        bulk = self._without(none, self.interval, epsilon) + self._with_one(self.uncertain, epsilon)
        more = self.more.delta(epsilon)
        return (bulk + more * self.more.rounding_share(epsilon)) / max(1e-300, self.delta(epsilon))

    def _without(self, none: Divergence, interval: float, epsilon: float) -> float:
        return _chord(lambda i: float(none.between(i, i + 1).sum()), epsilon - self.bulk.loss_error, interval)

    def _with_one(self, bulk: LossLaw, epsilon: float) -> float:
        backward = bulk.masses[::-1]
        last = bulk.first + len(backward) - 1

        def at(i: int) -> float:
            values = self.one.between(i - last, i - bulk.first + 1)
            return float(backward[: len(values)] @ values)

        return _chord(at, epsilon - bulk.loss_error - self.rare.loss_error, self.interval)


def _chord(at: Callable[[int], float], epsilon: float, interval: float) -> float:
    """Interpolate between two points of the grid, linearly in exp(epsilon)."""
    below = math.floor(epsilon / interval)
    share = min(1.0, max(0.0, math.expm1(epsilon - below * interval) / math.expm1(interval)))
    return (1 - share) * at(below) + share * at(below + 1)


def rare_total(
    bulks: Sequence[Composed], rare: Rare, infinity: float, at: tuple[float, float], most_points: float
) -> RareTotal | None:
    """Return the total of the bulks and of rare losses.

    Args:
        bulks: Laws without large losses, and how often each is composed; on grids that divide that of ``rare``.
        rare: Large losses.
        infinity: Chance of an infinite one.
        at: About the epsilon and the delta that are to be read; any will do, bad ones are loose.
        most_points: Of the bulk's transforms; ``None`` is returned where there would be more.
    """
    epsilon, delta = at
    found = _bulk_total(bulks, LEFT_OUT * max(delta, LEAST_DELTA), most_points)
    if found is None:
        return None
    fine, rounding = found
    bulk = coarsened(fine, rare.interval)
    uncertain = coarsened(
        LossLaw(fine.interval, fine.first, np.minimum(fine.masses, rounding), 0.0, fine.loss_error), rare.interval
    )
    last = bulk.first + len(bulk.masses)
    none = divergence(fine.first, fine.masses, fine.interval, min(-2, fine.first))
    one = divergence(rare.first, rare.masses, rare.interval, min(rare.first, -last - 2))
    more = several(bulk, rare, epsilon, delta)
    beyond = infinity + fine.infinity * math.exp(rare.number)
    return RareTotal(bulk, uncertain, rare, more, beyond, none, fine.interval, one)


def _bulk_total(bulks: Sequence[Composed], least: float, most_points: float) -> tuple[LossLaw, np.ndarray] | None:
    """Return the law of the bulk's total without tails of ``least``, and how much of each mass may be rounding.

    A point's mass is the least that several tilts give, and not more than Chernoff's bound of all above it.
    """

    def log_tail(tilt: float) -> float:
        """Return minus the logarithm of Chernoff's bound on the mass beyond the mean of the tilted law."""
        value, mean = moments(bulks, tilt)
        return tilt * mean - value

    steepest = _step(log_tail, -math.log(least))
    flattest = -_step(lambda tilt: log_tail(-tilt), BELOW)
    assert flattest <= 0 <= steepest, "Chernoff's bounds: of what is above by tilts >= 0, of what is below by others"
    (_, highest), (low_value, lowest) = moments(bulks, steepest), moments(bulks, flattest)
    interval = min(law.interval for law, _ in bulks)
    size = max(256, 2 ** math.ceil(math.log2((highest - lowest) / interval + 4)))
    if size > most_points:
        return None
    logs, rounding = np.zeros(size), np.zeros(size)
    for share in SHARES:
        total = composed(bulks, share * steepest, lowest, size, steepest)
        scale = total.log_scale - total.theta * total.losses
        logs = np.minimum(logs, np.log(total.masses) + scale)
        rounding = np.minimum(rounding, math.log(max(2 * total.rounding, LEAST_MASS)) + scale)
    losses = total.losses
    for tilt in steepest * np.linspace(1 / BOUNDS, 1, BOUNDS):
        logs = np.minimum(logs, moments(bulks, float(tilt))[0] + ROUNDING - float(tilt) * losses)
    masses = np.exp(logs) * MARGIN
    masses[0] += math.exp(min(0.0, low_value + ROUNDING - flattest * float(losses[0])))
    first = round(float(losses[0]) / interval)
    return LossLaw(interval, first, masses, total.infinity, total.loss_error), np.exp(rounding)


def coarsened(law: LossLaw, interval: float) -> LossLaw:
    """Return the law on a coarser grid: each mass is split between the two points around it."""
    stride = round(interval / law.interval)
    if stride == 1:
        return law
    first = law.first // stride
    before = law.first - first * stride
    rows = -(-(before + len(law.masses)) // stride)
    padded = np.zeros(rows * stride)
    padded[before : before + len(law.masses)] = law.masses
    whole = padded.reshape(rows, stride)
    share = np.minimum(1.0, np.expm1(-np.arange(stride) * law.interval) / math.expm1(-interval) * (1 + 8 * UNIT))
    masses = np.zeros(rows + 1)
    masses[:-1] = whole @ (1 - share)
    masses[1:] += whole @ share
    return LossLaw(interval, first, masses * (1 + UNIT * stride), law.infinity, law.loss_error)


def _step(rising: Callable[[float], float], level: float) -> float:
    """Return about the tilt at which a function that increases from 0 reaches ``level``."""
    low, high = 0.0, 1.0
    while rising(high) < level and high < LARGEST_TILT:
        low, high = high, 2 * high
    while high - low > 0.05 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < level else (low, middle)
    return high
