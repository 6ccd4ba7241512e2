r"""Events around another event: conditions, failures, refuted claims, and hardened noise.

Proofs: docs/derivations/noisy-sgd.md (coupled sessions), dicesgd.md, "What fails in the published proof"
(refuted claims) and hardened-noise.md.

In a hardened session, contributions are whole multiples of a public step, their sum is exact, and the noise is a whole
number of steps from the exact law. With *rounded* noise the release is
:math:`\operatorname{round}((X + s z) / \text{step})` for a real normal z. This is post-processing of the Gaussian
release, so the event inside, which speaks of real numbers, holds unchanged.
"""

from dataclasses import dataclass, replace

from tacita import _validate
from tacita.accounting.events.event import Event
from tacita.accounting.events.guarantee import Guarantee

NOISES = {"rounded": "rounded Gaussian", "discrete": "discrete Gaussian"}
SUMS = {
    "counts": "whole numbers are counted exactly",
    "alone": "each record is computed on its own and truncated to a grid",
    "together": "each record is truncated to a grid",
    "capped": "sums in float64 under a cap; the bound of their rounding is in max_contribution",
}
COMPANIONS = "records that are computed together do not show in each other's gradients"
ASSUMED = {
    "counts": (),
    "alone": ("what is computed from one record is the same each time",),
    "together": (COMPANIONS,),
    "capped": (COMPANIONS, "kernels give the same batch the same sum"),
}


@dataclass(frozen=True, kw_only=True)
class OuterEvent(Event):
    """An event around another one. Everything but the guarantee is that of the event inside.

    Attributes:
        inner: The event inside, under the same relation.
    """

    inner: Event

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.inner, Event):
            raise ValueError(f"inner must be an Event, got {type(self.inner).__name__}.")
        if self.inner.relation != self.relation:
            raise ValueError(f"relation must be the inner event's, {self.inner.relation}, got {self.relation}.")

    @property
    def components(self) -> tuple[Event, ...]:
        return (self.inner,)

    @property
    def per_query(self) -> bool:
        return self.inner.per_query

    @property
    def sampler(self) -> str:
        return self.inner.sampler

    @property
    def assumptions(self) -> tuple[str, ...]:
        return self.inner.assumptions

    @property
    def condition(self) -> str | None:
        return self.inner.condition

    @property
    def disclaimer(self) -> str | None:
        return self.inner.disclaimer


@dataclass(frozen=True, kw_only=True)
class WrappedEvent(OuterEvent):
    """An event with the guarantee of the event inside; subclasses say what is different."""

    @property
    def costs_by_prefix(self) -> bool:
        return self.inner.costs_by_prefix

    def _guarantee(self, queries: int) -> Guarantee:
        return self.inner.guarantee(queries)


@dataclass(frozen=True, kw_only=True)
class ConditionalEvent(WrappedEvent):
    """A guarantee that rests on a condition which nobody enforces, such as a declared Hessian bound.

    The bounds are those of ``inner``; the statement prints the condition and no unconditional epsilon.

    Attributes:
        condition_text: The condition, a sentence without data in it.
    """

    condition_text: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.condition_text, str) or not self.condition_text.strip():
            raise ValueError(f"condition_text must say the condition, got {self.condition_text!r}.")

    @property
    def condition(self) -> str:
        deeper = self.inner.condition
        return self.condition_text if deeper is None else f"{self.condition_text}; {deeper}"

    def describe(self) -> str:
        return f"{self.inner.describe()}, if {self.condition_text}"


@dataclass(frozen=True, kw_only=True)
class AssumingEvent(WrappedEvent):
    """A guarantee that rests on one assumption more, which is enforced as far as it can be seen.

    Attributes:
        assumption_text: The assumption, a sentence without data in it.
    """

    assumption_text: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.assumption_text, str) or not self.assumption_text.strip():
            raise ValueError(f"assumption_text must say the assumption, got {self.assumption_text!r}.")

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (*self.inner.assumptions, self.assumption_text)

    def describe(self) -> str:
        return self.inner.describe()


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


@dataclass(frozen=True, kw_only=True)
class HardenedEvent(WrappedEvent):
    """The session of ``inner`` in whole numbers, to which attacks on the floating-point form do not apply.

    Attributes:
        noise: "rounded" or "discrete".
        sums: What is summed: "counts"; records computed "alone" or "together" and then truncated; or "capped" sums in
            floating point. The guarantee of the last two rests on an assumption that batched kernels meet only up to
            rounding.
        max_records: With capped sums, the largest number of records of a query that their bound is for; else 0.
    """

    noise: str
    sums: str
    max_records: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("noise", NOISES), ("sums", SUMS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}.")

    @property
    def assumptions(self) -> tuple[str, ...]:
        few = (f"no query has more than {self.max_records:,} records",) if self.max_records else ()
        return (*self.inner.assumptions, *ASSUMED[self.sums], *few)

    def describe(self) -> str:
        return f"{self.inner.describe()}; hardened: {NOISES[self.noise]}, {SUMS[self.sums]}"


def hardening(event: Event) -> HardenedEvent | None:
    """Return the hardened event that ``event`` is or contains; ``None`` if its noise is in floating point.

    Of several events together, return that of the first, provided that all of them are hardened.
    """
    if isinstance(event, HardenedEvent):
        return event
    found = [hardening(component) for component in event.components]
    return found[0] if found and all(found) else None
