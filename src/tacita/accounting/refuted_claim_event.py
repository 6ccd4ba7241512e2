"""The event of a session whose noise was published with a guarantee that is false.

Place: [accounting.refuted_claim_event] -> accountant, statement. Why the claims of DiceSGD are false:
docs/derivations/dicesgd.md, "What fails in the published proof".
"""

from dataclasses import dataclass

from tacita import _validate
from tacita.accounting.wrapped_events import WrappedEvent


@dataclass(frozen=True, kw_only=True)
class RefutedClaimEvent(WrappedEvent):
    """A session for which somebody claims more than is true.

    The bounds are those of ``inner``, which are proved; the statement says first that the claim is not.

    Attributes:
        claim: Who claims it, in a few words.
        claimed_epsilon: The epsilon that was claimed ...
        claimed_delta: ... at this delta.
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
