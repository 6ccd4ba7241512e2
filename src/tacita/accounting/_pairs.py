r"""Dominating pairs: two worlds, known by the law of the privacy loss between them.

Place: _loss_law -> [accounting._pairs] -> events, _pld_accountant.
Proofs: docs/derivations/accounting.md, sections 2 to 8 (which pair stands for what) and 10 (their arithmetic).

A pair gives its law of losses on any grid, rounded up, in each direction; and, for planning alone, its cumulants.
Everything is in units of the noise.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from tacita.accounting._loss_law import (
    LARGEST_LOSS,
    UNIT,
    Intervals,
    LossLaw,
    Stretch,
    connected,
    normal_masses,
    split,
)

SAMPLE = 1200  # points of a planning sample
LEAST_TAIL = 1e-290
NEAREST_TO_NOTHING = -1 + 2.0**-50
ROUNDED_UP = 1 + 2.0**-30  # of a tail's mass

Sample = tuple[np.ndarray, np.ndarray]  # losses, and their chances in the first world
Part = tuple["DominatingPair", int]  # a pair, and how often it is composed with itself


class DominatingPair(ABC):
    """Two worlds; subclasses are frozen dataclasses of numbers."""

    symmetric = True  # whether both directions have the same law

    @abstractmethod
    def law(self, interval: float, tail: float, *, swapped: bool) -> LossLaw:
        """Return the losses on a grid, rounded up; at most about ``tail`` of their mass is moved to infinity.

        ``swapped`` is the direction from the second world to the first.
        """

    def reach(self, tail: float, *, swapped: bool) -> tuple[float, float] | None:
        """Return about the least and the largest loss; ``None`` where the law has no :meth:`stretch`."""
        return None

    def stretch(self, interval: float, first: int, last: int, *, swapped: bool) -> Stretch:
        """Return a part of the law on a grid: the losses between two points (numbers of intervals), rounded up."""
        raise NotImplementedError(f"{type(self).__name__} has no law on a stretch of the grid, only the whole one.")

    @abstractmethod
    def cumulants(self, theta: float, tail: float, *, swapped: bool) -> np.ndarray:
        """Return log E exp(theta loss) and its first two derivatives, for planning: no bound depends on them."""

    @abstractmethod
    def span(self, tail: float, *, swapped: bool) -> float:
        """Return about the width of the range of losses."""


class SampledPair(DominatingPair):
    """A pair that is planned with by a sample of its losses."""

    def cumulants(self, theta: float, tail: float, *, swapped: bool) -> np.ndarray:
        """Return log E exp(theta loss) and its first two derivatives, for planning: no bound depends on them."""
        losses, chances = _sampled(self, tail, swapped)
        exponents = theta * losses
        if np.abs(exponents).max() < LARGEST_LOSS:
            weights = chances * np.exp(exponents)
            value = math.log1p(max(NEAREST_TO_NOTHING, float(chances @ np.expm1(exponents))))
        else:
            logs = exponents + np.log(chances)
            weights, value = np.exp(logs - logs.max()), float(np.logaddexp.reduce(logs))
        weights = weights / weights.sum()
        mean = float(weights @ losses)
        return np.array([value, mean, float(weights @ (losses - mean) ** 2)])

    def span(self, tail: float, *, swapped: bool) -> float:
        """Return about the width of the range of losses."""
        losses, _ = _sampled(self, tail, swapped)
        return float(losses.max() - losses.min())

    @abstractmethod
    def sample(self, tail: float, *, swapped: bool) -> Sample:
        """Return losses and their chances, which need not be accurate."""


@lru_cache(maxsize=64)
def _sampled(pair: SampledPair, tail: float, swapped: bool) -> Sample:
    losses, chances = pair.sample(tail, swapped=swapped)
    kept = (chances > 0) & (np.abs(losses) <= LARGEST_LOSS)
    return losses[kept], chances[kept] / chances.sum()


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

    def law(self, interval: float, tail: float, *, swapped: bool) -> LossLaw:
        mus, chances = self._arrays
        reach = -float(ndtri(max(LEAST_TAIL, min(0.5, tail))))
        last = max(1, math.ceil(min(LARGEST_LOSS, float((mus * (mus / 2 + reach)).max())) / interval))
        grid = np.arange(-last, last + 1) * interval
        between = [np.zeros(2 * last) for _ in range(4)]
        masses, beyond = np.zeros(2 * last + 1), self.failure
        for mu, chance in zip(mus[mus > 0].tolist(), chances[mus > 0].tolist(), strict=True):
            points = grid / mu + mu / 2
            for i, shift in enumerate((mu, 0.0)):
                found, error = normal_masses(points - shift)
                between[i] += chance * found
                between[i + 2] += chance * (error + 4 * UNIT * found)
            masses[0] += chance * float(ndtr(points[0] - mu)) * ROUNDED_UP
            beyond += chance * float(ndtr(mu - points[-1]))
        upper, lower, *errors = between
        more = len(mus) * UNIT  # of the sums over mus
        masses += connected(
            -last, interval, Intervals.of(upper, lower, errors[0] + more * upper, errors[1] + more * lower)
        )
        masses[last] += float(chances[mus == 0].sum())
        rounding = 8 * UNIT * (float(np.abs(grid).max()) + float(mus.max()) * (2 * float(mus.max()) + 2 * reach))
        return LossLaw(interval, -last, masses, beyond * ROUNDED_UP, rounding)

    def span(self, tail: float, *, swapped: bool) -> float:
        return 2 * max(self.mus) * (max(self.mus) / 2 - float(ndtri(max(LEAST_TAIL, min(0.5, tail)))))

    def cumulants(self, theta: float, tail: float, *, swapped: bool) -> np.ndarray:
        mus, chances = self._arrays
        logs = np.log(chances) + theta * (theta + 1) * mus**2 / 2
        value = float(np.logaddexp.reduce(logs))
        weights = np.exp(logs - value)
        means = (theta + 0.5) * mus**2
        mean = float(weights @ means)
        return np.array([value, mean, float(weights @ (mus**2 + (means - mean) ** 2))])

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.mus), np.array(self.chances)


@dataclass(frozen=True)
class ResponsePair(SampledPair):
    """Randomised response: the pair that dominates everything (``epsilon``, 0)-private (section 8)."""

    epsilon: float

    def law(self, interval: float, tail: float, *, swapped: bool) -> LossLaw:
        masses: dict[int, float] = {}
        for loss, chance in zip(*self.sample(tail, swapped=swapped), strict=True):
            below, left, right = split(float(loss), float(chance) * ROUNDED_UP, interval)
            masses[below] = masses.get(below, 0.0) + left
            masses[below + 1] = masses.get(below + 1, 0.0) + right
        return _dense(masses, interval)

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        odds = math.exp(-self.epsilon)
        return np.array([self.epsilon, -self.epsilon]), np.array([1.0, odds]) / (1 + odds)


@dataclass(frozen=True)
class LaplacePair(SampledPair):
    """Laplace noise on a value that moves by ``epsilon`` scales (section 8)."""

    epsilon: float

    def law(self, interval: float, tail: float, *, swapped: bool) -> LossLaw:
        last = math.ceil(self.epsilon / interval)
        points = np.clip(np.arange(-last, last + 1) * interval, -self.epsilon, self.epsilon)
        widths = -np.expm1(-np.diff(points) / 2) / 2
        upper = np.exp((points[1:] - self.epsilon) / 2) * widths
        lower = np.exp((-points[:-1] - self.epsilon) / 2) * widths
        rounding = 16 * UNIT * (1 + self.epsilon / interval)  # of a width: that of the difference of two points
        masses = connected(-last, interval, Intervals.of(upper, lower, rounding * upper, rounding * lower))
        for loss, chance in ((self.epsilon, 0.5), (-self.epsilon, math.exp(-self.epsilon) / 2)):
            below, left, right = split(loss, chance * ROUNDED_UP, interval)
            masses[below + last] += left
            masses[min(below + 1, last) + last] += right
        return LossLaw(interval, -last, masses, 0.0, 8 * UNIT * self.epsilon)

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        inner = np.linspace(-self.epsilon, self.epsilon, SAMPLE)
        density = np.exp((inner - self.epsilon) / 2) * (self.epsilon / (SAMPLE - 1) / 2)
        ends = np.array([0.5, math.exp(-self.epsilon) / 2])
        return np.append(inner, [self.epsilon, -self.epsilon]), np.append(density, ends)


def _dense(masses: dict[int, float], interval: float) -> LossLaw:
    first, last = min(masses), max(masses)
    return LossLaw(interval, first, np.array([masses.get(i, 0.0) for i in range(first, last + 1)]), 0.0)
