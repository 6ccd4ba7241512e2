r"""Compositions of loss laws with *relative* accuracy: a Fourier transform of the exponentially tilted laws.

Place: _loss_law -> [accounting._tilted] -> pld_accountant. Proof: docs/derivations/accounting.md, section 10.

Laws p with :math:`M = \sum_l p(l) e^{\theta l}` are tilted to :math:`p_\theta(l) = p(l) e^{\theta l} / M`. Then
:math:`p^{*T}(l) = M^T e^{-\theta l} p_\theta^{*T}(l)`, and

.. math:: \delta(\epsilon) = M^T e^{-\theta\epsilon} \sum_{l > \epsilon} (1 - e^{\epsilon - l})
    e^{-\theta (l - \epsilon)} p_\theta^{*T}(l).

A transform's rounding is small against the tilted mass, which stands where it is needed, and so against delta. What is
computed is an upper bound: rounding is bounded and added, mass that wraps around a window only adds to it, and mass
above the window is bounded by its moments.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import fft
from scipy.signal import lfilter

from tacita.accounting._loss_law import UNIT, LossLaw

BUTTERFLY = 16 * UNIT  # rounding of one stage of a transform, relative to the sum of absolute values
LEAST_MODULUS = 1e-300
LARGEST_EXPONENT = 700.0
STEEPEST = 20.0  # tilt times interval; above, what the nearest points weigh could underflow
FADED_MODULUS = 80.0  # exp of its negative is of no weight, for a frequency
ROUNDED_UP = 1 + 1e-9  # of a delta
NEAR = -0.9  # of a squared modulus, minus 1; below, the logarithm is taken of the modulus

Composed = tuple[LossLaw, int]  # a law, and how often it is composed with itself


@dataclass(frozen=True)
class TiltedTotal:
    """An upper bound of the total loss, tilted, on the points of a window.

    Attributes:
        theta: The tilt.
        log_scale: Log of what the tilting divided by, rounded up.
        losses: The points, rising.
        masses: Tilted chances, rounded up.
        infinity: Chance of an infinite total loss, or of one above the window.
        loss_error: What all losses may be larger by.
        rounding: What was added to each of ``masses`` for the rounding of transforms.
    """

    theta: float
    log_scale: float
    losses: np.ndarray
    masses: np.ndarray
    infinity: float
    loss_error: float
    rounding: float

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """Return delta at each epsilon, rounded up: linear in exp(epsilon) between two points; 1 below the window."""
        at = np.minimum(epsilons - self.loss_error, self.losses[-1])  # delta falls: the end is a bound beyond it
        after = np.clip(np.searchsorted(self.losses, at, side="right"), 1, len(self.losses) - 1)
        if self.interval > LARGEST_EXPONENT:  # expm1 would overflow, and the point below is a bound, too
            share = np.zeros_like(at)
        else:
            part, whole = (np.maximum(0.0, end - self.losses[after - 1]) for end in (at, self.losses[after]))
            share = np.expm1(part) / np.expm1(whole)
        found = (1 - share) * self._at_points[after - 1] + share * self._at_points[after]
        return np.where(at < self.losses[0], 1.0, np.minimum(1.0, found * ROUNDED_UP))

    def delta(self, epsilon: float) -> float:
        """Return delta at ``epsilon``, as :meth:`deltas` does."""
        return float(self.deltas(np.array(epsilon)))

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 in the window at ``delta``, rounded up; ``inf`` if there is none."""
        least = max(0.0, self.least)
        if self.delta(least) <= delta:
            return least
        at = int(np.searchsorted(-self._at_points * ROUNDED_UP, -delta))  # the first point with at most ``delta``
        if at == len(self.losses):
            return math.inf
        end, (above, below) = float(self.losses[at]) + self.loss_error, self._at_points[at - 1 : at + 1] * ROUNDED_UP
        share = float((above - delta) / (above - below))
        found = end - self.interval
        if self.interval <= LARGEST_EXPONENT:
            found += math.log1p(min(1.0, share + 1e-9) * math.expm1(self.interval))
        return min(end, found) if least <= found and self.delta(found) <= delta else end

    def rounding_share(self, epsilon: float) -> float:
        """Return about which share of :meth:`delta` is the bound on the rounding of transforms."""
        at = max(0, int(np.searchsorted(self.losses, epsilon, side="right")) - 1)
        rates, left = (self.theta * self.interval, (self.theta + 1) * self.interval), len(self.losses) - 1 - at
        of_each, less = (-math.expm1(-rate * left) / math.expm1(rate) if rate else left for rate in rates)
        return self.rounding * (of_each - less) / max(1e-300, float(self._above[at]))

    @property
    def least(self) -> float:
        """The least epsilon in the window."""
        return float(self.losses[0]) + self.loss_error

    @property
    def interval(self) -> float:
        """The distance between points of the window."""
        return float(self.losses[1] - self.losses[0])

    @cached_property
    def _at_points(self) -> np.ndarray:
        """Delta at each point of the window, which falls."""
        with np.errstate(divide="ignore"):
            logs = np.log(self._above) + self.log_scale - self.theta * self.losses
        found = np.where(self._above > 0, np.exp(np.clip(logs, -LARGEST_EXPONENT, 0.0)), 0.0) * (1 + 1e-15 * len(logs))
        return np.minimum.accumulate(np.minimum(1.0, found + self.infinity))

    @cached_property
    def _above(self) -> np.ndarray:
        r"""At each point :math:`\sum_{k > 0} (1 - e^{-kd})\, e^{-\theta k d}` times the k-th mass above it.

        By the recursion from above of this sum and of the one without the first factor. No term is negative, so nothing
        cancels, and rounding is at most a few units a point.
        """
        fading, less = math.exp(-self.theta * self.interval), math.exp(-self.interval)
        whole = lfilter([fading], [1.0, -fading], self.masses[::-1])
        found = lfilter([-math.expm1(-self.interval)], [1.0, -fading * less], np.append(0.0, whole[:-1]))
        return np.asarray(found)[::-1]


def composed(
    laws: Sequence[Composed], theta: float, lowest: float, size: int, beyond: float, *, highest: float = math.inf
) -> TiltedTotal:
    """Return the total of all laws, in a window of ``size`` points (a power of 2) from ``lowest`` up.

    Args:
        laws: On grids whose intervals are whole multiples of the least.
        theta: The tilt, >= 0; less is taken where the grid is too coarse for it.
        lowest: Of the window; any will do, a bad one is loose.
        size: Likewise.
        beyond: A larger tilt, which bounds what is above the window.
        highest: Where to cut the window off; what came round may stand above.
    """
    interval = min(law.interval for law, _ in laws)
    theta = min(theta, STEEPEST / interval)
    loss_error = math.fsum(queries * law.loss_error for law, queries in laws)
    start = math.floor((lowest - loss_error) / interval)  # so that the window shows ``lowest``
    rounding = BUTTERFLY * math.log2(size)
    factors: list[Factor] = []
    log_scale = slack = 0.0
    for law, queries in laws:
        tilted, log_moment, exponents = tilt(law, theta)
        factors.append(_transform((law, queries), tilted, interval, size, rounding))
        log_scale += queries * log_moment
        slack += queries * 8 * UNIT * (8 + exponents + abs(log_moment)) + 8 * UNIT * abs(queries * log_moment)
    masses, most = _product(factors, rounding, size)
    masses = np.roll(np.maximum(masses, 0.0) + most, -(start % size))
    kept = max(2, math.ceil(min(highest / interval - start, size - 1)) + 1)
    losses, masses = np.arange(start, start + kept) * interval, masses[:kept]
    infinity = math.fsum(queries * law.infinity for law, queries in laws) + _above(laws, beyond, float(losses[-1]))
    loss_error += 4 * UNIT * float(np.abs(losses).max())
    return TiltedTotal(theta, log_scale + slack, losses, masses, infinity * (1 + 1e-9), loss_error, most)


def tilt(law: LossLaw, theta: float) -> tuple[np.ndarray, float, float]:
    """Return the masses of the tilted law, the log of what they were divided by, and the largest exponent."""
    exponents = theta * law.losses
    present = law.masses > 0
    top = float(exponents[present].max())
    weights = law.masses * np.exp(np.minimum(exponents - top, 0.0))
    total = float(weights.sum())
    return weights / total, top + math.log(total), float(np.abs(exponents[present]).max())


@dataclass(frozen=True)
class Factor:
    """The transform of one law's tilted masses, and how often it is a factor of the total's.

    Attributes:
        queries: How often.
        change: The transform minus that of a loss of 0.
        missed: Bound on the modulus of its rounding.
    """

    queries: int
    change: np.ndarray
    missed: float

    def at_most(self) -> np.ndarray:
        r"""Return a bound on the logarithm of the power's modulus: :math:`\log |z| \le (|z|^2 - 1) / 2`."""
        x, y = np.real(self.change), np.imag(self.change)
        return self.queries * (x + (x * x + y * y) / 2 + 2 * self.missed)

    def power(self, kept: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the logarithm, the angle and a bound on the relative rounding of the power."""
        x, y = np.real(self.change)[kept], np.imag(self.change)[kept]
        logs = np.log1p(np.maximum(2 * x + x * x + y * y, NEAR)) / 2
        modulus = np.maximum(np.hypot(1 + x, y), LEAST_MODULUS)
        small = modulus <= 0.5
        logs[small] = np.log(modulus[small])
        error = np.log1p(self.missed / modulus + 4 * UNIT * small)
        return self.queries * logs, self.queries * np.arctan2(y, 1 + x), self.queries * error


def _product(factors: Sequence[Factor], rounding: float, size: int) -> tuple[np.ndarray, float]:
    """Return the masses whose transform is the product of powers, and a bound on the rounding of each."""
    faded = np.sum([factor.at_most() for factor in factors], axis=0) < -FADED_MODULUS
    dropped = int(np.count_nonzero(faded))  # each counts as 0
    kept = np.flatnonzero(~faded) if dropped else slice(None)
    logs, angles, error = np.sum([factor.power(kept) for factor in factors], axis=0)
    logs = np.minimum(logs, LARGEST_EXPONENT)  # above 0 by rounding alone, which ``error`` bounds
    transform = np.zeros(size // 2 + 1, complex)
    transform[kept] = np.exp(logs) * (np.cos(angles) + 1j * np.sin(angles))
    most = _rounding(logs, error, rounding, size) + 2 / size * dropped * math.exp(-FADED_MODULUS) * (1 + 1e-9)
    return np.asarray(fft.irfft(transform, size)), most


def _transform(part: Composed, tilted: np.ndarray, interval: float, size: int, rounding: float) -> Factor:
    """Transform the masses. Mass at loss 0, whose transform is 1, is set apart, so that only the rest is rounded."""
    law, queries = part
    rest = tilted.copy()
    if law.first <= 0 < law.first + len(rest):
        rest[-law.first] = 0.0
    share = min(1.0, float(rest.sum()))
    change = np.asarray(fft.rfft(_folded(law, rest, interval, size))) - share
    return Factor(queries, change, share * (rounding + 64 * UNIT))


def _folded(law: LossLaw, masses: np.ndarray, interval: float, size: int) -> np.ndarray:
    """Fold the masses onto the points of a circle."""
    stride = round(law.interval / interval)
    at = (np.arange(law.first, law.first + len(masses)) * stride) % size
    return np.bincount(at, weights=masses, minlength=size)


def _rounding(logs: np.ndarray, error: np.ndarray, rounding: float, size: int) -> float:
    """Return a bound on the error of every mass: the errors of all frequencies and of the inverse transform."""
    each = np.where(error < 1, np.exp(logs) * np.expm1(np.minimum(error, 1.0)), np.exp(np.minimum(logs + error, 30.0)))
    return 2 / size * float(np.sum(each + 2 * rounding * (np.exp(logs) + each)))


def moments(laws: Sequence[Composed], theta: float) -> tuple[float, float]:
    """Return the log of the total's exponential moment, rounded up, and the mean of its tilted law."""
    values, means = [], []
    for law, queries in laws:
        value, mean = law.log_moment(theta)
        largest = abs(theta) * law.interval * max(abs(law.first), abs(law.first + len(law.masses)))
        values.append(queries * (value + 8 * UNIT * (8 + largest + abs(value))))
        means.append(queries * mean)
    found = math.fsum(values)
    return found + 8 * UNIT * abs(found), math.fsum(means)


def _above(laws: Sequence[Composed], theta: float, highest: float) -> float:
    r"""Bound the chance that the total exceeds h (Chernoff): :math:`E e^{\theta (L - h)}`, for a tilt >= 0."""
    assert theta >= 0, "the moment of a tilt below 0 bounds what is below"
    return math.exp(min(0.0, moments(laws, theta)[0] - theta * highest * (1 - math.copysign(8 * UNIT, highest)))) * (
        1 + 1e-12
    )
