"""Events: frozen data that state what a whole session spends, as a function of its number of queries.

An estimator states an event before it sees any data. The ledger writes it down, and the accountant turns its guarantee
into epsilon and delta.
"""

import math
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from tacita import _validate
from tacita.accounting.events.guarantee import Guarantee
from tacita.accounting.plain_data import PlainData
from tacita.accounting.relations import NeighboringRelation, check_relation
from tacita.errors import UnsupportedEventError

Form = TypeVar("Form")


class _Guaranteed(ABCMeta):
    """Refuses to build an event whose guarantee is not known in any form."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        event = super().__call__(*args, **kwargs)
        try:
            event.guarantee(1)
        except UnsupportedEventError as error:
            raise UnsupportedEventError(f"{cls.__name__} offers no guarantee that can be computed: {error}") from None
        return event


@dataclass(frozen=True)
class NoiseSettings:
    """The public settings of an event's Gaussian noise, as the statement prints them.

    Attributes:
        noise_std: Standard deviation of the noise on the sum, one entry a block.
        max_contribution: Largest L2 norm that one record adds to the sum, one entry a block; empty if there is no such
            number.
        query_mu: Sensitivity over noise of one query; ``None`` if one query alone has no such ratio.
    """

    noise_std: tuple[float, ...]
    max_contribution: tuple[float, ...] = ()
    query_mu: float | None = None


@dataclass(frozen=True, kw_only=True)
class Event(PlainData, metaclass=_Guaranteed, tag="event"):
    """What a session spends. It holds public settings only, is printed, and is written to the ledger.

    A subclass states how records enter, describes itself, and gives the guarantee for a number of queries.

    Attributes:
        relation: How neighbouring data sets differ. Nothing is claimed under another relation.
    """

    relation: NeighboringRelation

    selects: ClassVar[bool] = False  # whether the best of several runs is released, which a statement says

    def __post_init__(self) -> None:
        check_relation(self.relation)

    def _check(self, check: Callable[[str, Any], Any], *names: str) -> None:
        """Replace each of these fields by what ``check`` returns for it."""
        for name in names:
            object.__setattr__(self, name, check(name, getattr(self, name)))

    @property
    def per_query(self) -> bool:
        """Whether the guarantee composes query by query, so that a redone query may take the next unused number."""
        return True

    @property
    def costs_by_prefix(self) -> bool:
        """Whether the first queries of a session, in order, cost what a session of so many queries costs."""
        return self.per_query

    @property
    @abstractmethod
    def sampler(self) -> str:
        """How records enter a query, in a few plain words."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee assumes, and the library sees to."""
        return ()

    @property
    def condition(self) -> str | None:
        """What the guarantee assumes, and nobody enforces; ``None`` for an unconditional guarantee."""
        return None

    @property
    def components(self) -> tuple["Event", ...]:
        """The events that this one is made of, the main one first; empty if it is made of none."""
        return ()

    @property
    def hardened(self) -> bool:
        """Whether its noise is in whole numbers, which attacks on floating point cannot use."""
        return bool(self.components) and all(component.hardened for component in self.components)

    @property
    def noise_settings(self) -> NoiseSettings | None:
        """The settings of its Gaussian noise; ``None`` if the event has no such noise of its own.

        A session's noise is compared with them before each release, so that it is never less than what is paid for.
        """
        return None

    @abstractmethod
    def describe(self) -> str:
        """Describe the event in one line of plain words."""

    def guarantee(self, queries: int) -> Guarantee:
        """Return what a session of ``queries`` queries spends, in every form that is known."""
        return replace(self._guarantee(queries), assumptions=self.assumptions, condition=self.condition)

    @abstractmethod
    def _guarantee(self, queries: int) -> Guarantee:
        """Return the forms of the guarantee; :meth:`guarantee` adds the assumptions."""


@dataclass(frozen=True)
class Spend:
    """An event and the number of queries to charge: those planned, or those made.

    Attributes:
        event: The event of the session.
        queries: >= 0; zero queries cost nothing.
    """

    event: Event
    queries: int

    def __post_init__(self) -> None:
        if not isinstance(self.event, Event):
            raise ValueError(f"event must be an Event, got {type(self.event).__name__}.")
        object.__setattr__(self, "queries", _validate.count("queries", self.queries, at_least=0))

    @cached_property
    def guarantee(self) -> Guarantee:
        """What these queries spend, in every form that is known."""
        return self.event.guarantee(self.queries)


def parts_of(event: Event) -> Iterator[Event]:
    """Yield the events that ``event`` is made of and that are made of no others; itself if it is one."""
    if not event.components:
        yield event
    for component in event.components:
        yield from parts_of(component)


def reals(name: str, values: Any, *, at_least: float = 0.0, allow_inf: bool = False) -> tuple[float, ...]:
    """Return ``values`` as a tuple of numbers >= ``at_least``, one a block, or raise ``ValueError``."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise ValueError(f"{name} must be a tuple with one number a block, got {values!r}.")
    given = tuple(values)
    for value in given:
        bad = isinstance(value, (bool, str)) or not (value >= at_least) or (math.isinf(value) and not allow_inf)
        if bad:
            raise ValueError(f"{name} must hold numbers >= {at_least:g}, got {value!r}.")
    if not given:
        raise ValueError(f"{name} must have at least one entry, got {given!r}.")
    return tuple(float(value) for value in given)


def over_noise(moved: float, noise: float) -> float:
    """Return ``moved / noise``; 0 if nothing is moved, whatever the noise."""
    if moved == 0:
        return 0.0
    return moved / noise if noise > 0 else math.inf


def all_said(words: Iterable[str | None]) -> str | None:
    """Join what several events have to say, each text once; return ``None`` if there is nothing."""
    return "; ".join(dict.fromkeys(text for text in words if text is not None)) or None


def all_known(forms: Iterable[Form | None]) -> list[Form] | None:
    """Return the forms if every part has one, else ``None``."""
    every = list(forms)
    known = [form for form in every if form is not None]
    return known if len(known) == len(every) else None
