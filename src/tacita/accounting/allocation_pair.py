r"""The dominating pair of random allocation: a record in one of several batches, drawn uniformly, with Gaussian noise.

Place: dominating_pairs -> [accounting.allocation_pair] -> events of sampled sums.
Proofs: docs/derivations/allocation.md, sections 1 (the pair) and 4 (its arithmetic).

The likelihood ratio is a mean of independent log-normals. Their sum is computed by halves on a grid in its logarithm.
Each sum of two points is split between its neighbours so that the mean is kept, which is larger in convex order and
therefore a bound in both directions. Nothing is ever subtracted, so that tails keep their relative accuracy.
"""

import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
from scipy.special import ndtr, ndtri

from tacita.accounting._loss_law import LARGEST_LOSS, ROUNDED_UP, UNIT, LossLaw, normal_masses
from tacita.accounting.dominating_pairs import LEAST_TAIL, DominatingPair, Ends, Sample, points_of

LARGEST_RATIO = 10.0  # beyond, losses have no number in floating point
FINE, PLANNED = 0.015, 0.06  # step of the grid, in standard deviations of the logarithm: of a law, and of a plan
HALVINGS = 2  # after so many, the step doubles
LEFT_OUT = 1e-48  # of a law's mass, which counts as infinite loss
DECADES = 6  # one plan serves all tails between two powers of 10^6


@dataclass(frozen=True)
class AllocationPair(DominatingPair):
    r"""A record in one of ``batches`` batches, against no record.

    With ``ratio`` :math:`\mu`, ``batches`` b and ``seen`` t, the likelihood ratio is :math:`\frac1b \big(b - t +
    \sum_{i \le t} e^{\mu x_i - \mu^2/2}\big)`, where the :math:`x_i` are standard normal in the second world.

    Attributes:
        batches: >= 1; the record is in each with the same chance.
        ratio: In (0, ``LARGEST_RATIO``], what the record adds to the sum of its batch, over the noise.
        seen: Number of batches whose sums are released, in [1, ``batches``].
    """

    batches: int
    ratio: float
    seen: int

    symmetric = False

    def law(self, interval: float, ends: Ends, *, swapped: bool) -> LossLaw:
        whole, chances, infinity = self._points(LEFT_OUT, FINE, swapped)
        first, last = points_of(interval, ends)
        beyond = np.minimum(1.0, -np.expm1(np.minimum(0.0, last * interval - whole)) * (1 + 8 * UNIT))
        losses, masses = np.clip(whole, first * interval, last * interval), chances * (1 - beyond)
        at = np.clip(np.floor(losses / interval).astype(int), first, last)
        share = np.expm1(at * interval - losses) / math.expm1(-interval)
        up = masses * np.clip(share + 32 * UNIT, 0.0, 1.0)
        size = last + 2 - first
        found = np.bincount(at - first, masses - up, size) + np.bincount(at + 1 - first, up, size)
        error = 64 * UNIT * self.batches.bit_length() * (1 + self.ratio * (40 + self.ratio))
        return LossLaw(interval, first, found, (infinity + float(chances @ beyond)) * ROUNDED_UP, error)

    def reach(self, tail: float, *, swapped: bool) -> Ends:
        losses, _, _ = self._points(tail, PLANNED, swapped)
        return float(losses[0]), float(losses[-1])

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        return self._points(tail, PLANNED, swapped)[:2]

    def _points(self, tail: float, fine: float, swapped: bool) -> tuple[np.ndarray, np.ndarray, float]:
        """Return losses, which rise, and their masses in the first world; and the mass of infinite losses."""
        decades = DECADES * math.ceil(-math.log10(max(tail, LEAST_TAIL)) / DECADES)
        found = ratio_sum(self.seen, self.batches, self.ratio, fine, max(LEAST_TAIL, 10.0**-decades))
        unseen, up = self.batches - self.seen, 1 + found.rounding
        ratios = (found.points + unseen) / self.batches
        if swapped:
            return -np.log(ratios)[::-1], found.masses[::-1] * up, found.lost * up
        return np.log(ratios), found.masses * ratios * up, (found.lost_mean + unseen * found.lost) / self.batches * up


@dataclass(frozen=True)
class RatioSum:
    """The law of a sum of likelihood ratios in the world without the record, at least as large in convex order.

    Attributes:
        step: Distance of two points of the grid, which is one in the sum's logarithm.
        first: Logarithm of the first point, in steps.
        masses: Chances of the points.
        mean: Of the sum, with what is left out.
        lost: Chance of what is left out.
        lost_mean: What that adds to the mean.
        rounding: Chances may be larger by this share.
    """

    step: float
    first: int
    masses: np.ndarray
    mean: int
    lost: float
    lost_mean: float
    rounding: float

    @property
    def last(self) -> int:
        """Logarithm of the last point, in steps."""
        return self.first + len(self.masses) - 1

    @property
    def points(self) -> np.ndarray:
        """The points of the grid."""
        return np.exp(np.arange(self.first, self.last + 1) * self.step)


@lru_cache(maxsize=64)
def ratio_sum(count: int, batches: int, ratio: float, fine: float, tail: float) -> RatioSum:
    """Return the law of the sum of ``count`` ratios; about ``tail`` of either world's mass is left out.

    Halves are on coarser grids than the whole: there are more of them, whose errors are independent.
    """
    spread = math.sqrt(math.log1p(math.expm1(ratio**2) / count))  # of the sum's logarithm, at least
    most_doublings = math.floor(math.log2(max(1.0, ratio / spread)))

    def doublings(halvings: int) -> int:
        return min(most_doublings, halvings // HALVINGS)

    @cache
    def found(count: int, halvings: int) -> RatioSum:
        if count == 1:
            return _one_ratio(ratio, fine * spread * 2 ** doublings(halvings), tail / batches)
        halves = [found(part, halvings + 1) for part in (count // 2, count - count // 2)]
        whole = _added(*halves, refine=2 ** (doublings(halvings + 1) - doublings(halvings)))
        return _shortened(whole, batches / count, tail)

    return found(count, 0)


def _one_ratio(ratio: float, step: float, tail: float) -> RatioSum:
    """Return the law of one ratio: each interval's mass is split between its ends, so that the mean is kept."""
    low, high = (ratio * (z + ratio / 2) for z in (float(ndtri(tail)) - ratio, -float(ndtri(tail))))
    first, last = math.floor(max(-LARGEST_LOSS, low) / step), math.ceil(min(LARGEST_LOSS, high) / step)
    logs = np.arange(first, last + 1) * step
    x = logs / ratio + ratio / 2
    (absent, absent_error), (present, present_error) = normal_masses(x), normal_masses(x - ratio)
    odds = np.exp(-logs[:-1])
    right = np.clip((present * odds - absent) / math.expm1(step), 0.0, absent)
    rounding = (8 + np.abs(logs[:-1])) * UNIT * (present * odds + absent)
    error = absent_error + (present_error * odds + absent_error + rounding) / math.expm1(step)
    masses = np.append(absent - right + error, 0.0) + np.append(0.0, right + error)
    lost, lost_mean = (float(ndtr(x[0] - shift) + ndtr(shift - x[-1])) for shift in (0.0, ratio))
    return RatioSum(step, first, masses, 1, lost, lost_mean, 2.0**-30)


def _added(one: RatioSum, other: RatioSum, refine: int) -> RatioSum:
    r"""Return the law of the sum of both, which have one grid, on a grid that is ``refine`` times finer.

    A point k steps h below another one adds :math:`\log(1 + e^{-kh})` to its logarithm, wherever the two are. Such
    distances that add as many whole steps of the finer grid make a run, which is one convolution.
    """
    step = one.step / refine
    first = math.floor(np.logaddexp(one.first * one.step, other.first * one.step) / step) - 1
    last = math.floor(np.logaddexp(one.last * one.step, other.last * one.step) / step) + 2
    masses = np.zeros(last + 1 - first)
    for large, small, nearest in ((one, other, 0),) if one is other else ((one, other, 0), (other, one, 1)):
        below = np.arange(max(nearest, large.first - small.last), large.last - small.first + 1)
        if not len(below):
            continue
        added = np.log1p(np.exp(-below * one.step))
        whole = np.floor(added / step).astype(int)
        rest = np.clip(added - whole * step, 0.0, step)
        times = np.where(below > 0, 2.0, 1.0) if one is other else 1.0
        left, right = (
            times * share / math.expm1(step) for share in (np.exp(rest) * np.expm1(step - rest), np.expm1(rest))
        )
        for start, stop in pairwise([0, *(np.flatnonzero(np.diff(whole)) + 1).tolist(), len(below)]):
            lowest = small.first + int(below[start])  # of the large points that have a small one so far below them
            begin, end = max(large.first, lowest), min(large.last, small.last + int(below[stop - 1])) + 1
            chances = large.masses[begin - large.first : end - large.first]
            for share, steps in ((left, int(whole[start])), (right, int(whole[start]) + 1)):
                near = np.convolve(small.masses, share[start:stop])[begin - lowest : end - lowest]
                at = refine * begin + steps - first
                masses[at : at + refine * len(near) : refine] += chances * near
    lost_mean = one.lost_mean + other.lost_mean + one.mean * other.lost + other.mean * one.lost
    rounding = one.rounding + other.rounding + 4 * UNIT * (16 + max(len(one.masses), len(other.masses)))
    return RatioSum(step, first, masses, one.mean + other.mean, one.lost + other.lost, lost_mean, rounding)


def _shortened(whole: RatioSum, copies: float, tail: float) -> RatioSum:
    """Leave out the least and the largest points, as far as this costs at most ``tail`` in all copies of the sum."""
    masses, points = whole.masses, whole.points
    cost = masses * (points / whole.mean + copies)  # in either world, at most
    start, cut = (int(np.searchsorted(np.cumsum(side), tail)) for side in (cost, cost[::-1]))
    kept = np.zeros(len(masses), bool)
    kept[start : max(start + 1, len(masses) - cut)] = True
    return replace(
        whole,
        first=whole.first + start,
        masses=masses[kept],
        lost=whole.lost + float(masses[~kept].sum()),
        lost_mean=whole.lost_mean + float(masses[~kept] @ points[~kept]),
    )
