r"""Hardened noise: sessions in whole numbers, and what a statement says of them.

Proof: docs/derivations/hardened-noise.md.

In a hardened session, contributions are whole multiples of a public step, their sum is exact, and the noise is a whole
number of steps from the exact law. The release is
:math:`\operatorname{round}((X + s z) / \text{step})` for a real normal z. This is post-processing of the Gaussian
release, so the event inside, which speaks of real numbers, holds unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tacita.accounting.events.event import Event
from tacita.accounting.events.wrapped import WrappedEvent

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
    """The session of ``inner`` in whole numbers, to which attacks on the floating-point form do not apply.

    Attributes:
        sums: What is summed: "counts"; records computed "alone" or "together" and then truncated; or "capped" sums in
            floating point. The guarantee of the last two rests on an assumption that batched kernels meet only up to
            rounding.
        max_records: With capped sums, the largest number of records of a query that their bound is for; else 0.
    """

    sums: str
    max_records: int = 0

    @property
    def hardened(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sums not in SUMS:
            raise ValueError(f"sums must be one of {', '.join(SUMS)}, got {self.sums!r}.")

    @property
    def assumptions(self) -> tuple[str, ...]:
        few = (f"no query has more than {self.max_records:,} records",) if self.max_records else ()
        return (*self.inner.assumptions, *ASSUMED[self.sums], *few)

    def describe(self) -> str:
        return f"{self.inner.describe()}; hardened: rounded Gaussian, {SUMS[self.sums]}"


def hardening(event: Event) -> HardenedEvent | None:
    """Return the hardened event that ``event`` is or contains; ``None`` if its noise is in floating point.

    Of several events together, return that of the first, provided that all of them are hardened.
    """
    if not event.hardened:
        return None
    return event if isinstance(event, HardenedEvent) else hardening(event.components[0])


def attacks_closed(events: Mapping[str, Event]) -> str:
    """Say what is claimed against attacks on floating-point noise, for sessions by id, some of which are hardened."""
    found = {name: hardening(event) for name, event in events.items()}
    hardened = [event for event in found.values() if event is not None]
    sums = {event.sums for event in hardened}
    words = (
        "The noise is hardened (rounded Gaussian): it consists of whole steps of a public grid, drawn from the exact "
        "law. "
    )
    if sums & {"together", "capped"}:
        words += (
            "Still, this is a weaker claim than is possible: the gradients of several records were computed together, "
            "and numerical routines may let the other records show in the last bits of one record's gradient. Attacks "
            "through these bits are out of scope; computing each record alone (the method 'loop') closes them. "
        )
    else:
        words += "Attacks on floating-point noise are closed. "
    open_ones = [name for name, event in found.items() if event is None]
    if open_ones:
        words += f"That does not cover {', '.join(open_ones)}: attacks on floating-point noise are out of scope there. "
    return words + "How long a computation takes is not covered, and may tell something."
