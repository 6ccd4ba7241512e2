r"""Rényi divergences between one-dimensional mixtures of unit Gaussians, at any orders above 1, rounded up.

Place: the ground of accounting; numbers in, numbers out. The trapezoidal rule, whose error for a function that is
analytic in a strip is proved (Trefethen and Weideman 2014, Theorem 5.1, https://doi.org/10.1137/130932132), over
windows outside of which a proved bound is added (:mod:`tacita.accounting._renyi_grid`), all orders of a curve at once.

A moment near 1 hides its logarithm below the rounding of 1. There the integral of the moment's *excess* is taken, whose
integrand is nowhere negative, so what is small stays accurate. Proof: docs/derivations/accounting.md, "Arithmetic".
"""

import numpy as np

from tacita.accounting._renyi_grid import Mixture, log_integrand, steps, windows

__all__ = ["Mixture", "log_moments", "mixed_divergences", "renyi_divergences"]

ROUNDED_UP = 1e-9
ROUNDING = 2.0**-49  # of one exponent, relative to the numbers it is made of
LEAST = 1e-100  # stands for every smaller excess of a moment
SMALL = 1e-2  # a log-moment below is computed from its excess
DROP = 50.0  # below its peak an integrand is left out, for at most a relative 1e-18
DIGITS = 34.0  # the trapezoidal rule's relative error is below 2.1 exp(-34), 4e-15
SERIES_BELOW = 0.1  # of order times relative difference: there a Taylor series replaces the difference of powers
TERMS = 12  # of it
MOST_POINTS = 400_000  # of one order; beyond: no bound at this order (infinity is always one)
MOST_LOST = 1e-2  # of a log-moment, to rounding; beyond, windows would be blurred: no bound
AT_ONCE = 2_000_000  # points in memory


def renyi_divergences(upper: Mixture, lower: Mixture, orders: tuple[float, ...]) -> np.ndarray:
    r"""Divergences of ``upper`` from ``lower``: :math:`\frac{1}{a-1} \log \int p^a q^{1-a}` for each order a > 1."""
    a = np.asarray(orders, dtype=float)
    return log_moments(upper, lower, a) / (a - 1) * (1 + ROUNDED_UP)


def mixed_divergences(
    divergences: tuple[np.ndarray, np.ndarray], chances: tuple[float, float], orders: tuple[float, ...]
) -> np.ndarray:
    """Divergences of a pair that is one of two, of these divergences, with these chances, and shows which."""
    a = np.asarray(orders, dtype=float) - 1
    logs = [a * each for each in divergences]
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        excess = sum(share * np.expm1(each) for share, each in zip(chances, logs, strict=True) if share > 0)
        large = np.logaddexp(*(np.log(share) + each for share, each in zip(chances, logs, strict=True)))
        return np.where(np.maximum(*logs) < 1, np.log1p(excess), large) / a * (1 + ROUNDED_UP)


def log_moments(upper: Mixture, lower: Mixture, orders: np.ndarray) -> np.ndarray:
    """Return the log of the integral of p^a q^(1-a) for each order a > 1, rounded up; 0 for equal mixtures alone."""
    if upper == lower or not len(orders):
        return np.zeros(len(orders))
    found = _direct(upper, lower, orders)
    sizes = np.floor(np.log2(orders) / 2)
    for size in np.unique(sizes):  # one step serves orders of about one size
        small = (found < SMALL) & (sizes == size)
        if small.any():
            excesses = _excesses(upper, lower, orders[small])
            found[small] = np.where(np.isfinite(excesses), np.log1p(excesses), found[small])
    return found


def above_line(x: np.ndarray) -> np.ndarray:
    """Return exp(x) - 1 - x, accurate to a relative 1e-12 where it is small; it overflows to infinity."""
    x = np.asarray(x, dtype=float)
    series = np.zeros_like(x)
    for k in range(TERMS, 1, -1):
        series = (1 + series) * np.where(np.abs(x) < SERIES_BELOW, x, 0.0) / (k + 1)
    with np.errstate(over="ignore"):
        return np.where(np.abs(x) < SERIES_BELOW, x * x / 2 * (1 + series), np.expm1(x) - x)


# The moments as they stand, each relative to the peak of its integrand.


def _direct(upper: Mixture, lower: Mixture, orders: np.ndarray) -> np.ndarray:
    on = windows(upper, lower, orders, DROP)
    step = steps(upper, lower, orders, DIGITS)
    first, stop = (np.ceil(ends / step[on.order]) for ends in (on.starts, on.stops))
    points = np.bincount(on.order, stop - first, len(orders))
    found = np.full(len(orders), np.inf)
    for some in _portions(np.flatnonzero(points <= MOST_POINTS), points):
        mine = np.isin(on.order, some)
        index, x = _points(on.order[mine], first[mine], stop[mine], step)
        values = np.exp(log_integrand(upper, lower, orders[index], x) - on.peaks[index])
        sums = np.bincount(index, values, len(orders)) * step + on.left_out
        farthest = np.maximum.reduceat(np.abs(x), np.searchsorted(index, some))
        lost = _lost(upper, lower, orders[some], farthest) + 3 * np.exp(-DIGITS)
        whole = on.peaks[some] + np.log(sums[some] / np.sqrt(2 * np.pi)) + lost
        found[some] = np.where(lost < MOST_LOST, whole, np.inf)
    return found


def _portions(orders: np.ndarray, points: np.ndarray) -> list[np.ndarray]:
    """Yield the orders in portions of about ``AT_ONCE`` points."""
    ends = np.flatnonzero(np.diff(np.cumsum(points[orders]) // AT_ONCE)) + 1
    return [part for part in np.split(orders, ends) if len(part)]


def _points(order: np.ndarray, first: np.ndarray, stop: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all multiples of the steps in the intervals, with the index of their order."""
    counts = (stop - first).astype(int)
    index = np.repeat(order, counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return index, (np.repeat(first, counts) + within) * step[index]


def _lost(upper: Mixture, lower: Mixture, orders: np.ndarray, farthest: np.ndarray) -> np.ndarray:
    """Return how much the rounding of exponents may take off a log-moment."""
    size = sum(
        max(map(abs, mixture.shifts)) * (farthest + max(map(abs, mixture.shifts)))
        + max(-float(np.log(weight)) for weight in mixture.weights if weight > 0)
        for mixture in (upper, lower)
    )
    return ROUNDING * (orders * (1 + size) + farthest**2)


# Moments near 1, by their excess.


def _excesses(upper: Mixture, lower: Mixture, orders: np.ndarray) -> np.ndarray:
    r"""Return moments minus 1, rounded up: integrals of :math:`q\,((1+u)^a - 1 - a u)`, :math:`u = p/q - 1`.

    The trapezoidal rule's error is relative to the three integrals that an excess is made of, which are near 1, a and
    a - 1. So it is repeated with finer steps until its bound is small beside the excess itself.
    """
    digits, most = 2 * DIGITS, 2 * float(orders.max()) + 1
    while True:
        found, bound = _summed_excesses(upper, lower, orders, digits, most)
        if np.all(bound <= 1e-12 * np.maximum(found, LEAST)):
            return np.maximum(found + bound, LEAST)
        digits += max(1.0, float(np.log(most / np.maximum(found.min(), LEAST))) + DIGITS - digits)


def _summed_excesses(
    upper: Mixture, lower: Mixture, orders: np.ndarray, digits: float, most: float
) -> tuple[np.ndarray, float]:
    """Return the sums, and bounds on what they miss."""
    drop = digits + np.log(most)
    step = float(steps(upper, lower, np.array([orders.max()]), digits)[0])
    on = windows(upper, lower, orders, float(drop), level=0.0)
    reach = np.sqrt(2 * drop)
    ends = min([*on.starts, min(lower.shifts) - reach]), max([*on.stops, max(lower.shifts) + reach])
    count = (ends[1] - ends[0]) / step + 2
    if not count <= MOST_POINTS:
        return np.full(len(orders), np.inf), 0.0
    x = np.arange(np.ceil(ends[0] / step), np.floor(ends[1] / step) + 1) * step
    rows = max(1, AT_ONCE // len(x))
    parts = [_excess(upper, lower, orders[i : i + rows], x) for i in range(0, len(orders), rows)]
    lost = _lost(upper, lower, orders, np.full(len(orders), np.abs(x).max()))
    found = np.concatenate(parts) * step / np.sqrt(2 * np.pi) * (1 + lost)
    return found, 3 * most * float(np.exp(-digits)) + on.left_out + 5 * most * float(np.exp(-drop))


def _excess(upper: Mixture, lower: Mixture, orders: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the sums over ``x`` of the integrands, times the square root of two pi."""
    a = orders[:, None]
    log_p, log_q = upper.log_ratio(x), lower.log_ratio(x)
    u = _relative_difference(upper, lower, x, log_q)
    near = (np.abs(log_p - log_q) <= 1) & (np.abs(u) < 2)  # not so where u has overflowed
    u = np.where(near, u, 0.0)
    loss = np.where(near, np.log1p(u), log_p - log_q)
    p, q = np.exp(log_p - x * x / 2), np.exp(log_q - x * x / 2)
    rise = (a - 1) * loss
    gain = np.where(rise > 1, np.exp(log_p - x * x / 2 + np.maximum(rise, 1)) - p, p * np.expm1(np.minimum(rise, 1)))
    terms = gain - (a - 1) * np.where(near, q * u, p - q)
    in_series = near & (a * np.abs(u) < SERIES_BELOW)
    terms = np.where(in_series, q * _power_above_line(a, np.where(in_series, u, 0.0)), terms)
    return np.sum(terms, axis=1)


def _relative_difference(upper: Mixture, lower: Mixture, x: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """Return p/q - 1 without cancellation: the sum of differences from N(0, 1), by how much the weights differ."""
    weights: dict[float, float] = {}
    for mixture, sign in ((upper, 1.0), (lower, -1.0)):
        for shift, weight in zip(mixture.shifts, mixture.weights, strict=True):
            weights[shift] = weights.get(shift, 0.0) + sign * weight
    with np.errstate(over="ignore", invalid="ignore"):  # far off, where the caller has no use for it
        return np.sum([c * np.expm1(s * (x - s / 2)) * np.exp(-log_q) for s, c in weights.items() if c], axis=0)


def _power_above_line(order: np.ndarray, u: np.ndarray) -> np.ndarray:
    """(1 + u)^a - 1 - a u by Taylor's series, for a |u| below 0.1: each term is below a tenth of the one before."""
    series = np.zeros_like(u)
    for k in range(TERMS, 1, -1):
        series = (1 + series) * (order - k) * u / (k + 1)
    return order * (order - 1) / 2 * u * u * (1 + series)
