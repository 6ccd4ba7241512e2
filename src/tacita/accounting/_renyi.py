r"""Rényi divergences between one-dimensional mixtures of unit Gaussians, by the trapezoidal rule.

Place: the ground of accounting; numbers in, numbers out. The integrand is entire and falls off like a Gaussian, where
the trapezoidal rule converges faster than any power of its step (Trefethen and Weideman 2014,
https://doi.org/10.1137/130932132): steps far below the integrand's width leave only rounding, which ``ROUNDED_UP``
covers.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

ROUNDED_UP = 1e-9
STEPS_PER_WIDTH = 6
MOST_POINTS = 300_000  # beyond: no bound at this order (infinity is always one)
REACH = 12  # standard deviations beyond the outermost mode that are integrated


@dataclass(frozen=True)
class Mixture:
    """A mixture of N(shift, 1)."""

    shifts: tuple[float, ...]
    weights: tuple[float, ...]

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Logarithm of the density, without the Gaussian's constant."""
        pairs = [(shift, np.log(weight)) for shift, weight in zip(self.shifts, self.weights, strict=True) if weight > 0]
        return np.logaddexp.reduce([log_weight - (x - shift) ** 2 / 2 for shift, log_weight in pairs], axis=0)


def renyi_divergences(upper: Mixture, lower: Mixture, orders: tuple[float, ...]) -> np.ndarray:
    r"""Divergences of ``upper`` from ``lower``: :math:`\frac{1}{a-1} \log \int p^a q^{1-a}` for each order a > 1."""
    return np.array([max(0.0, _log_moment(upper, lower, order) / (order - 1)) for order in orders]) * (1 + ROUNDED_UP)


def _log_moment(upper: Mixture, lower: Mixture, order: float) -> float:
    """log of the integral of p^a q^(1-a); its modes lie at a x - (a - 1) y for shifts x of p and y of q."""
    modes = [order * x - (order - 1) * y for x in upper.shifts for y in lower.shifts]
    spread = max(*upper.shifts, *lower.shifts) - min(*upper.shifts, *lower.shifts)
    width = 1 / (1 + spread * order**0.5)  # each mixture bends over 1 / spread; its power over less
    if (max(modes) - min(modes) + 2 * REACH) * STEPS_PER_WIDTH / width > MOST_POINTS:
        return np.inf
    x = np.arange(min(modes) - REACH, max(modes) + REACH, width / STEPS_PER_WIDTH)
    exponents = order * upper.log_density(x) + (1 - order) * lower.log_density(x)
    return float(logsumexp(exponents) + np.log(width / STEPS_PER_WIDTH / np.sqrt(2 * np.pi)))
