r"""Rényi divergences between one-dimensional mixtures of unit Gaussians, by the trapezoidal rule.

Place: the ground of accounting; numbers in, numbers out. The integrands are analytic in a strip many steps wide and
fall off like a Gaussian, where the trapezoidal rule converges faster than any power of its step (Trefethen and Weideman
2014, https://doi.org/10.1137/130932132): only rounding is left, which ``ROUNDED_UP`` and ``ROUNDING`` cover.

A moment near 1 hides its logarithm below the rounding of 1. There the integral of the moment's *excess* is taken, whose
integrand is nowhere negative, so what is small stays accurate. Proof: docs/derivations/accounting.md, "Arithmetic".
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

ROUNDED_UP = 1e-9
ROUNDING = 2.0**-49  # of one exponent, relative to the numbers it is made of
LEAST = 1e-280  # of an excess: below, squares underflow
SMALL = 1e-2  # a log-moment below is computed from its excess
SERIES_BELOW = 0.1  # of order times relative difference: there a Taylor series replaces the difference of powers
TERMS = 12  # of it
STEPS_PER_WIDTH = 6
MOST_POINTS = 300_000  # beyond: no bound at this order (infinity is always one)
REACH = 12  # standard deviations beyond the outermost mode that are integrated


@dataclass(frozen=True)
class Mixture:
    """A mixture of N(shift, 1)."""

    shifts: tuple[float, ...]
    weights: tuple[float, ...]

    def log_ratio(self, x: np.ndarray) -> np.ndarray:
        """Logarithm of the density over that of N(0, 1)."""
        pairs = [(shift, np.log(weight)) for shift, weight in zip(self.shifts, self.weights, strict=True) if weight > 0]
        return np.logaddexp.reduce([log_weight + shift * (x - shift / 2) for shift, log_weight in pairs], axis=0)


def renyi_divergences(upper: Mixture, lower: Mixture, orders: tuple[float, ...]) -> np.ndarray:
    r"""Divergences of ``upper`` from ``lower``: :math:`\frac{1}{a-1} \log \int p^a q^{1-a}` for each order a > 1."""
    return np.array([_log_moment(upper, lower, order) / (order - 1) for order in orders]) * (1 + ROUNDED_UP)


def above_line(x: np.ndarray) -> np.ndarray:
    """exp(x) - 1 - x, accurate to a relative 1e-12 where it is small; overflows to infinity."""
    x = np.asarray(x, dtype=float)
    series = np.zeros_like(x)
    for k in range(TERMS, 1, -1):
        series = (1 + series) * np.where(np.abs(x) < SERIES_BELOW, x, 0.0) / (k + 1)
    with np.errstate(over="ignore"):
        return np.where(np.abs(x) < SERIES_BELOW, x * x / 2 * (1 + series), np.expm1(x) - x)


def _log_moment(upper: Mixture, lower: Mixture, order: float) -> float:
    """log of the integral of p^a q^(1-a), rounded up; 0 for equal mixtures alone."""
    if upper == lower:
        return 0.0
    x, step = _grid(upper, lower, order, _modes(upper, lower, order))
    if not len(x):
        return np.inf
    exponents = order * upper.log_ratio(x) + (1 - order) * lower.log_ratio(x) - x * x / 2
    found = float(logsumexp(exponents) + np.log(step)) + _lost(x, order)
    if found >= SMALL:
        return found
    # q and p themselves are subtracted, and squares of small differences reach as far as order 2
    modes = [*_modes(upper, lower, max(order, 2.0)), *upper.shifts, *lower.shifts]
    x, step = _grid(upper, lower, order, modes)
    return float(np.log1p(_excess(upper, lower, order, x, step))) if len(x) else np.inf


def _modes(upper: Mixture, lower: Mixture, order: float) -> list[float]:
    """Of p^a q^(1-a): a x - (a - 1) y for shifts x of p and y of q."""
    return [order * x - (order - 1) * y for x in upper.shifts for y in lower.shifts]


def _grid(upper: Mixture, lower: Mixture, order: float, modes: list[float]) -> tuple[np.ndarray, float]:
    """Where to sum, and the step over sqrt(2 pi); no points if they were too many."""
    spread = max(*upper.shifts, *lower.shifts) - min(*upper.shifts, *lower.shifts)
    width = 1 / (1 + spread * order**0.5)  # each mixture bends over 1 / spread; its power over less
    if not (max(modes) - min(modes) + 2 * REACH) * STEPS_PER_WIDTH / width <= MOST_POINTS:
        return np.empty(0), 0.0
    x = np.arange(min(modes) - REACH, max(modes) + REACH, width / STEPS_PER_WIDTH)
    return x, width / STEPS_PER_WIDTH / np.sqrt(2 * np.pi)


def _lost(x: np.ndarray, order: float) -> float:
    """What rounding of the exponents may take off a log-moment near 0."""
    return ROUNDING * (order + float(np.max(x * x)))


def _excess(upper: Mixture, lower: Mixture, order: float, x: np.ndarray, step: float) -> float:
    r"""The moment minus 1, rounded up: the integral of :math:`q\,((1+u)^a - 1 - a u)`, :math:`u = p/q - 1`."""
    log_p, log_q = upper.log_ratio(x), lower.log_ratio(x)
    u = _relative_difference(upper, lower, x, log_q)
    near = (np.abs(log_p - log_q) <= 1) & (np.abs(u) < 2)  # not so where u has overflowed
    u = np.where(near, u, 0.0)
    loss = np.where(near, np.log1p(u), log_p - log_q)
    p, q = np.exp(log_p - x * x / 2), np.exp(log_q - x * x / 2)
    rise = (order - 1) * loss
    gain = np.where(rise > 1, np.exp(log_p - x * x / 2 + np.maximum(rise, 1)) - p, p * np.expm1(np.minimum(rise, 1)))
    terms = gain - (order - 1) * np.where(near, q * u, p - q)
    in_series = near & (order * np.abs(u) < SERIES_BELOW)
    terms = np.where(in_series, q * _power_above_line(order, np.where(in_series, u, 0.0)), terms)
    return max(LEAST, float(np.sum(terms)) * step) * (1 + _lost(x, order))


def _relative_difference(upper: Mixture, lower: Mixture, x: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """p/q - 1 without the cancellation: each component's difference from N(0, 1), by how much its weights differ."""
    weights: dict[float, float] = {}
    for mixture, sign in ((upper, 1.0), (lower, -1.0)):
        for shift, weight in zip(mixture.shifts, mixture.weights, strict=True):
            weights[shift] = weights.get(shift, 0.0) + sign * weight
    with np.errstate(over="ignore", invalid="ignore"):  # far off, where the caller has no use for it
        return np.sum([c * np.expm1(s * (x - s / 2)) * np.exp(-log_q) for s, c in weights.items() if c], axis=0)


def _power_above_line(order: float, u: np.ndarray) -> np.ndarray:
    """(1 + u)^a - 1 - a u by Taylor's series, for a |u| below 0.1: each term is below a tenth of the one before."""
    series = np.zeros_like(u)
    for k in range(TERMS, 1, -1):
        series = (1 + series) * (order - k) * u / (k + 1)
    return order * (order - 1) / 2 * u * u * (1 + series)
