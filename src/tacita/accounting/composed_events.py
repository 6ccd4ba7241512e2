"""Events of several events: all of them one after the other, or one of them, whichever it is.

Place: events -> [accounting.composed_events] -> wrapped_events (what one run of a selection spends). Proofs:
docs/derivations/selection.md.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tacita import _validate
from tacita.accounting import _pld
from tacita.accounting.events import DEFAULT_INTERVAL, Event


@dataclass(frozen=True, kw_only=True)
class SeveralEvent(Event):
    """Events with a number of queries each; subclasses say whether a record meets all of them or one.

    One query of this event is one round: part i with ``part_queries[i]`` queries.

    Attributes:
        parts: At least one event, all under this event's relation. The first gives the words for the sampler.
        part_queries: Queries of each, >= 1.
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
    def main(self) -> Event:
        """The first part: what the others go with."""
        return self.parts[0]

    @property
    def per_query(self) -> bool:
        return all(part.per_query for part in self.parts)

    @property
    def sampler(self) -> str:
        return self.main.sampler

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

    def is_private(self) -> bool:
        return all(part.is_private() for part in self.parts)

    def rdp(self, queries: int, orders: np.ndarray) -> np.ndarray | None:
        curves = [part.rdp(made, orders) for part, made in self._made(queries)]
        known = [np.asarray(curve, dtype=float) for curve in curves if curve is not None]
        return queries * self._together(np.stack(known)) if len(known) == len(curves) else None

    def additive_delta(self, queries: int) -> float:
        return queries * self._largest_or_sum(part.additive_delta(made) for part, made in self._made(queries))

    def coupling_gap(self, queries: int) -> float:
        return queries * self._largest_or_sum(part.coupling_gap(made) for part, made in self._made(queries))

    def pure_epsilon(self, queries: int) -> float | None:
        found = [part.pure_epsilon(made) for part, made in self._made(queries)]
        known = [value for value in found if value is not None]
        return queries * self._largest_or_sum(known) if len(known) == len(found) else None

    def loss_range(self, queries: int) -> float:
        return max(part.loss_range(made) for part, made in self._made(max(queries, 1)))

    def compositions(self, queries: int) -> int:
        return queries * sum(part.compositions(made) for part, made in self._made(max(queries, 1)))

    def _made(self, queries: int) -> list[tuple[Event, int]]:
        """The parts of one round, or none of their queries."""
        return [(part, made if queries else 0) for part, made in zip(self.parts, self.part_queries, strict=True)]

    def _mus(self, queries: int) -> list[float] | None:
        """``mu`` of every part in one round, if all of them are Gaussian queries."""
        found = [part.gaussian_mu(made) for part, made in self._made(queries)]
        known = [mu for mu in found if mu is not None]
        return known if len(known) == len(found) else None

    @abstractmethod
    def _joined(self, words: list[str]) -> str:
        """The parts' words in one line."""

    @abstractmethod
    def _together(self, curves: np.ndarray) -> np.ndarray:
        """The curve of one round, from those of the parts, (parts, orders)."""

    @abstractmethod
    def _largest_or_sum(self, values: Iterable[float]) -> float:
        """What one round adds up to."""


@dataclass(frozen=True, kw_only=True)
class ComposedEvent(SeveralEvent):
    """Several events on the same records, one after the other: a training and then its score, say.

    Rényi curves add up; privacy loss distributions are convolved; Gaussian queries add up as ``mu`` squared.

    Example:
        >>> from tacita.accounting import FullBatchGaussianEvent, Spend, epsilon
        >>> def noisy(noise_std):
        ...     return FullBatchGaussianEvent(
        ...         relation="zero_out_one", max_contribution=(1.0,), noise_std=(noise_std,))
        >>> both = ComposedEvent(relation="zero_out_one", parts=(noisy(3.0), noisy(4.0)), part_queries=(1, 1))
        >>> round(both.gaussian_mu(1), 6), round(math.hypot(1 / 3, 1 / 4), 6)
        (0.416667, 0.416667)
    """

    def gaussian_mu(self, queries: int) -> float | None:
        mus = self._mus(queries)
        return None if mus is None else math.sqrt(queries) * math.hypot(*mus)

    def pld(self, queries: int, interval: float = DEFAULT_INTERVAL) -> _pld.PrivacyLossDistribution | None:
        total = composed_pld(self._made(queries), interval)
        return None if total is None else _pld.self_composed(total, queries)

    def _joined(self, words: list[str]) -> str:
        return "; then ".join(words)

    def _together(self, curves: np.ndarray) -> np.ndarray:
        return curves.sum(axis=0)

    def _largest_or_sum(self, values: Iterable[float]) -> float:
        return math.fsum(values)


@dataclass(frozen=True, kw_only=True)
class WorstOfEvent(SeveralEvent):
    r"""One of several events, whichever it is for a record: the bound is the largest, view by view.

    Serves a record that can meet only one of them (a training on rows kept by coin beside a score on the rows held
    out), and a choice between them that no record influences (a point of a grid drawn at random, and released).

    Rényi curves: the maximum, order by order. A privacy loss distribution of its own it has none, unless all are
    Gaussian queries.

    Example:
        >>> from tacita.accounting import FullBatchGaussianEvent, ZCDPEvent
        >>> noisy = FullBatchGaussianEvent(relation="zero_out_one", max_contribution=(1.0,), noise_std=(2.0,))
        >>> either = WorstOfEvent(
        ...     relation="zero_out_one", parts=(noisy, ZCDPEvent(relation="zero_out_one", rho=0.1)), part_queries=(1, 1)
        ... )
        >>> either.rdp(1, np.array([2.0, 8.0])).tolist() == noisy.rdp(1, np.array([2.0, 8.0])).tolist()
        True
    """

    def gaussian_mu(self, queries: int) -> float | None:
        mus = self._mus(queries)
        return None if mus is None else math.sqrt(queries) * max(mus)

    def _joined(self, words: list[str]) -> str:
        return words[0] if len(words) == 1 else "the worst of: " + " | ".join(words)

    def _together(self, curves: np.ndarray) -> np.ndarray:
        return curves.max(axis=0)

    def _largest_or_sum(self, values: Iterable[float]) -> float:
        return max(values)


def composed_pld(spent: Iterable[tuple[Event, int]], interval: float) -> _pld.PrivacyLossDistribution | None:
    """The distributions of events, each with its queries, composed; ``None`` if one has none, or all cost nothing."""
    total = None
    for event, queries in spent:
        if event.gaussian_mu(queries) == 0:
            continue
        one = event.pld(queries, interval)
        if one is None:
            return None
        total = one if total is None else total.compose(one, tail_mass_truncation=_pld.TAIL_MASS)
    return total


def all_said(words: Iterable[str | None]) -> str | None:
    """What several events have to say, each sentence once; ``None`` if that is nothing."""
    return "; ".join(dict.fromkeys(text for text in words if text is not None)) or None
