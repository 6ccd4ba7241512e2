"""Events: frozen data that say what a whole session spends, as a function of its number of queries.

Place: [accounting.events] -> accountant. An estimator states an event before any data; the ledger writes it down, the
accountant turns it into epsilon and delta. An event offers one or several views of the same guarantee: a Gaussian of
known ``mu`` (exact), a dominating pair as a privacy loss distribution, a curve of Rényi divergences, a closed form
``delta(epsilon)``. All views bound every pair of neighbours under ``relation``, in both directions.
"""

import dataclasses
import inspect
import math
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from tacita import _validate
from tacita.accounting import _pld
from tacita.accounting.gaussian import gaussian_delta
from tacita.accounting.relations import RELATIONS, NeighboringRelation, check_relation
from tacita.errors import LedgerError

DEFAULT_INTERVAL = 2.0**-13  # about 1e-4: the grid of a privacy loss distribution that nobody asked to be finer


@dataclass(frozen=True, kw_only=True)
class Event(ABC):
    """What a session spends. Public settings only: an event may be printed, and stands in the ledger.

    Attributes:
        relation: How neighbouring data sets differ; nothing is claimed under another relation.
    """

    relation: NeighboringRelation

    kinds: ClassVar[dict[str, type["Event"]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Event.kinds[cls.__name__] = cls

    def __post_init__(self) -> None:
        check_relation(self.relation)

    def _check(self, check: Callable[[str, Any], Any], *names: str) -> None:
        """Hold each of these fields as ``check`` returns it."""
        for name in names:
            object.__setattr__(self, name, check(name, getattr(self, name)))

    # What it says of itself.

    @property
    def per_query(self) -> bool:
        """Whether the guarantee composes query by query, so that a redone query may take the next unused number."""
        return True

    @property
    @abstractmethod
    def sampler(self) -> str:
        """How records enter a query, in a few plain words."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the guarantee, and the library sees to."""
        return ()

    @property
    def condition(self) -> str | None:
        """What must hold and nobody enforces; ``None`` for an unconditional guarantee."""
        return None

    @property
    def disclaimer(self) -> str | None:
        """What the statement must say first: a claim made elsewhere for such a session, and refuted."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """One line of plain words."""

    # The views of its guarantee. ``None``: this event does not offer the view. Where ``gaussian_mu`` is known, pld, rdp
    # and delta are those of that Gaussian query; where it is not, those of ``_own_pld``, ``_own_rdp``, ``_own_delta``.

    def is_private(self) -> bool:
        """Whether any epsilon at all is claimed; ``False`` without noise."""
        return True

    def gaussian_mu(self, queries: int) -> float | None:
        """``mu`` of the one Gaussian query that dominates (or equals) the session."""
        return None

    def pld(self, queries: int, interval: float = DEFAULT_INTERVAL) -> PrivacyLossDistribution | None:
        """The session's dominating pair, discretised pessimistically, on a grid of ``interval``."""
        mu = self.gaussian_mu(queries)
        if mu is None:
            return self._own_pld(queries, interval)
        return _pld.gaussian_pld(mu, interval) if 0 < mu < math.inf else None

    def rdp(self, queries: int, orders: np.ndarray) -> np.ndarray | None:
        """The session's Rényi divergences at ``orders``, each > 1."""
        mu = self.gaussian_mu(queries)
        return self._own_rdp(queries, orders) if mu is None else np.asarray(orders, dtype=float) * mu**2 / 2

    def delta(self, epsilon: float, queries: int) -> float | None:
        """A closed form of delta at ``epsilon``, :meth:`additive_delta` left out."""
        mu = self.gaussian_mu(queries)
        return self._own_delta(epsilon, queries) if mu is None else gaussian_delta(mu, epsilon)

    def _own_pld(self, queries: int, interval: float) -> PrivacyLossDistribution | None:
        return None

    def _own_rdp(self, queries: int, orders: np.ndarray) -> np.ndarray | None:
        return None

    def _own_delta(self, epsilon: float, queries: int) -> float | None:
        return None

    def pure_epsilon(self, queries: int) -> float | None:
        """The epsilon at which delta is 0, :meth:`additive_delta` left out."""
        return None

    def additive_delta(self, queries: int) -> float:
        """Probability of a failure that is added to delta, whatever else is composed."""
        return 0.0

    def coupling_gap(self, queries: int) -> float:
        """Total variation, on every data set, to the session that all other views bound; (1 + e^epsilon) of it is
        added to delta, epsilon being that of all that is composed."""
        return 0.0

    # What the accountant needs to choose a grid.

    def loss_range(self, queries: int) -> float:
        """About the width of the privacy losses of one of the distributions that :meth:`pld` composes."""
        return 1.0

    def compositions(self, queries: int) -> int:
        """How many discretised distributions :meth:`pld` composes."""
        return queries

    # To the ledger and back.

    def to_dict(self) -> dict[str, Any]:
        """Plain data for a JSON line; ``Event.from_dict`` reads it back."""
        fields = {field.name: _encode(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {"event": type(self).__name__, **fields}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Event":
        """The event that ``data`` describes.

        Raises:
            LedgerError: An unknown class, an unknown or missing field, a wrong type, or a value that is refused.
        """
        if not isinstance(data, Mapping) or not isinstance(data.get("event"), str):
            raise LedgerError("An event must be an object with a text field 'event' that names its class.")
        kind = Event.kinds.get(data["event"])
        if kind is None or inspect.isabstract(kind):
            known = sorted(name for name, kind in Event.kinds.items() if not inspect.isabstract(kind))
            raise LedgerError(f"Unknown event {data['event']!r}; this version knows {', '.join(known)}.")
        fields = _field_types(kind)
        given = set(data) - {"event"}
        if given != set(fields):
            missing, unknown = sorted(set(fields) - given), sorted(map(str, given - set(fields)))
            raise LedgerError(f"{kind.__name__}: missing fields {missing}, unknown fields {unknown}.")
        try:
            return kind(**{name: _decode(name, data[name], wanted) for name, wanted in fields.items()})
        except (ValueError, OverflowError) as error:
            raise LedgerError(f"{kind.__name__}: {' '.join(str(error).split())}") from None


@dataclass(frozen=True)
class Spend:
    """An event and the number of queries to charge: those planned, or those made.

    Attributes:
        event: What each session of this kind spends.
        queries: >= 0; zero costs nothing.
    """

    event: Event
    queries: int

    def __post_init__(self) -> None:
        if not isinstance(self.event, Event):
            raise ValueError(f"event must be an Event, got {type(self.event).__name__}.")
        object.__setattr__(self, "queries", _validate.count("queries", self.queries, at_least=0))


def reals(name: str, values: Any, *, at_least: float = 0.0, allow_inf: bool = False) -> tuple[float, ...]:
    """``values`` as a tuple of numbers >= ``at_least``, one a block; raise ``ValueError`` otherwise."""
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
    """moved / noise, where nothing moved needs no noise."""
    if moved == 0:
        return 0.0
    return moved / noise if noise > 0 else math.inf


def _encode(value: Any) -> Any:
    if isinstance(value, Event):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_encode(entry) for entry in value]
    return "inf" if isinstance(value, float) and value == math.inf else value


def _field_types(kind: type[Event]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _decode(name: str, value: Any, wanted: Any) -> Any:
    """``value``, as JSON gave it, as a value of the field's type: a kind, or ``kind | None``."""
    if not isinstance(wanted, types.UnionType):
        return _decode_kind(name, value, wanted)
    return None if value is None else _decode_kind(name, value, typing.get_args(wanted)[0])


def _decode_kind(name: str, value: Any, wanted: Any) -> Any:
    if wanted is Event:
        return Event.from_dict(value)
    if wanted is NeighboringRelation and value in RELATIONS:
        return value
    if wanted is float and value == "inf":
        return math.inf
    if typing.get_origin(wanted) is tuple and isinstance(value, list):
        kind = typing.get_args(wanted)[0]  # tuple[kind, ...]
        return tuple(_decode_kind(name, entry, kind) for entry in value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    if number and (wanted is float or (wanted is int and isinstance(value, int))):
        return wanted(value)
    if wanted is str and isinstance(value, str):
        return value
    raise LedgerError(f"field {name!r} must be {_words(wanted)}, got a {type(value).__name__} ({str(value)[:40]!r}).")


def _words(wanted: Any) -> str:
    if wanted is NeighboringRelation:
        return "one of " + ", ".join(RELATIONS)
    if typing.get_origin(wanted) is tuple:
        return "a list of events" if typing.get_args(wanted)[0] is Event else "a list of numbers"
    return f"a {wanted.__name__}"
