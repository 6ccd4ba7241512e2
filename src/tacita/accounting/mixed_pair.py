r"""A dominating pair that is one of two, at random, and shows which.

Place: line_pairs -> [accounting.mixed_pair] -> events of sampled sums.
Proof: docs/derivations/truncation.md, sections 1 and 4. Its law is the mixture of both laws.
"""

from dataclasses import dataclass

import numpy as np

from tacita.accounting._loss_law import UNIT
from tacita.accounting.dominating_pairs import ContinuousPair, Ends, PointMasses, Sample
from tacita.accounting.line_pairs import EnvelopePair, LinePair

ROUNDED_UP = 1 + 8 * UNIT  # of masses that are mixed


@dataclass(frozen=True)
class MixedPair(ContinuousPair):
    """``rare`` with a known chance, else ``usual``.

    Attributes:
        usual: A pair.
        rare: One that has every divergence of ``usual`` at least.
        chance: In [0, 1], of ``rare``; a larger one is a bound as well.
    """

    usual: LinePair
    rare: LinePair | EnvelopePair
    chance: float

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        return self.usual.symmetric and self.rare.symmetric

    def at(self, points: np.ndarray, *, swapped: bool) -> PointMasses:
        found = [(*pair.at(points, swapped=swapped), share * ROUNDED_UP) for pair, share, _ in self._parts(1.0)]
        masses = np.sum([share * masses for masses, _, _, share in found], axis=0)
        infinity = sum(share * infinity for _, infinity, _, share in found)
        return masses, infinity, max(error for _, _, error, _ in found)

    def reach(self, tail: float, *, swapped: bool) -> Ends:
        ends = [pair.reach(part, swapped=swapped) for pair, _, part in self._parts(tail)]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        found = [(*pair.sample(part, swapped=swapped), share) for pair, share, part in self._parts(tail)]
        losses = np.concatenate([losses for losses, _, _ in found])
        return losses, np.concatenate([share * chances / chances.sum() for _, chances, share in found])

    def _parts(self, tail: float) -> list[tuple[LinePair | EnvelopePair, float, float]]:
        """Return each pair, its chance, and how much of its own mass is as rare as ``tail``."""
        both = ((self.usual, 1 - self.chance), (self.rare, self.chance))
        return [(pair, share, min(0.5, tail / share)) for pair, share in both if share > 0]
