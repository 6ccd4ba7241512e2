r"""Where, and how finely, the integrand of a Rényi moment is summed, so that what is left out has a proved bound.

Place: the ground of accounting; numbers in, numbers out. The integrand is :math:`e^{\psi_a}`, :math:`\psi_a = a A +
(1-a) B - x^2/2`, A and B the logarithms of the two mixtures' ratios to N(0, 1): convex functions of x. So on a cell A
lies below its chord and B above its tangent, and :math:`\psi_a` below a parabola, whose mass outside a window around
its peak is known. Proof: docs/derivations/accounting.md, "Arithmetic".
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

COARSE = 2.0  # a cell is halved while the bound of it may be so far above the integrand, in the logarithm
MOST_ROUNDS = 80
ANGLES = np.linspace(0.01, 0.995, 80)  # shares of the widest strip in which the integrand is analytic
WIDEST = 40.0  # half-width of a strip; the best one is narrower
MARGIN = 12  # standard deviations beyond the outermost mode at which the infinite cells begin
LEFT_OUT = 5.0  # times e^level: at most what one cell leaves out, for steps of at most 1


@dataclass(frozen=True)
class Mixture:
    """A mixture of N(shift, 1)."""

    shifts: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def spread(self) -> float:
        """The distance between the outermost shifts."""
        return max(self.shifts) - min(self.shifts)

    def log_ratio(self, x: np.ndarray) -> np.ndarray:
        """Return the logarithm of the density over that of N(0, 1), which is convex in ``x``."""
        total = None
        for shift, weight in zip(self.shifts, self.weights, strict=True):
            if weight > 0:
                part = np.log(weight) + shift * (x - shift / 2)
                total = part if total is None else np.logaddexp(total, part)
        assert total is not None, "a mixture has a component"
        return total

    def slope(self, x: np.ndarray) -> np.ndarray:
        """Return the derivative of :meth:`log_ratio`, which is the mean shift given ``x``."""
        s, w = np.array(self.shifts), np.array(self.weights)
        s, w = s[w > 0], w[w > 0]
        logs = np.log(w) + s * (x[..., None] - s / 2)
        return np.sum(s * np.exp(logs - logsumexp(logs, axis=-1, keepdims=True)), axis=-1)


@dataclass(frozen=True)
class Cells:
    """Cells that cover the line; on each, log-ratio of ``upper`` <= a line, and that of ``lower`` >= another."""

    starts: np.ndarray  # (cells,); -inf first
    stops: np.ndarray  # (cells,); inf last
    above: tuple[np.ndarray, np.ndarray]  # the line's value at 0, and its slope
    below: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Windows:
    """Intervals outside of which the integrands stay below a level, by order.

    Attributes:
        peaks: For each order, a value that the logarithm of the integrand takes.
        order: Index of each interval's order.
        starts: Of the intervals.
        stops: Of the intervals.
        left_out: At most what is outside, for each order, over e^peak.
    """

    peaks: np.ndarray
    order: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    left_out: float


def cells(upper: Mixture, lower: Mixture, most: float) -> Cells:
    """Return cells that are fine enough for every order up to ``most``."""
    modes = [a * x - (a - 1) * y for a in (1.0, most) for x in upper.shifts for y in lower.shifts]
    edges = np.array([min(*modes, *lower.shifts) - MARGIN, max(*modes, *lower.shifts) + MARGIN])
    for _ in range(MOST_ROUNDS):
        bend = most * np.diff(upper.slope(edges)) + (most - 1) * np.diff(lower.slope(edges))
        coarse = bend * np.diff(edges) > 4 * COARSE
        if not coarse.any():
            break
        edges = np.sort(np.concatenate([edges, (edges[:-1] + edges[1:])[coarse] / 2]))
    return _bounded(upper, lower, edges)


def _bounded(upper: Mixture, lower: Mixture, edges: np.ndarray) -> Cells:
    values = upper.log_ratio(edges)
    chords = np.concatenate([[min(upper.shifts)], np.diff(values) / np.diff(edges), [max(upper.shifts)]])
    # a chord that rounding has made too flat at one end is lifted to both ends' values
    starts, stops = np.concatenate([[-np.inf], edges]), np.concatenate([edges, [np.inf]])
    left = np.concatenate([[values[0] - chords[0] * edges[0]], values - chords[1:] * edges])
    right = np.concatenate([values - chords[:-1] * edges, [values[-1] - chords[-1] * edges[-1]]])
    touch = np.concatenate([[edges[0]], (edges[:-1] + edges[1:]) / 2, [edges[-1]]])
    tangent = lower.slope(touch)
    return Cells(starts, stops, (np.maximum(left, right), chords), (lower.log_ratio(touch) - tangent * touch, tangent))


def windows(upper: Mixture, lower: Mixture, orders: np.ndarray, drop: float, level: float | None = None) -> Windows:
    """Return the windows of each order, down to ``drop`` below its peak, or below ``level`` if that is given."""
    on = cells(upper, lower, float(orders.max()))
    a = orders[:, None]
    tilt = a * on.above[1] - (a - 1) * on.below[1]  # the parabola is lift + tilt x - x^2/2
    lift = a * on.above[0] - (a - 1) * on.below[0]
    top = np.clip(tilt, on.starts, on.stops)
    peaks = np.max(log_integrand(upper, lower, a, top), axis=1)
    floor = (peaks if level is None else np.full(len(orders), level)) - drop
    reach = np.sqrt(np.maximum(0.0, 2 * (lift + tilt * tilt / 2 - floor[:, None])))
    starts, stops = np.maximum(on.starts, tilt - reach), np.minimum(on.stops, tilt + reach)
    order, cell = np.nonzero((lift + tilt * top - top * top / 2 >= floor[:, None]) & (starts < stops))
    left_out = LEFT_OUT * len(on.starts) * float(np.exp(-drop))
    return Windows(peaks, order, starts[order, cell], stops[order, cell], left_out)


def log_integrand(upper: Mixture, lower: Mixture, order: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the logarithm of p^a q^(1-a) over the density of N(0, 1) at 0."""
    return order * upper.log_ratio(x) + (1 - order) * lower.log_ratio(x) - x * x / 2


def steps(upper: Mixture, lower: Mixture, orders: np.ndarray, digits: float) -> np.ndarray:
    r"""Return a step h for each order with which the trapezoidal rule has a relative error <= 2.1 exp(-``digits``).

    In the strip :math:`|\operatorname{Im} z| \le \theta` the integrand is analytic and its modulus at most
    :math:`e^{\theta^2/2} \cos(\theta w/2)^{1-a}` times its value on the line, w the spread of ``lower``.
    """
    widest = min(WIDEST, np.pi / max(upper.spread, lower.spread, 1e-300))
    angles = ANGLES * widest
    growth = angles**2 / 2 - np.outer(orders - 1, np.log(np.cos(angles * min(lower.spread, np.pi / angles[-1]) / 2)))
    return np.minimum(1.0, np.max(2 * np.pi * angles / (digits + growth), axis=1))
