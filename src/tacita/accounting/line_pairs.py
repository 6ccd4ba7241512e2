r"""Dominating pairs of mixtures of Gaussians on a line: Gaussian queries, and sampled sums.

Place: dominating_pairs -> [accounting.line_pairs] -> events of sampled sums.
Proofs: docs/derivations/accounting.md, sections 2, 3, 4 and 6.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from tacita.accounting._loss_law import LARGEST_LOSS, ROUNDED_UP, UNIT, Intervals, connected, joined, normal_masses
from tacita.accounting.dominating_pairs import LEAST_TAIL, SAMPLE, ContinuousPair, Ends, PointMasses, Sample

TABLE = 4096  # of a first guess at where a loss is reached
NEWTON_STEPS = 4

Shifts = tuple[tuple[float, float], ...]  # means of unit Gaussians, and their chances


class LinePair(ContinuousPair):
    """Mixtures of unit Gaussians on a line; the loss of x in favour of the first world rises with x."""

    upper: Shifts
    lower: Shifts

    @abstractmethod
    def loss(self, x: np.ndarray) -> np.ndarray:
        """Return the loss at each point of the line."""

    @abstractmethod
    def slope(self, x: np.ndarray) -> np.ndarray:
        """Return how fast the loss rises at each point of the line; at most the widest shift."""

    @abstractmethod
    def cut(self, losses: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the x at which each loss is reached (``-inf`` if every x has more), and the loss's error there."""

    def at(self, points: np.ndarray, *, swapped: bool) -> PointMasses:
        x, missed = self.cut(-points[::-1] if swapped else points)
        if swapped:
            between, below = self.intervals(np.append(-np.inf, x)).turned_round(), _below(self.lower, x[-1], -1)
        else:
            between, below = self.intervals(np.append(x, np.inf)), _below(self.upper, x[0])
        return (*connected(points, between, below), missed)

    def reach(self, tail: float, *, swapped: bool) -> Ends:
        ends = self.loss(np.array(_reach(self.lower if swapped else self.upper, tail))).tolist()
        return (-ends[1], -ends[0]) if swapped else (ends[0], ends[1])

    def intervals(self, points: np.ndarray) -> Intervals:
        """Return the masses of both worlds between neighbouring points of the line."""
        known = {shift: normal_masses(points - shift) for shift in {s for s, _ in (*self.upper, *self.lower)}}
        apart = self._apart()
        masses, errors = ([_mixed(known, world, i) for world in (self.upper, self.lower, apart)] for i in (0, 1))
        sizes = [*masses[:2], _mixed(known, tuple((s, abs(p)) for s, p in apart), 0)]
        errors[2] = _mixed(known, tuple((s, abs(p)) for s, p in apart), 1)
        upper, lower, excess = (error + 4 * UNIT * size for error, size in zip(errors, sizes, strict=True))
        return Intervals(masses[0], masses[1], upper, lower, masses[2], excess)

    def _apart(self) -> Shifts:
        """Return what the first world has more of each shift than the second, accurate where that is little."""
        shifts = {shift for shift, _ in (*self.upper, *self.lower)} - {0.0}
        upper, lower = dict(self.upper), dict(self.lower)
        found = [(shift, upper.get(shift, 0.0) - lower.get(shift, 0.0)) for shift in sorted(shifts)]
        return (*found, (0.0, -math.fsum(more for _, more in found)))

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        world = self.lower if swapped else self.upper
        x = np.linspace(*_reach(world, tail), SAMPLE)
        density = np.sum([p * np.exp(-((x - s) ** 2) / 2) for s, p in world], axis=0)
        return self.loss(x) * (-1 if swapped else 1), density

    def _missed(self, losses: np.ndarray, x: np.ndarray) -> float:
        """Rounding of a cut, and of points minus shifts, as a loss: that of the loss and of the point, by the slope."""
        shifts = [s for s, _ in (*self.upper, *self.lower)]
        inside = np.isfinite(x)
        far = 1 + np.abs(x[inside]) + max(map(abs, shifts))
        return 8 * UNIT * float((np.abs(losses[inside]) + self.slope(x[inside]) * far).max(initial=0.0))


@dataclass(frozen=True)
class GaussianPair(LinePair):
    """One Gaussian query (section 2).

    Attributes:
        mu: > 0 and finite.
    """

    mu: float

    @property
    def upper(self) -> Shifts:
        return ((self.mu, 1.0),)

    @property
    def lower(self) -> Shifts:
        return ((0.0, 1.0),)

    def loss(self, x: np.ndarray) -> np.ndarray:
        return self.mu * (x - self.mu / 2)

    def slope(self, x: np.ndarray) -> np.ndarray:
        return np.full_like(x, self.mu)

    def cut(self, losses: np.ndarray) -> tuple[np.ndarray, float]:
        found = losses / self.mu + self.mu / 2
        return found, self._missed(losses, found)


@dataclass(frozen=True)
class MixturePair(LinePair):
    r"""A unit Gaussian whose shift is random, against the one around 0 (sections 3 and 6).

    Its loss is :math:`\log \sum_j p_j e^{s_j x - s_j^2/2}`. dp_accounting looks for the inverse between those of the
    smallest and of the largest shift; it need not lie there, and some of the deltas it finds are too small.

    Attributes:
        shifts: >= 0, different, rising, not only 0.
        chances: > 0; they sum to 1.
    """

    shifts: tuple[float, ...]
    chances: tuple[float, ...]

    symmetric = False

    @property
    def upper(self) -> Shifts:
        return tuple(zip(self.shifts, self.chances, strict=True))

    @property
    def lower(self) -> Shifts:
        return ((0.0, 1.0),)

    def loss(self, x: np.ndarray) -> np.ndarray:
        return self._loss_and_slope(x)[0]

    def slope(self, x: np.ndarray) -> np.ndarray:
        return self._loss_and_slope(x)[1]

    def cut(self, losses: np.ndarray) -> tuple[np.ndarray, float]:
        found, error = self._two_shifts(losses) if self.is_sampled else self._by_newton(losses)
        return found, error + self._missed(losses, found)

    @property
    def is_sampled(self) -> bool:
        """Whether it is one shift, which a coin decides on."""
        return len(self.shifts) == 2 and self.shifts[0] == 0

    def _two_shifts(self, losses: np.ndarray) -> tuple[np.ndarray, float]:
        """Invert log(1 - q + q exp(s x - s^2/2))."""
        shift, chance = self.shifts[1], self.chances[1]
        with np.errstate(invalid="ignore", divide="ignore"):
            near = np.log1p(np.expm1(np.minimum(losses, LARGEST_LOSS)) / chance)
        # Beyond, exp(losses) has no number, and what is left out is below exp(-LARGEST_LOSS).
        x = np.where(losses > LARGEST_LOSS, losses - np.log(chance), near) / shift + shift / 2
        return np.where(np.isnan(x), -np.inf, x), 0.0

    def _by_newton(self, losses: np.ndarray) -> tuple[np.ndarray, float]:
        """Invert the loss by Newton's method from a table, and measure the error.

        Below the table every x has more, and above it none: what has, has no number in floating point.
        """
        table = np.linspace(-60.0, max(self.shifts) + 60.0, TABLE)
        known = self.loss(table)
        x = np.interp(losses, known, table)
        for _ in range(NEWTON_STEPS):
            value, slope = self._loss_and_slope(x)
            x = np.clip(x - (value - losses) / np.maximum(slope, 1e-300), table[0], table[-1])
        x = np.maximum.accumulate(np.where(losses <= known[0], -np.inf, np.where(losses >= known[-1], np.inf, x)))
        inside = np.isfinite(x)
        return x, float(np.abs(self.loss(x[inside]) - losses[inside]).max(initial=0.0))

    def _loss_and_slope(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return losses and their slopes; expm1 keeps losses near 0 accurate."""
        s, p = np.array(self.shifts)[:, None], np.array(self.chances)[:, None]
        exponents = s * x - s * s / 2
        top = exponents.max(axis=0)
        weights = p * np.exp(exponents - top)
        total = weights.sum(axis=0)
        excess = np.sum(p * np.expm1(np.minimum(exponents, LARGEST_LOSS)), axis=0)
        near = (excess > -0.5) & (top < LARGEST_LOSS)
        value = np.where(near, np.log1p(np.maximum(excess, -0.5)), top + np.log(total))
        return value, np.sum(s * weights, axis=0) / total


@dataclass(frozen=True)
class ReplacedPair(LinePair):
    """Poisson sampling under replace_one: the shift, if any, is one way in one world and the other way in the other.

    Attributes:
        shift: > 0, of a record that is in the batch.
        chance: In (0, 1), of being in it.
    """

    shift: float
    chance: float

    @property
    def upper(self) -> Shifts:
        return ((0.0, 1 - self.chance), (self.shift, self.chance))

    @property
    def lower(self) -> Shifts:
        return ((0.0, 1 - self.chance), (-self.shift, self.chance))

    def loss(self, x: np.ndarray) -> np.ndarray:
        return self._one.loss(x) - self._one.loss(-x)

    def slope(self, x: np.ndarray) -> np.ndarray:
        return self._one.slope(x) + self._one.slope(-x)

    @property
    def _one(self) -> MixturePair:
        return MixturePair((0.0, self.shift), (1 - self.chance, self.chance))

    def cut(self, losses: np.ndarray) -> tuple[np.ndarray, float]:
        r"""Return, with :math:`c = e^{-s^2/2}`, :math:`(l/2 + \sinh^{-1}((1-q) \sinh(l/2) / (q c)))/s`."""
        half = np.abs(losses) / 2
        with np.errstate(divide="ignore"):
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        logs = log_sinh + math.log1p(-self.chance) - math.log(self.chance) + self.shift**2 / 2
        inverse = np.where(logs < 300, np.arcsinh(np.exp(np.minimum(logs, 300.0))), logs + math.log(2))
        found = np.sign(losses) * (half + inverse) / self.shift
        known = np.isfinite(logs)  # rounding of logs is one of the inverse, at most, and so one of the point
        rounding = 16 * UNIT * np.abs(logs[known]) / self.shift * self.slope(found[known])
        return found, self._missed(losses, found) + float(rounding.max(initial=0.0))


@dataclass(frozen=True)
class EnvelopePair(ContinuousPair):
    r"""The pair whose divergence is the envelope of both branches of fixed-size sampling (section 4).

    Losses above 0 are those of (mixture, Gaussian) in the mixture's world; those below are their negatives, in the
    Gaussian's; the rest of the mass is at 0.

    Attributes:
        moved: > 0, largest move of a query's sum.
        chance: In (0, 1), share of the records in a batch.
    """

    moved: float
    chance: float

    @property
    def _branch(self) -> MixturePair:
        return MixturePair((0.0, self.moved), (1 - self.chance, self.chance))

    @property
    def _at_zero(self) -> float:
        return (1 - self.chance) * math.erf(self.moved / 2 / math.sqrt(2))

    def at(self, points: np.ndarray, *, swapped: bool) -> PointMasses:
        pair, zero = self._branch, int(np.searchsorted(points, 0.0))
        above, above_error = pair.cut(points[zero:])
        below, below_error = pair.cut(-points[zero::-1])
        over = pair.intervals(np.append(above, np.inf))
        both = joined(pair.intervals(below).turned_round(), over)
        masses, infinity = connected(points, both, _below(pair.lower, below[-1], -1))
        masses[zero] += self._at_zero * (1 + 8 * UNIT)
        return masses, infinity, max(above_error, below_error)

    def reach(self, tail: float, *, swapped: bool) -> Ends:
        pair = self._branch
        top = float(pair.loss(np.array([_reach(pair.upper, tail)[1]]))[0])
        return -top, top

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        pair = self._branch
        edges = np.linspace(self.moved / 2, _reach(pair.upper, tail)[1], SAMPLE + 1)
        x = (edges[1:] + edges[:-1]) / 2
        losses, between = pair.loss(x), pair.intervals(edges)
        return (
            np.concatenate([losses, -losses, [0.0]]),
            np.concatenate([between.upper, between.lower, [self._at_zero]]),
        )


def _reach(world: Shifts, tail: float) -> tuple[float, float]:
    """Return the points beyond which a world has at most ``tail``, on each side."""
    far = [(s, ndtri(min(0.5, max(LEAST_TAIL, tail) / len(world) / p))) for s, p in world]
    return min(s + z for s, z in far), max(s - z for s, z in far)


def _below(world: Shifts, point: float, sign: int = 1) -> float:
    """Return the mass of a world below ``point``, or above it if ``sign`` is -1, rounded up."""
    return float(sum(p * ndtr(sign * (point - s)) for s, p in world)) * ROUNDED_UP


def _mixed(known: dict[float, tuple[np.ndarray, np.ndarray]], world: Shifts, which: int) -> np.ndarray:
    """Return the masses of a world between points (``which`` 0), or bounds on their rounding (1)."""
    return np.sum([p * known[s][which] for s, p in world], axis=0)
