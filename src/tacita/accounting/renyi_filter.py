r"""A Rényi filter: sessions whose settings depend on earlier releases, under one cap fixed beforehand.

Each session's Rényi divergence of order :math:`\alpha` is fixed when it is registered. If the divergences of all
sessions add up to at most a budget :math:`B`, whatever was chosen, then all sessions together are
:math:`(\alpha, B)`-Rényi private (Feldman and Zrnic 2021, https://arxiv.org/abs/2008.11193; for sessions that
interleave, Haney et al. 2023, https://arxiv.org/abs/2309.05901). Epsilon and delta follow by Canonne, Kamath and
Steinke (2020), Proposition 12, https://arxiv.org/abs/2004.00010. The guarantee is that of the budget, not of the sum so
far.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacita import _validate
from tacita.accounting.events import Spend
from tacita.errors import UnsupportedEventError


@dataclass(frozen=True, kw_only=True)
class RenyiFilter:
    r"""The filter of one order for a cap (``max_epsilon``, ``max_delta``).

    Attributes:
        order: :math:`\alpha > 1`. Larger ones suit small budgets; near :math:`1 + 2\log(1/\delta)/\epsilon` is good.
        max_epsilon: The cap, finite.
        max_delta: The delta of the cap.

    Raises:
        ValueError: The order is so small that the cap leaves no budget.

    Example:
        >>> rule = RenyiFilter(order=8.0, max_epsilon=3.0, max_delta=1e-5)
        >>> round(rule.budget, 4), round(rule.epsilon(1e-5), 4)
        (1.7859, 3.0)
    """

    order: float
    max_epsilon: float
    max_delta: float

    whole_curve: ClassVar[bool] = False  # whether delta at every epsilon is no looser than it has to be

    def __post_init__(self):
        if not (1 < self.order < math.inf):
            raise ValueError(f"filter_order must be a finite number > 1, got {self.order!r}.")
        _validate.positive("max_epsilon", self.max_epsilon)
        _validate.delta("max_delta", self.max_delta)
        if not self.budget > 0:
            raise ValueError(
                f"filter_order {self.order!r} leaves no budget at max_epsilon {self.max_epsilon!r}, max_delta "
                f"{self.max_delta!r}. A larger order does; try {2 + 2 * self._log_odds / self.max_epsilon:.3g}."
            )

    @property
    def _log_odds(self) -> float:
        return math.log(1 / self.max_delta)

    def _price(self, delta: float) -> float:
        """Return the epsilon that the conversion formula gives a Rényi divergence of 0."""
        return math.log1p(-1 / self.order) - (math.log(delta) + math.log(self.order)) / (self.order - 1)

    @property
    def name(self) -> str:
        """The filter's name, as the statement prints it."""
        return f"Rényi filter of order {self.order:g}"

    @property
    def budget(self) -> float:
        """The largest sum of divergences that is allowed."""
        return self.max_epsilon - self._price(self.max_delta)

    def divergence(self, spends: Sequence[Spend]) -> float:
        """Return the sum of the sessions' Rényi divergences at :attr:`order`.

        Raises:
            UnsupportedEventError: An event has no Rényi curve, or adds a delta of its own.
        """
        total = 0.0
        for spend in spends:
            spent = spend.guarantee
            if spent.rdp is None or spent.additive_delta > 0 or spent.coupling_gap > 0:
                raise UnsupportedEventError(
                    f"{type(spend.event).__name__} has no Rényi curve and cannot pass a filter; register it in a "
                    "ledger with shares (register_share) instead of filter_order."
                )
            divergence = float(spent.rdp(np.array([float(self.order)]))[0])
            total += math.inf if np.isnan(divergence) else divergence
        return total

    def epsilon(self, delta: float, divergence: float | None = None) -> float:
        """Return epsilon at ``delta`` for a divergence, by default the whole budget."""
        divergence = self.budget if divergence is None else divergence
        return max(0.0, divergence + self._price(_validate.delta("delta", delta))) if divergence > 0 else 0.0

    def delta(self, epsilon: float) -> float:
        """Return delta at ``epsilon`` >= 0 for the whole budget."""
        exponent = (self.order - 1) * (self.budget + math.log1p(-1 / self.order) - epsilon) - math.log(self.order)
        return math.exp(min(0.0, exponent))
