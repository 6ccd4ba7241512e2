r"""Dominating pairs: two worlds, known by the law of the privacy loss between them.

Place: _loss_law -> [accounting._pairs] -> events, _pld_accountant.
Proofs: docs/derivations/accounting.md, sections 2 to 8 (which pair stands for what) and 10 (their arithmetic).

A pair gives its law of losses on any grid, rounded up, in each direction; and, for planning alone, a sample of them.
Everything is in units of the noise.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri

from tacita.accounting._loss_law import (
    ROUNDED_UP,
    UNIT,
    Intervals,
    LossLaw,
    connected,
    normal_masses,
    split,
)

SAMPLE = 1200  # points of a planning sample
LEAST_TAIL = 1e-290

Sample = tuple[np.ndarray, np.ndarray]  # losses, and their chances in the first world
Ends = tuple[float, float]  # a least and a largest loss
PointMasses = tuple[np.ndarray, float, float]  # of points and of infinity, and what every loss may be larger by
Part = tuple["DominatingPair", int]  # a pair, and how often it is composed with itself


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


class ContinuousPair(DominatingPair):
    """A pair whose losses have a density, so that any points do as a grid."""

    @abstractmethod
    def at(self, points: np.ndarray, *, swapped: bool) -> PointMasses:
        """Return the masses of losses at points, which rise; what lies beside them is as in :meth:`law`."""

    def law(self, interval: float, ends: Ends, *, swapped: bool) -> LossLaw:
        first, last = points_of(interval, ends)
        masses, infinity, error = self.at(np.arange(first, last + 1) * interval, swapped=swapped)
        return LossLaw(interval, first, masses, infinity, error)


def points_of(interval: float, ends: Ends) -> tuple[int, int]:
    """Return the first and the last point of a grid that reaches to both ``ends``, as numbers of intervals."""
    return min(-1, math.floor(ends[0] / interval)), max(1, math.ceil(ends[1] / interval))


@dataclass(frozen=True)
class GaussianPair(ContinuousPair):
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

    def at(self, points: np.ndarray, *, swapped: bool) -> PointMasses:
        mus, chances = self._arrays
        between = np.zeros((4, len(points)))
        below = 0.0
        for mu, chance in zip(mus[mus > 0].tolist(), chances[mus > 0].tolist(), strict=True):
            edges = np.append(points / mu + mu / 2, np.inf)
            for i, shift in enumerate((mu, 0.0)):
                found, error = normal_masses(edges - shift)
                between[i] += chance * found
                between[i + 2] += chance * (error + 4 * UNIT * found)
            below += chance * float(ndtr(edges[0] - mu)) * ROUNDED_UP
        upper, lower, *errors = between
        more = len(mus) * UNIT  # of the sums over mus
        intervals = Intervals.of(upper, lower, errors[0] + more * upper, errors[1] + more * lower)
        rounding = 8 * UNIT * (float(np.abs(points).max()) + 2 * float(mus.max()) ** 2)
        masses, infinity = connected(points, intervals, below)
        masses[np.searchsorted(points, 0.0)] += float(chances[mus == 0].sum())
        return masses, infinity + self.failure * ROUNDED_UP, rounding

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
        masses, infinity = connected(np.arange(-last, last + 1) * interval, between, 0.0)
        _add(masses, -last, interval, (self.epsilon, 0.5))
        _add(masses, -last, interval, (-self.epsilon, math.exp(-self.epsilon) / 2))
        law = LossLaw(interval, -last, masses, infinity, 8 * UNIT * self.epsilon)
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
