"""Events of sessions that fail, with a known probability, to be what is accounted; and refuted claims of others.

Proofs: docs/derivations/noisy-sgd.md (coupled sessions); dicesgd.md, "What fails in the published proof".
"""

from dataclasses import dataclass, replace

from tacita import _validate
from tacita.accounting.events.guarantee import Guarantee
from tacita.accounting.events.wrapped import WrappedEvent


@dataclass(frozen=True, kw_only=True)
class CoupledEvent(WrappedEvent):
    r"""A session that equals, except in the event of a failure, one whose guarantee is known.

    On every data set the session can be coupled with one that ``inner`` bounds, so that both release the same with
    probability at least :math:`1 - p`. Both data sets of a neighbouring pair have to be swapped, the second inside a
    factor :math:`e^\epsilon`, so delta grows by :math:`(1 + e^\epsilon) p`. If ``inner`` is :math:`(\epsilon,
    p)`-private, the session is :math:`(\epsilon, (2 + e^\epsilon) p)`-private, not :math:`(\epsilon, 2p)`.

    Attributes:
        failure_probability: p in [0, 1), of the whole session, however many queries it makes.
    """

    failure_probability: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.below_one, "failure_probability")

    def describe(self) -> str:
        return (
            f"{self.inner.describe()}; but for a failure of probability {self.failure_probability:.3g}, which adds "
            "(1 + e^epsilon) times that to delta"
        )

    def _guarantee(self, queries: int) -> Guarantee:
        inner = self.inner.guarantee(queries)
        return replace(inner, coupling_gap=inner.coupling_gap + (self.failure_probability if queries else 0.0))


@dataclass(frozen=True, kw_only=True)
class RefutedClaimEvent(WrappedEvent):
    """A session for which somebody claims more than is true.

    The bounds are those of ``inner``, which are proved. The statement says first that the claim is refuted.

    Attributes:
        claim: Who claims it, in a few words.
        claimed_epsilon: The epsilon that was claimed at ``claimed_delta``.
        claimed_delta: The delta of the claim.
    """

    claim: str
    claimed_epsilon: float
    claimed_delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(_validate.positive, "claimed_epsilon")
        _validate.delta("claimed_delta", self.claimed_delta)
        if not isinstance(self.claim, str) or not self.claim.strip():
            raise ValueError(f"claim must say who claims the guarantee, got {self.claim!r}.")

    @property
    def disclaimer(self) -> str:
        deeper = self.inner.disclaimer
        return self._refuted if deeper is None else f"{self._refuted}; {deeper}"

    def describe(self) -> str:
        return f"{self.inner.describe()}; {self._refuted}"

    @property
    def _refuted(self) -> str:
        return f"not ({self.claimed_epsilon:g}, {self.claimed_delta:g})-DP as claimed by {self.claim}"
