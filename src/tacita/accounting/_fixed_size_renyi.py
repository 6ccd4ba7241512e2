r"""The Rényi divergence of the envelope that bounds fixed-size sampling under replace_one, at any order, rounded up.

Place: the ground of accounting; numbers in, numbers out. With :math:`t(x) = 1 - q + q e^{D x - D^2/2}`, the moment is

.. math:: 1 + \int_{D/2}^\infty \varphi\, (t^a - 1)(1 - t^{1-a})\, dx = M_a + M'_a - 1 - R,

:math:`M_a, M'_a` the moments of (mixture, Gaussian) in both directions and R the same integral over the left half-line.
R is taken off, so it is rounded down: Gauss-Legendre on panels, less its proved error. Proof:
docs/derivations/accounting.md, "Fixed size, without replacement".
"""

from functools import lru_cache

import numpy as np

from tacita.accounting._renyi import ROUNDED_UP, log_moments
from tacita.accounting._renyi_grid import Mixture

NODES, WEIGHTS = np.polynomial.legendre.leggauss(32)
RHO = 3.0  # of the Bernstein ellipse on which the integrand is bounded
WIDE, TALL = (RHO + 1 / RHO) / 2, (RHO - 1 / RHO) / 2  # its half-axes, for a panel of half-width 1
MOST_PANELS = 400  # of one order; beyond: nothing is taken off
DROP = 36.0  # below its peak the left half is left out
HALVINGS = 50
DOMINATED = 30.0  # in the logarithm: what is so much smaller than the rest is not worth taking off


@lru_cache(maxsize=64)
def fixed_size_divergences(rate: float, shift: float, orders: tuple[float, ...]) -> np.ndarray:
    """Return divergences at ``orders`` > 1 of a query of rate < 1 that a replaced record moves by ``shift``."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # a NaN: no bound at that order
        return _divergences(rate, shift, np.asarray(orders, dtype=float))


def _divergences(rate: float, shift: float, a: np.ndarray) -> np.ndarray:
    mixture, centre = Mixture((0.0, shift), (1 - rate, rate)), Mixture((0.0,), (1.0,))
    logs = [_log_expm1(log_moments(*pair, a)) for pair in ((mixture, centre), (centre, mixture))]
    both = np.logaddexp(*logs)
    left = _left_half(rate, shift, a, both - DOMINATED)
    rest = np.maximum(-np.expm1(np.minimum(0.0, left - both)), 0.0) + ROUNDED_UP
    return _log1p_exp(both + np.log(rest)) / (a - 1) * (1 + ROUNDED_UP)


def _log_expm1(x: np.ndarray) -> np.ndarray:
    """Return log(exp(x) - 1)."""
    return x + np.log(-np.expm1(-x))


def _log1p_exp(x: np.ndarray) -> np.ndarray:
    """Return log(1 + exp(x))."""
    return np.where(x > 0, np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), np.log1p(np.exp(np.minimum(x, 0))))


def _left_half(rate: float, shift: float, orders: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Return log lower bounds of R; minus infinity where one is below ``least`` or needs too many panels."""
    starts, stops, peaks = _windows(rate, shift, orders)
    widest = np.minimum(4 / (orders * rate * shift), np.minimum(1.0, np.sqrt(24 / orders)) / (TALL * shift))
    panels = np.ceil((stops - starts) / np.minimum(1.0, 2 * widest))
    found = np.full(len(orders), -np.inf)
    for i in np.flatnonzero((panels <= MOST_PANELS) & (peaks + np.log(stops - starts) >= least)):
        half = (stops[i] - starts[i]) / panels[i] / 2
        middles = starts[i] + half * (2 * np.arange(panels[i]) + 1)
        found[i] = peaks[i] + _log_sum((rate, shift, orders[i]), middles, half, peaks[i])
    return found


def _log_sum(law: tuple[float, float, float], middles: np.ndarray, half: float, peak: float) -> float:
    r"""Return the logarithm of the panels' integrals over e^peak, less their errors.

    Trefethen (2019), Approximation Theory and Approximation Practice, Theorem 19.3: n + 1 nodes leave at most
    :math:`\frac{64}{15} M \rho^{-2n} / (1 - \rho^{-2})` on [-1, 1], M a bound on the ellipse.
    """
    values = np.exp(_log_left(*law, middles[:, None] + half * NODES) - peak)
    error = np.exp(_log_most(*law, middles, half) - peak) * RHO ** (2 - 2 * len(NODES)) * 64 / 15
    sums = np.maximum(0.0, values @ WEIGHTS * (1 - 1e-12) - error / (1 - RHO**-2))
    total = float(np.sum(sums)) * half / np.sqrt(2 * np.pi)
    return float(np.log(total)) if total > 0 else -np.inf


def _log_left(rate: float, shift: float, order: float | np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""Return the logarithm of the integrand at :math:`x = D/2 - y`, y > 0, over phi(0); it is concave in y."""
    log_t = np.log1p(rate * np.expm1(-shift * y))
    rise = (1 - order) * log_t
    return np.log(-np.expm1(order * log_t)) + rise + np.log(-np.expm1(-rise)) - (y - shift / 2) ** 2 / 2


def _log_most(rate: float, shift: float, order: float, middles: np.ndarray, half: float) -> np.ndarray:
    """Return the logarithm of a bound on the integrand's modulus on the ellipse around each panel."""
    low, high, off = middles - WIDE * half, middles + WIDE * half, TALL * half
    farthest = np.maximum(np.abs(low), np.abs(high)) + off
    moved = np.minimum(shift * farthest * np.exp(shift * np.maximum(-low, 0)), 1 + np.exp(-shift * low))
    largest = np.log1p(rate * np.expm1(-shift * np.minimum(low, 0)))
    smallest = np.log1p(rate * np.expm1(-shift * np.maximum(high, 0))) + np.log(np.cos(shift * off / 2))
    away = np.maximum(0.0, np.maximum(low - shift / 2, shift / 2 - high))
    size = np.log(order * (order - 1)) + 2 * np.log(rate * moved) + (order - 1) * largest - order * smallest
    return size + off**2 / 2 - away**2 / 2


def _windows(rate: float, shift: float, orders: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where each log-concave integrand is within ``DROP`` of its peak, and the logarithms of the peaks."""
    low, high = np.zeros(len(orders)), shift * orders + 40.0
    for _ in range(HALVINGS):
        third = (high - low) / 3
        rising = _log_left(rate, shift, orders, low + third) < _log_left(rate, shift, orders, high - third)
        low, high = np.where(rising, low + third, low), np.where(rising, high, high - third)
    tops = (low + high) / 2
    peaks = _log_left(rate, shift, orders, tops)
    ends = []
    for farthest in (np.zeros(len(orders)), tops + 60.0):
        inside, outside = tops, farthest
        for _ in range(HALVINGS):
            middle = (inside + outside) / 2
            without = _log_left(rate, shift, orders, middle) < peaks - DROP
            inside, outside = np.where(without, inside, middle), np.where(without, middle, outside)
        ends.append(outside)
    return ends[0], ends[1], peaks
