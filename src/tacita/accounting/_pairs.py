r"""Dominating pairs: two worlds, known by the law of the privacy loss between them.

Place: _loss_law -> [accounting._pairs] -> events, _pld_accountant.
Proofs: docs/derivations/accounting.md, sections 2 to 8 (which pair stands for what) and 10 (their arithmetic).

A pair gives its law of losses on any grid, rounded up, in each direction; and, for planning alone, a sample of them.
Everything is in units of the noise.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri

from tacita.accounting._loss_law import (
    LARGEST_LOSS,
    ROUNDED_UP,
    UNIT,
    Intervals,
    LossLaw,
    connected,
    joined,
    normal_masses,
    split,
)

SAMPLE = 1200  # points of a planning sample
LEAST_TAIL = 1e-290
TABLE = 4096  # of a first guess at where a loss is reached
NEWTON_STEPS = 4

Sample = tuple[np.ndarray, np.ndarray]  # losses, and their chances in the first world
Ends = tuple[float, float]  # a least and a largest loss
Part = tuple["DominatingPair", int]  # a pair, and how often it is composed with itself
Shifts = tuple[tuple[float, float], ...]  # means of unit Gaussians, and their chances


class DominatingPair(ABC):
    """Two worlds; subclasses are frozen dataclasses of numbers. ``swapped`` is the direction from the second one."""

    symmetric = True  # whether both directions have the same law

    @abstractmethod
    def law(self, interval: float, ends: Ends, *, swapped: bool) -> LossLaw:
        """Return the losses on a grid, rounded up.

        Smaller ones than ``ends`` are raised to them. Larger ones are split between the last point and infinity, which
        keeps the masses of both worlds; the ends are below and above 0.
        """

    @abstractmethod
    def reach(self, tail: float, *, swapped: bool) -> Ends:
        """Return about the losses beside which there is a chance of at most ``tail`` on each side."""

    @abstractmethod
    def sample(self, tail: float, *, swapped: bool) -> Sample:
        """Return losses and their chances up to a factor, for planning: no bound depends on them."""


def points_of(interval: float, ends: Ends) -> tuple[int, int]:
    """Return the first and the last point of a grid that reaches to both ``ends``, as numbers of intervals."""
    return min(-1, math.floor(ends[0] / interval)), max(1, math.ceil(ends[1] / interval))


@dataclass(frozen=True)
class GaussianPair(DominatingPair):
    """A number is shown, then a Gaussian query of a ``mu`` that it names (section 2; bounded residuals).

    Attributes:
        mus: >= 0 and finite.
        chances: Of each, > 0.
        failure: Chance of an infinite loss beside them; all add up to 1.
    """

    mus: tuple[float, ...]
    chances: tuple[float, ...] = (1.0,)
    failure: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether the pair is one Gaussian query and nothing else."""
        return len(self.mus) == 1 and self.failure == 0

    def law(self, interval: float, ends: Ends, *, swapped: bool) -> LossLaw:
        mus, chances = self._arrays
        first, last = points_of(interval, ends)
        grid = np.arange(first, last + 1) * interval
        between = np.zeros((4, len(grid)))
        below = 0.0
        for mu, chance in zip(mus[mus > 0].tolist(), chances[mus > 0].tolist(), strict=True):
            points = np.append(grid / mu + mu / 2, np.inf)
            for i, shift in enumerate((mu, 0.0)):
                found, error = normal_masses(points - shift)
                between[i] += chance * found
                between[i + 2] += chance * (error + 4 * UNIT * found)
            below += chance * float(ndtr(points[0] - mu)) * ROUNDED_UP
        upper, lower, *errors = between
        more = len(mus) * UNIT  # of the sums over mus
        intervals = Intervals.of(upper, lower, errors[0] + more * upper, errors[1] + more * lower)
        rounding = 8 * UNIT * (float(np.abs(grid).max()) + 2 * float(mus.max()) ** 2)
        law = connected(first, interval, intervals, below, rounding)
        law.masses[-first] += float(chances[mus == 0].sum())
        return replace(law, infinity=law.infinity + self.failure * ROUNDED_UP)

    def reach(self, tail: float, *, swapped: bool) -> Ends:
        mus, far = self._arrays[0], -float(ndtri(max(LEAST_TAIL, min(0.5, tail))))
        return float((mus * (mus / 2 - far)).min()), float((mus * (mus / 2 + far)).max())

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        (mus, chances), far = self._arrays, -float(ndtri(max(LEAST_TAIL, min(0.5, tail))))
        z = np.linspace(-far, far, max(SAMPLE // 20, SAMPLE // len(mus)))
        losses = mus[:, None] * (mus[:, None] / 2 + z)
        return losses.ravel(), (chances[:, None] * np.exp(-z * z / 2)).ravel()

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.mus), np.array(self.chances)


@dataclass(frozen=True)
class ResponsePair(DominatingPair):
    """Randomised response: the pair that dominates everything (``epsilon``, 0)-private (section 8)."""

    epsilon: float

    def law(self, interval: float, ends: Ends, *, swapped: bool) -> LossLaw:
        last = math.ceil(self.epsilon / interval) + 1
        masses = np.zeros(2 * last + 1)
        _add(masses, -last, interval, (self.epsilon, 1 / (1 + math.exp(-self.epsilon))))
        _add(masses, -last, interval, (-self.epsilon, math.exp(-self.epsilon) / (1 + math.exp(-self.epsilon))))
        return LossLaw(interval, -last, masses, 0.0).within(*points_of(interval, ends))

    def reach(self, tail: float, *, swapped: bool) -> Ends:
        return -self.epsilon, self.epsilon

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        return np.array([self.epsilon, -self.epsilon]), np.array([1.0, math.exp(-self.epsilon)])


@dataclass(frozen=True)
class LaplacePair(DominatingPair):
    """Laplace noise on a value that moves by ``epsilon`` scales (section 8)."""

    epsilon: float

    def law(self, interval: float, ends: Ends, *, swapped: bool) -> LossLaw:
        last = math.ceil(self.epsilon / interval) + 1
        points = np.clip(np.arange(-last, last + 2) * interval, -self.epsilon, self.epsilon)
        widths = -np.expm1(-np.diff(points) / 2) / 2
        upper = np.exp((points[1:] - self.epsilon) / 2) * widths
        lower = np.exp((-points[:-1] - self.epsilon) / 2) * widths
        rounding = 16 * UNIT * (1 + self.epsilon / interval)  # of a width: that of the difference of two points
        between = Intervals.of(upper, lower, rounding * upper, rounding * lower)
        law = connected(-last, interval, between, 0.0, 8 * UNIT * self.epsilon)
        _add(law.masses, -last, interval, (self.epsilon, 0.5))
        _add(law.masses, -last, interval, (-self.epsilon, math.exp(-self.epsilon) / 2))
        return law.within(*points_of(interval, ends))

    def reach(self, tail: float, *, swapped: bool) -> Ends:
        return -self.epsilon, self.epsilon

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        inner = np.linspace(-self.epsilon, self.epsilon, SAMPLE)
        density = np.exp((inner - self.epsilon) / 2) * (self.epsilon / (SAMPLE - 1) / 2)
        ends = np.array([0.5, math.exp(-self.epsilon) / 2])
        return np.append(inner, [self.epsilon, -self.epsilon]), np.append(density, ends)


def _add(masses: np.ndarray, first: int, interval: float, loss: tuple[float, float]) -> None:
    """Add a loss and its chance to the masses at points from ``first`` on."""
    below, left, right = split(loss[0], loss[1] * (1 + 8 * UNIT), interval)
    masses[below - first] += left
    masses[below + 1 - first] += right


class LinePair(DominatingPair):
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

    def law(self, interval: float, ends: Ends, *, swapped: bool) -> LossLaw:
        first, last = points_of(interval, ends)
        if swapped:
            points, missed = self.cut(np.arange(-last, 1 - first) * interval)
            between, below = (
                self.intervals(np.append(-np.inf, points)).turned_round(),
                _below(self.lower, points[-1], -1),
            )
        else:
            points, missed = self.cut(np.arange(first, last + 1) * interval)
            between, below = self.intervals(np.append(points, np.inf)), _below(self.upper, points[0])
        return connected(first, interval, between, below, missed)

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
        found, error = self._two_shifts(losses) if self._is_sampled else self._by_newton(losses)
        return found, error + self._missed(losses, found)

    @property
    def _is_sampled(self) -> bool:
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
        """Invert the loss by Newton's method from a table, and measure the error. Below the table every x has more."""
        table = np.linspace(-60.0, max(self.shifts) + 60.0, TABLE)
        known = self.loss(table)
        x = np.interp(losses, known, table)
        for _ in range(NEWTON_STEPS):
            value, slope = self._loss_and_slope(x)
            x = np.clip(x - (value - losses) / np.maximum(slope, 1e-300), table[0], table[-1])
        x = np.maximum.accumulate(np.where(losses <= known[0], -np.inf, x))
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
class EnvelopePair(DominatingPair):
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

    def law(self, interval: float, ends: Ends, *, swapped: bool) -> LossLaw:
        pair, (first, last) = self._branch, points_of(interval, ends)
        points, missed = pair.cut(np.arange(0, max(last, -first) + 1) * interval)
        over = pair.intervals(np.append(points[: last + 1], np.inf))
        both = joined(pair.intervals(points[: 1 - first]).turned_round(), over)
        law = connected(first, interval, both, _below(pair.lower, points[-first], -1), missed)
        law.masses[-first] += self._at_zero * (1 + 8 * UNIT)
        return law

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
