r"""Two rare large losses or more, beside the bulk's total.

Place: _tilted -> [accounting._several_rare_losses] -> _rare_losses. Proof: docs/derivations/accounting.md, section 10.

The measure :math:`B * (e^{\rho} - 1 - \rho)`, powers of :math:`\rho` by convolution, is computed by one tilted Fourier
transform: :math:`\hat B (e^{\hat\rho} - 1 - \hat\rho)`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import fft
from scipy.optimize import minimize_scalar

from tacita.accounting._loss_law import UNIT, LossLaw
from tacita.accounting._tilted import BUTTERFLY, STEEPEST, TiltedTotal, tilt

LARGEST_NUMBER = 8  # of large losses whose shifts are counted; more of them count as infinite
LARGEST_MASS = 50.0  # of the tilted large losses
NEGLIGIBLE = 2e-6  # of delta
LEFT_OUT = 1e-8  # of delta, above the window
STEEPER = (
    0.002,
    0.006,
    0.02,
    0.06,
    0.2,
    0.5,
    1.0,
)  # tilts for Chernoff's bound of that: shares of the way to the largest
LARGEST_EXPONENT = 600.0  # of a tilted large loss
STEEPEST_EXPONENT = 700.0  # where its moment alone is asked for: exp of it is a float
TERMS = 14  # of a series, below
SERIES = 0.5
EMPTY = 64  # points of a window that shows nothing
MOST_POINTS = 2.0**17  # of a window


@dataclass(frozen=True)
class Rare:
    """The large losses of all queries: how often each is expected.

    Attributes:
        interval: Of the grid.
        first: The first point, in intervals, > 0.
        masses: Expected numbers; they sum to ``number``.
        loss_error: What each large loss adds to the total beyond its point.
    """

    interval: float
    first: int
    masses: np.ndarray
    loss_error: float

    @cached_property
    def number(self) -> float:
        """The expected number of large losses."""
        return float(self.masses.sum()) * (1 + 1e-12)

    @cached_property
    def losses(self) -> np.ndarray:
        """The losses at the points of the grid."""
        return np.arange(self.first, self.first + len(self.masses)) * self.interval


def several(bulk: LossLaw, rare: Rare, epsilon: float, delta: float) -> TiltedTotal:
    """Return the total of the bulk and two or more rare losses, to be read at about ``epsilon`` and ``delta``."""
    number = rare.number
    if number * number * math.exp(number) <= NEGLIGIBLE * delta:
        return _infinite(bulk, rare, epsilon, number * number * math.exp(number) / 2)
    log_moment = _log_moments(bulk, rare)
    most = _steepest(rare)
    theta = float(minimize_scalar(lambda t: log_moment(t) - t * epsilon, bounds=(0.0, most), method="bounded").x)  # type: ignore[attr-defined]
    wanted = math.log(LEFT_OUT * max(delta, 1e-290))
    last = float(rare.losses[-1])
    steeper = [theta + share * (STEEPEST_EXPONENT / last - theta) for share in STEEPER]  # what lies above comes round
    highest, beyond = min(((log_moment(t) - theta * epsilon - wanted) / (t - theta), t) for t in steeper)
    error = bulk.loss_error + LARGEST_NUMBER * rare.loss_error
    start = min(bulk.first, math.floor(-error / rare.interval) - 1)  # so that the window shows every epsilon >= 0
    needed = max(highest, 1.1 * epsilon, 8 * rare.interval) / rare.interval - start + 4
    size = 2 ** math.ceil(math.log2(min(max(needed, 256), MOST_POINTS)))
    total = _transformed(bulk, rare, theta, start, size)
    above = math.exp(min(0.0, log_moment(beyond) - beyond * float(total.losses[-1]) + 1e-9))
    beside = math.exp(min(0.0, (LARGEST_NUMBER + 1) * math.log(number) - math.lgamma(LARGEST_NUMBER + 2) + number))
    error += 4 * UNIT * float(np.abs(total.losses).max())
    return TiltedTotal(
        theta, total.log_scale, total.losses, total.masses, (above + beside) * (1 + 1e-9), error, total.rounding
    )


def _infinite(bulk: LossLaw, rare: Rare, epsilon: float, chance: float) -> TiltedTotal:
    """Count two or more large losses as infinite, because their chance is negligible."""
    highest = max(float(bulk.losses[-1]) + 4 * float(rare.losses[-1]), 2 * epsilon)
    losses = np.linspace(-1.0 - bulk.loss_error, highest, EMPTY)
    return TiltedTotal(0.0, 0.0, losses, np.zeros(EMPTY), chance * (1 + 1e-9), bulk.loss_error, 0.0)


def _log_moments(bulk: LossLaw, rare: Rare) -> Callable[[float], float]:
    """Return the log of the measure's exponential moment, rounded up, as a function of the tilt >= 0."""

    def log_moment(theta: float) -> float:
        exponents = theta * rare.losses
        assert 0 <= exponents[-1] <= STEEPEST_EXPONENT * (1 + 1e-9), "a moment is not cut off"
        number = float(rare.masses @ np.exp(exponents))
        two = number if number > LARGEST_EXPONENT else math.log(max(1e-300, float(_exp_two(np.array([number]))[0])))
        return bulk.log_moment(theta)[0] + two

    return log_moment


def _steepest(rare: Rare) -> float:
    """Return the largest tilt at which the mass of large losses is moderate."""
    low, high = 0.0, min(STEEPEST / rare.interval, LARGEST_EXPONENT / float(rare.losses[-1]))
    for _ in range(40):
        middle = (low + high) / 2
        mass = float(rare.masses @ np.exp(middle * rare.losses))
        low, high = (middle, high) if mass < LARGEST_MASS else (low, middle)
    return high


def _transformed(bulk: LossLaw, rare: Rare, theta: float, start: int, size: int) -> TiltedTotal:
    """Return the measure on a window of ``size`` points from ``start`` up, and the bound on its rounding."""
    rounding = BUTTERFLY * math.log2(size)
    tilted, log_bulk, steps = tilt(bulk, theta)
    large = rare.masses * np.exp(theta * rare.losses)
    number = float(large.sum())
    whole = max(float(_exp_two(np.array([number]))[0]), 1e-300)
    product = _transform(bulk.first, tilted, size) * _exp_two(_transform(rare.first, large, size))
    masses = np.asarray(fft.irfft(product / whole, size))
    growing = math.expm1(number * (1 + 2 * rounding)) / whole  # of the function, over its largest value
    error = 1.01 * rounding * number * growing + 4 * rounding + UNIT * (64 + 16 * (2 + number) * growing * number)
    masses = np.roll(np.maximum(masses, 0.0) + error, -(start % size))
    losses = np.arange(start, start + size) * rare.interval
    slack = 16 * UNIT * LARGEST_MASS * (8 + steps + theta * float(rare.losses[-1]) + abs(log_bulk)) + 1e-12
    return TiltedTotal(theta, log_bulk + math.log(whole) + slack, losses, masses, 0.0, 0.0, error)


def _transform(first: int, masses: np.ndarray, size: int) -> np.ndarray:
    at = np.arange(first, first + len(masses)) % size
    return np.asarray(fft.rfft(np.bincount(at, weights=masses, minlength=size)))


def _exp_two(z: np.ndarray) -> np.ndarray:
    """Return exp(z) - 1 - z, with relative accuracy in the modulus of z."""
    near = np.abs(z) < SERIES
    inside = np.where(near, z, 0.0)
    series = np.zeros_like(inside)
    for k in range(TERMS, 1, -1):
        series = inside * series / (k + 1) + 1.0
    return np.where(near, series * inside * inside / 2, np.exp(z) - 1 - z)
