r"""Dominating pairs: two worlds, known by the law of the privacy loss between them.

Place: _loss_law -> [accounting.dominating_pairs] -> events, pld_accountant.
Proofs: docs/derivations/accounting.md, sections 2 to 8 (which pair stands for what) and 10 (their arithmetic).

A pair gives its law of losses on any grid, rounded up, in each direction; and, for planning alone, a sample of them.
Everything is in units of the noise.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from tacita.accounting._loss_law import UNIT, LossLaw, split

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
class ResponsePair(DominatingPair):
    """Randomised response: the pair that dominates everything (``epsilon``, 0)-private (section 8)."""

    epsilon: float

    def law(self, interval: float, ends: Ends, *, swapped: bool) -> LossLaw:
        last = math.ceil(self.epsilon / interval) + 1
        masses = np.zeros(2 * last + 1)
        add_loss(masses, -last, interval, (self.epsilon, 1 / (1 + math.exp(-self.epsilon))))
        add_loss(masses, -last, interval, (-self.epsilon, math.exp(-self.epsilon) / (1 + math.exp(-self.epsilon))))
        return LossLaw(interval, -last, masses, 0.0).within(*points_of(interval, ends))

    def reach(self, tail: float, *, swapped: bool) -> Ends:
        return -self.epsilon, self.epsilon

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        return np.array([self.epsilon, -self.epsilon]), np.array([1.0, math.exp(-self.epsilon)])


def add_loss(masses: np.ndarray, first: int, interval: float, loss: tuple[float, float]) -> None:
    """Add a loss and its chance to the masses at points from ``first`` on."""
    below, left, right = split(loss[0], loss[1] * (1 + 8 * UNIT), interval)
    masses[below - first] += left
    masses[below + 1 - first] += right
