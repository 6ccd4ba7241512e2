r"""AboveThreshold: many comparisons with a noisy threshold, charged once however many of them fail.

Place: [accounting.threshold_event] -> accountant. Proof: docs/derivations/noisy-sgd.md.
Source: Dwork and Roth (2014), Algorithm 1 and Theorem 3.23, https://doi.org/10.1561/0400000042.
"""

import math
from dataclasses import dataclass

import numpy as np

from tacita import _validate
from tacita.accounting.events import DEFAULT_INTERVAL, Event, over_noise
from tacita.accounting.pure_events import ApproximateDPEvent


@dataclass(frozen=True, kw_only=True)
class AboveThresholdEvent(Event):
    r"""Values compared with a threshold, Laplace noise on both, until one passes; only the comparisons are released.

    With :math:`s` = ``sensitivity`` of every value (asked adaptively), :math:`b_t` = ``threshold_scale``, drawn once,
    and :math:`b_q` = ``query_scale``, drawn for each value, the whole session is :math:`(s/b_t + 2 s/b_q)`-private.
    It ends with the first value that passes.

    Attributes:
        sensitivity: Largest change of any value between neighbours under ``relation`` (no factor is added to it).
        threshold_scale: Scale of the Laplace noise on the threshold; 0 is allowed and not private.
        query_scale: Scale of the Laplace noise on each value; 0 is allowed and not private.

    Example:
        >>> event = AboveThresholdEvent(
        ...     relation="replace_one", sensitivity=0.5, threshold_scale=1.0, query_scale=2.0)
        >>> event.pure_epsilon(1), event.pure_epsilon(1000)
        (1.0, 1.0)
    """

    sensitivity: float
    threshold_scale: float
    query_scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.non_negative, "sensitivity", "threshold_scale", "query_scale")

    @property
    def epsilon(self) -> float:
        """What the whole session spends."""
        return over_noise(self.sensitivity, self.threshold_scale) + over_noise(2 * self.sensitivity, self.query_scale)

    @property
    def per_query(self) -> bool:
        return False

    @property
    def sampler(self) -> str:
        return "Comparisons on all records"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("only the comparisons leave, and the first value that passes ends the session",)

    def describe(self) -> str:
        return (
            f"AboveThreshold on values with sensitivity {self.sensitivity:.6g}, Laplace noise of scale "
            f"{self.threshold_scale:.6g} on the threshold, once, and {self.query_scale:.6g} on each value"
        )

    def is_private(self) -> bool:
        return math.isfinite(self.epsilon)

    def gaussian_mu(self, queries: int) -> float | None:
        return 0.0 if queries == 0 or self.sensitivity == 0 else None

    def pure_epsilon(self, queries: int) -> float:
        return self.epsilon if queries else 0.0

    def delta(self, epsilon: float, queries: int) -> float | None:
        return self._pure.delta(epsilon, queries)

    def pld(self, queries: int, interval: float = DEFAULT_INTERVAL):
        return self._pure.pld(queries, interval)

    def rdp(self, queries: int, orders: np.ndarray) -> np.ndarray | None:
        return self._pure.rdp(queries, orders)

    def loss_range(self, queries: int) -> float:
        return self._pure.loss_range(queries)

    def compositions(self, queries: int) -> int:
        return self._pure.compositions(queries)

    @property
    def _pure(self) -> ApproximateDPEvent:
        """The pair that dominates every session of this epsilon."""
        return ApproximateDPEvent(relation=self.relation, epsilon=self.epsilon, delta_share=0.0)
