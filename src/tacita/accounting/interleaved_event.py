"""An event of two kinds of queries that take turns by a public schedule.

Place: [accounting.interleaved_event] -> accountant.
Proof: docs/derivations/dicesgd.md, "Every m-th query" (M4): which kind a query is was fixed beforehand, so the
dominating pairs of all queries compose adaptively.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tacita import _validate
from tacita.accounting.composed_events import all_said, composed_pld
from tacita.accounting.events import DEFAULT_INTERVAL, Event


@dataclass(frozen=True, kw_only=True)
class InterleavedEvent(Event):
    """Queries number ``every``, 2 ``every``, ... (counted from 1) spend ``inner``, all others ``between``.

    Attributes:
        inner: What every ``every``-th query spends; composes query by query.
        between: What the others spend; composes query by query.
        every: >= 2.
    """

    inner: Event
    between: Event
    every: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count("every", self.every, at_least=2)
        for name, event in (("inner", self.inner), ("between", self.between)):
            failures = isinstance(event, Event) and event.additive_delta(1) + event.coupling_gap(1) > 0
            if not isinstance(event, Event) or not event.per_query or failures:
                raise ValueError(
                    f"{name} must be an event that composes query by query and never fails, got {event!r}."
                )
            if event.relation != self.relation:
                raise ValueError(f"relation must be that of {name}, {event.relation}, got {self.relation}.")

    @property
    def per_query(self) -> bool:
        return False  # a redone query that takes another number would change how many there are of each kind

    @property
    def sampler(self) -> str:
        return self.inner.sampler

    @property
    def assumptions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.inner.assumptions, *self.between.assumptions)))

    @property
    def condition(self) -> str | None:
        return all_said((self.inner.condition, self.between.condition))

    @property
    def disclaimer(self) -> str | None:
        return all_said((self.inner.disclaimer, self.between.disclaimer))

    def describe(self) -> str:
        return f"1 query in {self.every}: {self.inner.describe()}; the others: {self.between.describe()}"

    def is_private(self) -> bool:
        return self.inner.is_private() and self.between.is_private()

    def gaussian_mu(self, queries: int) -> float | None:
        mus = [event.gaussian_mu(count) for event, count in self._parts(queries)]
        known = [mu for mu in mus if mu is not None]
        return math.hypot(*known) if len(known) == len(mus) else None

    def pld(self, queries: int, interval: float = DEFAULT_INTERVAL):
        return composed_pld(self._parts(queries), interval)

    def rdp(self, queries: int, orders: np.ndarray) -> np.ndarray | None:
        total = np.zeros(len(orders))
        for event, count in self._parts(queries):
            curve = event.rdp(count, orders)
            if curve is None:
                return None
            total = total + curve
        return total

    def loss_range(self, queries: int) -> float:
        return max((event.loss_range(count) for event, count in self._parts(queries)), default=1.0)

    def compositions(self, queries: int) -> int:
        return 1 + sum(event.compositions(count) for event, count in self._parts(queries))

    def _parts(self, queries: int) -> Iterator[tuple[Event, int]]:
        """Each event with its number of queries, if there are any."""
        special = queries // self.every
        yield from ((event, n) for event, n in ((self.inner, special), (self.between, queries - special)) if n)
