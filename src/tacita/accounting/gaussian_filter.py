r"""A Gaussian filter: Gaussian sessions whose noise depends on earlier releases, under one cap fixed beforehand.

A session that is dominated by one Gaussian query of :math:`\mu_i` is charged :math:`\mu_i^2/2`, its Kullback-Leibler
divergence. If the sum is at most :math:`M^2/2`, whatever was chosen, all sessions together are dominated by one
Gaussian query of :math:`M`: nothing is lost against sessions that were fixed beforehand (Smith and Thakurta 2022,
https://arxiv.org/abs/2210.17520; Koskela, Tobaben and Honkela 2022, https://arxiv.org/abs/2209.15596). Proof:
docs/derivations/composition.md, section 5. The guarantee is that of the budget, not of the sum so far.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tacita import _validate
from tacita.accounting.events import Spend
from tacita.accounting.gaussian import delta_above, gaussian_epsilon, gaussian_mu
from tacita.errors import UnsupportedEventError


@dataclass(frozen=True, kw_only=True)
class GaussianFilter:
    """The filter of Gaussian sessions for a cap (``max_epsilon``, ``max_delta``).

    Attributes:
        max_epsilon: The cap, finite.
        max_delta: The delta of the cap.

    Example:
        >>> rule = GaussianFilter(max_epsilon=3.0, max_delta=1e-5)
        >>> round(rule.mu, 4), round(rule.epsilon(1e-5), 4)
        (0.7191, 3.0)
    """

    max_epsilon: float
    max_delta: float

    whole_curve: ClassVar[bool] = True  # whether delta at every epsilon is no looser than it has to be

    def __post_init__(self):
        _validate.positive("max_epsilon", self.max_epsilon)
        _validate.delta("max_delta", self.max_delta)

    @property
    def name(self) -> str:
        """The filter's name, as the statement prints it."""
        return "Gaussian filter"

    @property
    def mu(self) -> float:
        """``mu`` of the one Gaussian query that all sessions together may be."""
        return gaussian_mu(self.max_epsilon, self.max_delta)

    @property
    def budget(self) -> float:
        """The largest sum of divergences that is allowed."""
        return self.mu**2 / 2

    def divergence(self, spends: Sequence[Spend]) -> float:
        """Return the sum of the sessions' Kullback-Leibler divergences, each half of its ``mu`` squared.

        Raises:
            UnsupportedEventError: An event is not dominated by one Gaussian query, or adds a delta of its own.
        """
        squares = []
        for spend in spends:
            spent = spend.guarantee
            mu = spent.mu if spend.event.per_query else spent.unsampled_mu  # which is that of assigned batches
            if mu is None or spent.additive_delta > 0 or spent.coupling_gap > 0:
                raise UnsupportedEventError(
                    f"{type(spend.event).__name__} is not one Gaussian query (its records are sampled, or its noise is "
                    "of another kind) and cannot pass a Gaussian filter. Build the ledger with filter_order instead; "
                    "or without a filter, and set a share aside (register_share)."
                )
            squares.append(mu**2)
        return math.fsum(squares) / 2

    def epsilon(self, delta: float, divergence: float | None = None) -> float:
        """Return epsilon at ``delta`` for a divergence, by default the whole budget."""
        divergence = self.budget if divergence is None else divergence
        return gaussian_epsilon(math.sqrt(2 * divergence), _validate.delta("delta", delta))

    def delta(self, epsilon: float) -> float:
        """Return delta at ``epsilon`` >= 0 for the whole budget."""
        return delta_above(self.mu, epsilon)
