r"""A privacy loss on a grid, rounded up: the discrete pair that "connects the dots" of a continuous one.

Place: the ground of accounting; numbers in, numbers out. Proof: docs/derivations/accounting.md, section 10.

A loss between two points a < b of the grid is split between them so that the masses of both worlds are kept, which
makes the discrete pair dominate (Doroshenko et al. 2022, https://arxiv.org/abs/2207.04380). So are losses above the
last point, between that point and infinity. Masses are computed interval by interval and not as differences of deltas,
so that they keep their relative accuracy far in the tails.
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from scipy.special import ndtr

UNIT = 2.0**-53  # rounding of one operation
LARGEST_LOSS = 600.0  # exp of it, and of its negative, is a float; larger losses count as infinite
LEAST_FLOAT = float(np.finfo(float).tiny)
ROUNDED_UP = 1 + 2.0**-30  # of a tail's mass
SUM_ROUNDING = 128 * UNIT  # relative, of a pairwise sum of up to 2^21 terms
ODDS_ROUNDING = 16 * UNIT  # relative, of exp(loss) times a mass


@dataclass(frozen=True)
class LossLaw:
    """A law of losses that is at least as bad as the one it stands for.

    Attributes:
        interval: Distance of two points of the grid, which holds 0.
        first: The first point, in intervals.
        masses: Chances of the points, in the first world.
        infinity: Chance of an infinite loss.
        loss_error: Every loss may be larger by this much: rounding of the points where intervals end.
    """

    interval: float
    first: int
    masses: np.ndarray
    infinity: float
    loss_error: float = 0.0

    @cached_property
    def losses(self) -> np.ndarray:
        """The losses at the points of the grid."""
        return np.arange(self.first, self.first + len(self.masses)) * self.interval

    def log_moment(self, theta: float) -> tuple[float, float]:
        """Return log E exp(theta loss), infinity left out, and its derivative, which is the mean of the tilted law."""
        losses = self.losses[self._present]
        top = theta * float(losses[-1] if theta >= 0 else losses[0])
        weights = self.masses[self._present] * np.exp(theta * losses - top)
        total = float(weights.sum())
        return top + float(np.log(total)), float(weights @ losses) / total

    @cached_property
    def _present(self) -> slice:
        """The slice from the first point that has mass to the last one."""
        at = np.flatnonzero(self.masses > 0)
        return slice(int(at[0]), int(at[-1]) + 1)

    def coarsened(self, stride: int) -> "LossLaw":
        """Return the law on a grid ``stride`` times as coarse: each mass is split between the two points around it."""
        first, before = divmod(self.first, stride)
        whole = np.zeros((-(-(before + len(self.masses)) // stride), stride))
        whole.ravel()[before : before + len(self.masses)] = self.masses
        interval = stride * self.interval
        share = np.minimum(1.0, np.expm1(-np.arange(stride) * self.interval) / math.expm1(-interval) * (1 + 8 * UNIT))
        masses = np.append(whole @ (1 - share), 0.0)
        masses[1:] += whole @ share
        return LossLaw(interval, first, masses * (1 + UNIT * stride), self.infinity, self.loss_error)

    def within(self, first: int, last: int) -> "LossLaw":
        """Return the law on the points from ``first`` to ``last`` alone, rounded up.

        Smaller losses are raised to ``first``. Larger ones are split between ``last`` and infinity, so that the masses
        of both worlds are kept.
        """
        at = np.arange(self.first, self.first + len(self.masses))
        beyond = np.minimum(1.0, -np.expm1(np.minimum(0.0, (last - at) * self.interval)) * (1 + 8 * UNIT))
        masses = np.bincount(np.clip(at, first, last) - first, self.masses * (1 - beyond), last - first + 1)
        masses[[0, -1]] *= ROUNDED_UP  # sums of many
        infinity = (self.infinity + float(self.masses @ beyond)) * ROUNDED_UP
        return LossLaw(self.interval, first, masses, infinity, self.loss_error)


def set_apart(small: LossLaw, large: LossLaw) -> tuple[LossLaw, LossLaw]:
    r"""Return two laws for the sum of two measures: every query has a loss of the first and one of the second.

    With b the mass of ``small``, the first law is ``small / b``. The second is a loss of 0 with chance b, and
    ``large``, whose losses are raised by :math:`c = \max(0, \log E e^{-X})`, X of the first law.
    """
    mass, odds = float(small.masses.sum()), small.masses * np.expm1(-small.losses)
    c = math.log1p(max(0.0, float(odds.sum()) + SUM_ROUNDING * float(np.abs(odds).sum())) / mass) * (1 + SUM_ROUNDING)
    whole, rest = divmod(c, large.interval)
    up = min(1.0, math.expm1(-rest) / math.expm1(-large.interval) * (1 + 8 * UNIT))
    masses = np.append(np.zeros(int(whole)), np.append(large.masses * (1 - up), 0.0) * (1 + 4 * UNIT))
    masses[int(whole) + 1 :] += large.masses * up * (1 + 4 * UNIT)
    masses[-large.first] += mass * (1 + SUM_ROUNDING)
    one = replace(small, masses=small.masses / mass * (1 + SUM_ROUNDING))
    return one, replace(large, masses=masses)


@dataclass(frozen=True)
class Intervals:
    """Masses of both worlds between neighbouring points of a grid, each with a bound on its rounding.

    Attributes:
        upper: In the first world, the one whose chances count.
        lower: In the second.
        upper_error: Largest rounding error of ``upper``.
        lower_error: Of ``lower``.
        excess: ``upper`` minus ``lower``, more accurate than the two where the worlds hardly differ.
        excess_error: Largest rounding error of ``excess``.
    """

    upper: np.ndarray
    lower: np.ndarray
    upper_error: np.ndarray
    lower_error: np.ndarray
    excess: np.ndarray
    excess_error: np.ndarray

    @classmethod
    def of(cls, upper: np.ndarray, lower: np.ndarray, upper_error: np.ndarray, lower_error: np.ndarray) -> "Intervals":
        """Return intervals whose excess is the difference of the masses."""
        error = upper_error + lower_error + 2 * UNIT * (upper + lower)
        return cls(upper, lower, upper_error, lower_error, upper - lower, error)

    def turned_round(self) -> "Intervals":
        """Exchange the worlds, so that losses change their sign."""
        worlds = (self.lower, self.upper, self.lower_error, self.upper_error, -self.excess, self.excess_error)
        return Intervals(*(one[::-1] for one in worlds))


def joined(left: Intervals, right: Intervals) -> Intervals:
    """Join the intervals of two neighbouring stretches of a grid."""
    names = [one.name for one in fields(Intervals)]
    return Intervals(*(np.concatenate([getattr(left, name), getattr(right, name)]) for name in names))


BEYOND = 700.0  # losses whose odds are near the largest float64


def connected(points: np.ndarray, between: Intervals, below: float) -> tuple[np.ndarray, float]:
    r"""Return the masses at points, which rise, and at infinity: each interval's mass is split between its ends.

    Between a and b, the mass that goes to b is :math:`(P - e^a Q) / (1 - e^{a - b})`; all rounding goes to b. It
    is computed as :math:`(P - Q) - (e^a - 1) Q`, whose rounding is small against both terms: were it a share of P,
    many queries that each show next to nothing would cost what is rounded. The last interval ends at infinity.

    Args:
        points: Losses.
        between: Masses from each point to the next, and behind the last point.
        below: Mass before the first point, which is raised to it.
    """
    beyond = points > BEYOND  # where odds overflow all goes to the upper end, which is a bound, too
    odds, share = np.expm1(np.where(beyond, 0.0, points)), np.append(-np.expm1(-np.diff(points)), 1.0)
    scaled = odds * between.lower
    per_point = ODDS_ROUNDING * (1 + np.abs(points) / 8)  # the points themselves are rounded
    rounding = between.excess_error + np.abs(odds) * between.lower_error + per_point * np.abs(scaled)
    rounding += ODDS_ROUNDING * np.abs(between.excess)
    whole = (between.upper + between.upper_error) * (1 + 4 * UNIT)
    above = np.where(beyond, whole, np.clip((between.excess - scaled + rounding) / share, 0.0, whole))
    masses = whole - above
    masses[1:] += above[:-1]
    masses[0] += below
    return masses, float(above[-1]) * ROUNDED_UP


def normal_masses(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the masses of N(0, 1) between neighbouring ``points``, which increase, and bounds on their rounding."""
    tail = ndtr(-np.abs(points))
    error = (16 + 2 * np.minimum(points**2, 1600.0)) * UNIT * tail + LEAST_FLOAT  # that of exp(-x^2/2), mostly
    left, right = points[:-1], points[1:]
    inside = np.where(right <= 0, tail[1:] - tail[:-1], tail[:-1] - tail[1:])
    crossing = (left < 0) & (right > 0)
    masses = np.where(crossing, 1.0 - tail[:-1] - tail[1:], inside)
    return np.maximum(masses, 0.0), error[:-1] + error[1:] + np.where(crossing, 2 * UNIT, 0.0)


def split(loss: float, mass: float, interval: float) -> tuple[int, float, float]:
    """Return the grid point below ``loss``, and the parts of its ``mass`` that go to that point and to the next."""
    below = int(np.floor(loss / interval))
    share = (-np.expm1(below * interval - loss) + 8 * UNIT * (1 + abs(loss))) / -np.expm1(-interval)
    above = float(np.clip(share * (1 + 8 * UNIT), 0.0, 1.0))
    return below, mass * (1 - above), mass * above
