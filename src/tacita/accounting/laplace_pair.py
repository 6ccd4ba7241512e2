"""The dominating pair of Laplace noise.

Place: dominating_pairs -> [accounting.laplace_pair] -> events.laplace.
Proof: docs/derivations/accounting.md, section 8.
"""

import math
from dataclasses import dataclass

import numpy as np

from tacita.accounting._loss_law import UNIT, Intervals, LossLaw, connected
from tacita.accounting.dominating_pairs import SAMPLE, DominatingPair, Ends, Sample, add_loss, points_of


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
        add_loss(masses, -last, interval, (self.epsilon, 0.5))
        add_loss(masses, -last, interval, (-self.epsilon, math.exp(-self.epsilon) / 2))
        law = LossLaw(interval, -last, masses, infinity, 8 * UNIT * self.epsilon)
        return law.within(*points_of(interval, ends))

    def reach(self, tail: float, *, swapped: bool) -> Ends:
        return -self.epsilon, self.epsilon

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        inner = np.linspace(-self.epsilon, self.epsilon, SAMPLE)
        density = np.exp((inner - self.epsilon) / 2) * (self.epsilon / (SAMPLE - 1) / 2)
        ends = np.array([0.5, math.exp(-self.epsilon) / 2])
        return np.append(inner, [self.epsilon, -self.epsilon]), np.append(density, ends)
