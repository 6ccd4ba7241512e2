r"""Events of hardened noise: whole numbers on a grid, with the law that the guarantee assumes.

Place: [accounting.hardened_events] -> accountant. Proof: docs/derivations/hardened-noise.md.

Contributions are whole multiples of a public step, their sum is exact, and the noise is an exactly sampled whole number
too. With *rounded* noise the release is :math:`\operatorname{round}((X + s z) / \text{step})` of a real normal z:
post-processing of the Gaussian release, so that the event inside holds as it stands, for real numbers.
"""

from dataclasses import dataclass

from tacita.accounting.events import Event
from tacita.accounting.wrapped_events import WrappedEvent

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
class HardenedEvent(WrappedEvent):
    """The session of ``inner``, in whole numbers: attacks on the floating-point form of a release do not apply.

    Attributes:
        noise: "rounded" or "discrete".
        sums: What is summed: "counts"; records computed "alone" or "together" and truncated; "capped" float sums.
            The guarantee of the last two rests on an assumption that batched kernels meet up to rounding only.
        max_records: With capped sums, the largest number of records in a query that their bound is for; else 0.
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
    """The hardened event in or around ``event``; ``None`` if its noise is one of floating point.

    Of several events together it is the first one's, if all of them are hardened.
    """
    while not isinstance(event, HardenedEvent):
        parts = getattr(event, "parts", ())
        if not all(hardening(part) for part in parts):
            return None
        inner = getattr(event, "inner", None) or next(iter(parts), None)
        if inner is None:
            return None
        event = inner
    return event
