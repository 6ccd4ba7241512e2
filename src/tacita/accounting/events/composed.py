"""Events made of several events: all in sequence, the worst of several, or two that take turns.

Proofs: docs/derivations/selection.md, and for queries that take turns docs/derivations/dicesgd.md, "Every m-th query"
(M4).
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tacita import _validate
from tacita.accounting._pairs import Part
from tacita.accounting._profile_pairs import WorstPair
from tacita.accounting.events.event import Event
from tacita.accounting.events.guarantee import Guarantee, gaussian, no_guarantee

Form = TypeVar("Form")
Pairs = Callable[[], tuple[Part, ...]]


@dataclass(frozen=True, kw_only=True)
class SeveralEvent(Event):
    """Several events with a number of queries each. Subclasses say whether a record meets all of them or one.

    One query of this event is one round: each part i makes ``part_queries[i]`` queries.

    Attributes:
        parts: At least one event, all under this event's relation. The first one gives the words for the sampler.
        part_queries: Number of queries of each part in a round, >= 1.
    """

    parts: tuple[Event, ...]
    part_queries: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "parts", tuple(self.parts))
        object.__setattr__(
            self, "part_queries", tuple(_validate.count("part_queries", queries) for queries in self.part_queries)
        )
        if not self.parts or len(self.parts) != len(self.part_queries):
            raise ValueError(
                f"parts and part_queries must have the same length, at least 1, got {len(self.parts)} and "
                f"{len(self.part_queries)}."
            )
        for part in self.parts:
            if not isinstance(part, Event):
                raise ValueError(f"parts must be Events, got {type(part).__name__}.")
            if part.relation != self.relation:
                raise ValueError(f"relation must be that of every part, {part.relation}, got {self.relation}.")

    @property
    def components(self) -> tuple[Event, ...]:
        return self.parts

    @property
    def per_query(self) -> bool:
        return all(part.per_query for part in self.parts)

    @property
    def sampler(self) -> str:
        return self.parts[0].sampler

    @property
    def assumptions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(words for part in self.parts for words in part.assumptions))

    @property
    def condition(self) -> str | None:
        return all_said(part.condition for part in self.parts)

    @property
    def disclaimer(self) -> str | None:
        return all_said(part.disclaimer for part in self.parts)

    def describe(self) -> str:
        each = zip(self.parts, self.part_queries, strict=True)
        words = (f"{queries} x ({part.describe()})" if queries > 1 else part.describe() for part, queries in each)
        return self._joined(list(words))

    def _guarantee(self, queries: int) -> Guarantee:
        made = [
            part.guarantee(number if queries else 0) for part, number in zip(self.parts, self.part_queries, strict=True)
        ]
        pures = _all_known(part.pure_epsilon for part in made)
        forms: dict[str, Any] = {
            "additive_delta": queries * self._largest_or_sum(part.additive_delta for part in made),
            "coupling_gap": queries * self._largest_or_sum(part.coupling_gap for part in made),
            "pure_epsilon": None if pures is None else queries * self._largest_or_sum(pures),
            "rdp_may_be_less": any(part.rdp_may_be_less for part in made),
        }
        curves = _all_known(part.rdp for part in made)
        if curves is not None:
            forms["rdp"] = lambda orders: (
                queries * self._together(np.stack([np.asarray(curve(orders), dtype=float) for curve in curves]))
            )
        if not all(part.private for part in made):
            return gaussian(math.inf, **forms)
        mus = _all_known(part.mu for part in made)
        if mus is not None:
            return gaussian(math.sqrt(queries) * self._joint_mu(mus), **forms)
        pairs, unsampled = _all_known(part.pairs for part in made), _all_known(part.unsampled_mu for part in made)
        if unsampled is not None:
            forms["unsampled_mu"] = math.sqrt(queries) * self._joint_mu(unsampled)
        return Guarantee(pairs=None if pairs is None else lambda: self._joint_pairs(pairs, queries), **forms)

    @abstractmethod
    def _joined(self, words: list[str]) -> str:
        """Join the descriptions of the parts in one line."""

    @abstractmethod
    def _together(self, curves: np.ndarray) -> np.ndarray:
        """Return the Rényi curve of one round, from those of the parts, shape (parts, orders)."""

    @abstractmethod
    def _joint_mu(self, mus: Sequence[float]) -> float:
        """Return ``mu`` of one round of Gaussian queries."""

    @abstractmethod
    def _joint_pairs(self, pairs: Sequence[Pairs], queries: int) -> tuple[Part, ...]:
        """Return the dominating pairs of ``queries`` rounds, from those of the parts."""

    @abstractmethod
    def _largest_or_sum(self, values: Iterable[float]) -> float:
        """Return the total of one round: the sum over the parts, or the largest."""


@dataclass(frozen=True, kw_only=True)
class ComposedEvent(SeveralEvent):
    """Several events on the same records in sequence, such as a training and then its score.

    Rényi curves add up; privacy loss distributions are convolved; Gaussian queries add up as ``mu`` squared.

    Example:
        >>> from tacita.accounting import HistogramGaussianEvent
        >>> def noisy(noise_std):
        ...     return HistogramGaussianEvent(
        ...         relation="zero_out_one", max_contribution=(1.0,), noise_std=(noise_std,))
        >>> both = ComposedEvent(relation="zero_out_one", parts=(noisy(3.0), noisy(4.0)), part_queries=(1, 1))
        >>> round(both.guarantee(1).mu, 6), round(math.hypot(1 / 3, 1 / 4), 6)
        (0.416667, 0.416667)
    """

    def _joint_mu(self, mus: Sequence[float]) -> float:
        return math.hypot(*mus)

    def _joint_pairs(self, pairs: Sequence[Pairs], queries: int) -> tuple[Part, ...]:
        return tuple((pair, queries * made) for each in pairs for pair, made in each())

    def _joined(self, words: list[str]) -> str:
        return "; then ".join(words)

    def _together(self, curves: np.ndarray) -> np.ndarray:
        return curves.sum(axis=0)

    def _largest_or_sum(self, values: Iterable[float]) -> float:
        return math.fsum(values)


@dataclass(frozen=True, kw_only=True)
class WorstOfEvent(SeveralEvent):
    r"""One of several events; each form of the bound is the largest of theirs.

    It serves two cases. A record can meet only one of the events, as with a training on rows kept by coin beside a
    score on the rows held out. Or no record influences the choice between the events, as with a point of a grid that is
    drawn at random and released.

    The Rényi curve is the maximum at each order. The dominating pair is that of the largest delta at each epsilon.

    Example:
        >>> from tacita.accounting import HistogramGaussianEvent, ZCDPEvent
        >>> noisy = HistogramGaussianEvent(relation="zero_out_one", max_contribution=(1.0,), noise_std=(2.0,))
        >>> either = WorstOfEvent(
        ...     relation="zero_out_one", parts=(noisy, ZCDPEvent(relation="zero_out_one", rho=0.1)), part_queries=(1, 1)
        ... )
        >>> [each.guarantee(1).rdp(np.array([2.0, 8.0])).tolist() for each in (noisy, either)]
        [[0.25, 1.0], [0.25, 1.0]]
    """

    def _joint_mu(self, mus: Sequence[float]) -> float:
        return max(mus)

    def _joint_pairs(self, pairs: Sequence[Pairs], queries: int) -> tuple[Part, ...]:
        return ((WorstPair(tuple(each() for each in pairs)), queries),)

    def _joined(self, words: list[str]) -> str:
        return words[0] if len(words) == 1 else "the worst of: " + " | ".join(words)

    def _together(self, curves: np.ndarray) -> np.ndarray:
        return curves.max(axis=0)

    def _largest_or_sum(self, values: Iterable[float]) -> float:
        return max(values)


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

    @property
    def disclaimer(self) -> str | None:
        return all_said((self.inner.disclaimer, self.between.disclaimer))

    def describe(self) -> str:
        return f"1 query in {self.every}: {self.inner.describe()}; the others: {self.between.describe()}"

    def _guarantee(self, queries: int) -> Guarantee:
        if queries and not all(event.guarantee(1).private for event in (self.inner, self.between)):
            return no_guarantee()
        made = [event.guarantee(count) for event, count in self._parts(queries)]
        curves = _all_known(part.rdp for part in made)
        rdp = None if curves is None else (lambda orders: sum((each(orders) for each in curves), np.zeros(len(orders))))
        mus = _all_known(part.mu for part in made)
        if mus is not None:
            return gaussian(math.hypot(*mus), rdp=rdp)
        pairs = _all_known(part.pairs for part in made)
        all_pairs = None if pairs is None else (lambda: tuple(pair for each in pairs for pair in each()))
        return Guarantee(pairs=all_pairs, rdp=rdp)

    def _parts(self, queries: int) -> Iterator[tuple[Event, int]]:
        """Yield each event with its number of queries, if there are any."""
        special = queries // self.every
        yield from ((event, n) for event, n in ((self.inner, special), (self.between, queries - special)) if n)


def all_said(words: Iterable[str | None]) -> str | None:
    """Join what several events have to say, each text once; return ``None`` if there is nothing."""
    return "; ".join(dict.fromkeys(text for text in words if text is not None)) or None


def _all_known(forms: Iterable[Form | None]) -> list[Form] | None:
    """Return the forms if every part has one, else ``None``."""
    every = list(forms)
    known = [form for form in every if form is not None]
    return known if len(known) == len(every) else None
