"""Shares: sessions that are (epsilon, delta)-private as a whole, whatever is inside."""

import math
from dataclasses import dataclass

from tacita import _validate
from tacita.accounting._loss_law import LARGEST_LOSS
from tacita.accounting.dominating_pairs import ResponsePair
from tacita.accounting.events.event import Event
from tacita.accounting.events.guarantee import Guarantee, curve_of, gaussian


@dataclass(frozen=True, kw_only=True)
class ApproximateDPEvent(Event):
    """A share: the whole session is (epsilon, delta)-private, however the sessions inside it are accounted.

    Attributes:
        epsilon: >= 0, fixed before the first release of any session that it is composed with.
        delta_share: The delta of the share, in [0, 1), likewise fixed.
    """

    # Source: composed with others as the pair that dominates all (epsilon, 0)-private mechanisms, randomised response
    # (Kairouz, Oh and Viswanath 2015, https://arxiv.org/abs/1311.0776), delta added.
    epsilon: float
    delta_share: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.non_negative, "epsilon")
        self._check(_validate.below_one, "delta_share")

    @property
    def per_query(self) -> bool:
        return False

    @property
    def sampler(self) -> str:
        return "A share of the budget"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("the share was fixed before the first release", "the sessions inside it stay within it")

    def describe(self) -> str:
        return f"A share of epsilon {self.epsilon:.6g} and delta {self.delta_share:.6g}"

    def _guarantee(self, queries: int) -> Guarantee:
        return pure_guarantee(self.epsilon if queries else 0.0, self.delta_share if queries else 0.0)


def pure_guarantee(epsilon: float, additive_delta: float = 0.0) -> Guarantee:
    """Return the guarantee of an (epsilon, 0)-private session, with ``additive_delta`` added to delta.

    The dominating pair is randomised response. Source: Kairouz, Oh and Viswanath (2015),
    https://arxiv.org/abs/1311.0776.
    """
    if epsilon == 0:
        return gaussian(0.0, pure_epsilon=0.0, additive_delta=additive_delta)
    parts = ((ResponsePair(epsilon), 1),)
    return Guarantee(
        pure_epsilon=epsilon,
        additive_delta=additive_delta,
        pairs=(lambda: parts) if epsilon <= LARGEST_LOSS else None,
        delta=lambda at: _response_delta(epsilon, at),
        rdp=curve_of(lambda: parts),
    )


def _response_delta(epsilon: float, at: float) -> float:
    above = -math.expm1(min(0.0, at - epsilon))  # (e^e0 - e^e) / (e^e0 + 1)
    return max(above / (1 + math.exp(-epsilon)), -math.expm1(min(0.0, at)))
