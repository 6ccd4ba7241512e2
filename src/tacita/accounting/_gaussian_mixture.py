r"""A Gaussian query whose mu is random and shown: the mean of Gaussian deltas, at one epsilon or on a grid.

Place: the ground of accounting; numbers in, numbers out. Where there are many values of mu, they are moved to fewer
nodes, mean and all: along a chord of :math:`\delta(\epsilon; \mu)`, which lies above it where it is convex in mu and by
at most a share :math:`\kappa` below it elsewhere. Proof: docs/derivations/dicesgd.md, "Bounded residuals".
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri

from tacita.accounting._loss_law import ROUNDED_UP, UNIT, Intervals, connected, normal_masses
from tacita.accounting.dominating_pairs import LEAST_TAIL, SAMPLE, ContinuousPair, Ends, PointMasses, Sample
from tacita.accounting.gaussian import gaussian_deltas

NODES_FROM = 300  # so many values stay as they are
NODE_STEP = 2.5e-4  # between nodes: of mu, or of 1 if that is less
SAG = 0.3 * NODE_STEP**2  # the share kappa
AT_ONCE = 2**21  # deltas in memory


def mixed_deltas(epsilons: np.ndarray, chances: np.ndarray, mus: np.ndarray) -> np.ndarray:
    """Return the mean of the Gaussian deltas at each epsilon, of either sign; chances > 0, mus >= 0 or infinite."""
    size = np.abs(epsilons)
    portion = max(1, AT_ONCE // len(mus))
    found = [chances @ gaussian_deltas(size[i : i + portion], mus[:, None]) for i in range(0, len(size), portion)]
    above = np.concatenate(found)
    turned = float(np.sum(chances)) * -np.expm1(-size) + np.exp(-size) * above  # 1 - g + g H_{1/g}
    return np.where(epsilons < 0, turned, above)


def on_fewer_nodes(chances: np.ndarray, mus: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replace many increasing ``mus`` by few whose mean delta is at least that of all of them, at every epsilon."""
    nodes = [0]
    for i in range(1, len(mus)):
        if i == len(mus) - 1 or mus[i + 1] - mus[nodes[-1]] > NODE_STEP * min(1.0, mus[nodes[-1]]):
            nodes.append(i)
    if len(mus) <= NODES_FROM or not np.isfinite(mus[-1]):
        return chances, mus
    at = mus[nodes]
    after = np.clip(np.searchsorted(at, mus), 1, len(at) - 1)
    share = np.clip((mus - at[after - 1]) / (at[after] - at[after - 1]), 0.0, 1.0)
    moved = np.bincount(after - 1, chances * (1 - share), len(at)) + np.bincount(after, chances * share, len(at))
    return moved * (1 + SAG), at


@dataclass(frozen=True)
class ShownGaussianPair(ContinuousPair):
    """A number is shown, then a Gaussian query of a ``mu`` that it names (section 2; bounded residuals).

    Attributes:
        mus: >= 0 and finite.
        chances: Of each, > 0.
        failure: Chance of an infinite loss beside them; all add up to 1.
    """

    mus: tuple[float, ...]
    chances: tuple[float, ...]
    failure: float = 0.0

    def at(self, points: np.ndarray, *, swapped: bool) -> PointMasses:
        mus, chances = self._arrays
        between = np.zeros((4, len(points)))
        below = 0.0
        for mu, chance in zip(mus[mus > 0].tolist(), chances[mus > 0].tolist(), strict=True):
            edges = np.append(points / mu + mu / 2, np.inf)
            for i, shift in enumerate((mu, 0.0)):
                found, error = normal_masses(edges - shift)
                between[i] += chance * found
                between[i + 2] += chance * (error + 4 * UNIT * found)
            below += chance * float(ndtr(edges[0] - mu)) * ROUNDED_UP
        upper, lower, *errors = between
        more = len(mus) * UNIT  # of the sums over mus
        intervals = Intervals.of(upper, lower, errors[0] + more * upper, errors[1] + more * lower)
        rounding = 8 * UNIT * (float(np.abs(points).max()) + 2 * float(mus.max()) ** 2)
        masses, infinity = connected(points, intervals, below)
        masses[np.searchsorted(points, 0.0)] += float(chances[mus == 0].sum())
        return masses, infinity + self.failure * ROUNDED_UP, rounding

    def reach(self, tail: float, *, swapped: bool) -> Ends:
        mus, far = self._arrays[0], -float(ndtri(max(LEAST_TAIL, min(0.5, tail))))
        return float((mus * (mus / 2 - far)).min()), float((mus * (mus / 2 + far)).max())

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        (mus, chances), far = self._arrays, -float(ndtri(max(LEAST_TAIL, min(0.5, tail))))
        z = np.linspace(-far, far, max(SAMPLE // 20, SAMPLE // len(mus)))
        losses = mus[:, None] * (mus[:, None] / 2 + z)
        return losses.ravel(), (chances[:, None] * np.exp(-z * z / 2)).ravel()

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.mus), np.array(self.chances)
