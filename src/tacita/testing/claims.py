r"""Claims: epsilon at delta as a ledger states it, and the trade-off curve that follows.

Every :math:`(\epsilon, \delta(\epsilon))` of a ledger is a claim of its own. Together they say that no event of rate
:math:`a` in one world has a rate above :math:`\min_\epsilon (\delta(\epsilon) + e^\epsilon a)` in the other.
"""

import math
from dataclasses import dataclass

import numpy as np

from tacita import _validate
from tacita.ledger import Ledger

FEW = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)  # multiples of epsilon at which delta is computed
MANY = (*np.linspace(0, 1, 17).tolist(), 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0)  # enough for a smooth curve


@dataclass(frozen=True)
class Claim:
    """An epsilon at a delta, and further points of the same guarantee.

    Attributes:
        epsilon: The claimed epsilon at ``delta``; ``inf`` claims nothing.
        delta: In (0, 1).
        points: (epsilon, delta) pairs of the guarantee, this one included.

    Example:
        >>> claim = Claim(1.0, 0.01, ((0.0, 0.3), (1.0, 0.01)))
        >>> claim.allowed(np.array([0.0, 0.1, 0.9])).round(4).tolist()
        [0.01, 0.2818, 1.0]
    """

    epsilon: float
    delta: float
    points: tuple[tuple[float, float], ...]

    @staticmethod
    def of(ledger: Ledger, delta: float, multiples: tuple[float, ...] = FEW) -> "Claim":
        """Return the claim of ``ledger`` for its plan.

        Args:
            ledger: A ledger whose sessions are registered.
            delta: In (0, 1).
            multiples: Multiples of epsilon at ``delta`` at which the trade-off curve is computed.
        """
        epsilon = ledger.epsilon(_validate.delta("delta", delta))
        if not math.isfinite(epsilon):
            return Claim(epsilon, delta, ())
        others = {multiple * epsilon for multiple in multiples if multiple != 1}
        points = [(at, ledger.delta(at)) for at in sorted(others)]
        return Claim(epsilon, delta, tuple(sorted([*points, (epsilon, delta)])))

    def allowed(self, rate: np.ndarray) -> np.ndarray:
        """Return the largest rate in one world of an event that has this rate in the other."""
        rate = np.asarray(rate, float)
        limits = [np.minimum(1.0, delta + math.exp(epsilon) * rate) for epsilon, delta in self.points if epsilon < 700]
        return np.min([np.ones_like(rate), *limits], axis=0)

    def broken_at(self, rate: float, false_rate: float) -> tuple[float, float, float] | None:
        """Return the (epsilon, claimed delta, measured delta) that these limits violate most; ``None`` if none."""
        shown = [
            (epsilon, delta, rate - math.exp(epsilon) * false_rate) for epsilon, delta in self.points if epsilon < 700
        ]
        worst = max(shown, key=lambda point: point[2] - point[1], default=None)
        return worst if worst is not None and worst[2] > worst[1] else None
