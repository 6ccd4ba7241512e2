"""The event of two kinds of queries that take turns.

Proof: docs/derivations/dicesgd.md, "Every m-th query" (M4).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tacita import _validate
from tacita.accounting.events.event import Event, all_known, all_said
from tacita.accounting.events.guarantee import Guarantee, gaussian, no_guarantee


@dataclass(frozen=True, kw_only=True)
class InterleavedEvent(Event):
    """Queries number ``every``, 2 ``every``, ... (counted from 1) spend ``inner``, all others ``between``.

    Attributes:
        inner: What every ``every``-th query spends. It composes query by query.
        between: What the other queries spend. It composes query by query.
        every: >= 2.
    """

    inner: Event
    between: Event
    every: int

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.count("every", self.every, at_least=2)
        for name, event in (("inner", self.inner), ("between", self.between)):
            one = event.guarantee(1) if isinstance(event, Event) else None
            failures = one is not None and one.additive_delta + one.coupling_gap > 0
            if not isinstance(event, Event) or not event.per_query or failures:
                raise ValueError(
                    f"{name} must be an event that composes query by query and never fails, got {event!r}."
                )
            if event.relation != self.relation:
                raise ValueError(f"relation must be that of {name}, {event.relation}, got {self.relation}.")

    @property
    def components(self) -> tuple[Event, ...]:
        return (self.inner, self.between)

    @property
    def per_query(self) -> bool:
        return False  # a redone query under another number would change how many queries there are of each kind

    @property
    def sampler(self) -> str:
        return self.inner.sampler

    @property
    def assumptions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.inner.assumptions, *self.between.assumptions)))

    @property
    def condition(self) -> str | None:
        return all_said((self.inner.condition, self.between.condition))

    def describe(self) -> str:
        return f"1 query in {self.every}: {self.inner.describe()}; the others: {self.between.describe()}"

    def _guarantee(self, queries: int) -> Guarantee:
        if queries and not all(event.guarantee(1).private for event in (self.inner, self.between)):
            return no_guarantee()
        made = [event.guarantee(count) for event, count in self._parts(queries)]
        curves = all_known(part.rdp for part in made)
        rdp = None if curves is None else (lambda orders: sum((each(orders) for each in curves), np.zeros(len(orders))))
        mus = all_known(part.mu for part in made)
        if mus is not None:
            return gaussian(math.hypot(*mus), rdp=rdp)
        pairs = all_known(part.pairs for part in made)
        all_pairs = None if pairs is None else (lambda: tuple(pair for each in pairs for pair in each()))
        return Guarantee(pairs=all_pairs, rdp=rdp)

    def _parts(self, queries: int) -> Iterator[tuple[Event, int]]:
        """Yield each event with its number of queries, if there are any."""
        special = queries // self.every
        yield from ((event, n) for event, n in ((self.inner, special), (self.between, queries - special)) if n)
