r"""A dominating pair that is one of two, at random, and shows which.

Place: _line_pairs -> [accounting._mixed_pair] -> events of sampled sums.
Proof: docs/derivations/truncation.md, sections 1 and 4. Its law is the mixture of both laws.
"""

from dataclasses import dataclass

import numpy as np

from tacita.accounting._line_pairs import EnvelopePair, LinePair
from tacita.accounting._loss_law import UNIT, LossLaw, Stretch
from tacita.accounting._pairs import Sample, SampledPair

ROUNDED_UP = 1 + 8 * UNIT  # of masses that are mixed


@dataclass(frozen=True)
class MixedPair(SampledPair):
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

    def law(self, interval: float, tail: float, *, swapped: bool) -> LossLaw:
        least, most = self.reach(tail, swapped=swapped)
        first = int(np.floor(least / interval))
        return self.stretch(interval, first, max(first + 1, int(np.ceil(most / interval))), swapped=swapped).whole()

    def reach(self, tail: float, *, swapped: bool) -> tuple[float, float]:
        ends = [pair.reach(part, swapped=swapped) for pair, _, part in self._parts(tail)]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def stretch(self, interval: float, first: int, last: int, *, swapped: bool) -> Stretch:
        found = [(pair.stretch(interval, first, last, swapped=swapped), share) for pair, share, _ in self._parts(1.0)]
        masses, below, above = (
            sum(share * ROUNDED_UP * getattr(one, name) for one, share in found)
            for name in ("masses", "below", "above")
        )
        return Stretch(interval, first, np.asarray(masses), below, above, max(one.loss_error for one, _ in found))

    def span(self, tail: float, *, swapped: bool) -> float:
        low, high = self.reach(tail, swapped=swapped)
        return max(high - low, *(pair.span(part, swapped=swapped) for pair, _, part in self._parts(tail)))

    def sample(self, tail: float, *, swapped: bool) -> Sample:
        found = [(*pair.sample(part, swapped=swapped), share) for pair, share, part in self._parts(tail)]
        losses = np.concatenate([losses for losses, _, _ in found])
        return losses, np.concatenate([share * chances / chances.sum() for _, chances, share in found])

    def _parts(self, tail: float) -> list[tuple[LinePair | EnvelopePair, float, float]]:
        """Return each pair, its chance, and how much of its own mass is as rare as ``tail``."""
        both = ((self.usual, 1 - self.chance), (self.rare, self.chance))
        return [(pair, share, min(0.5, tail / share)) for pair, share in both if share > 0]
