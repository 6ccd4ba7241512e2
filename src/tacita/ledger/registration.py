"""The content of register lines: the settings of the whole ledger, of a session, and of a share.

Everything here is public and fixed beforehand.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tacita import _validate
from tacita.accounting.events import Event
from tacita.accounting.gaussian_filter import GaussianFilter
from tacita.accounting.parts import Part
from tacita.accounting.relations import NeighboringRelation, check_relation
from tacita.accounting.renyi_filter import RenyiFilter
from tacita.errors import LedgerError
from tacita.ledger.hash_chain import canonical, sha256

SHARE = "share"  # the purpose of a share's own line


@dataclass(frozen=True, kw_only=True)
class LedgerTerms:
    """The settings of the whole ledger, which every register line repeats."""

    neighboring_relation: NeighboringRelation
    privacy_unit: str
    max_epsilon: float | None
    max_delta: float | None
    filter_order: float | None
    filter: Literal["gaussian"] | None = None

    def __post_init__(self):
        check_relation(self.neighboring_relation)
        if not isinstance(self.privacy_unit, str) or not self.privacy_unit.strip() or "\n" in self.privacy_unit:
            raise ValueError(
                f"privacy_unit must say in one line what is protected, got {self.privacy_unit!r}. "
                "For instance 'one row = one patient'."
            )
        if (self.max_epsilon is None) != (self.max_delta is None):
            raise ValueError("max_epsilon and max_delta are one cap: give both or neither.")
        if self.max_epsilon is not None and self.max_delta is not None:
            _validate.positive("max_epsilon", self.max_epsilon)
            _validate.delta("max_delta", self.max_delta)
        if self.filter_order is not None and self.max_epsilon is None:
            raise ValueError("filter_order needs a cap to keep under: give max_epsilon and max_delta.")
        self._check_filter()
        _ = self.rule  # refuses an order that leaves no budget

    def _check_filter(self) -> None:
        if self.filter not in (None, "gaussian"):
            raise ValueError(f"filter must be 'gaussian' or None, got {self.filter!r}.")
        if self.filter is not None and self.filter_order is not None:
            raise ValueError("a ledger must have one filter: give filter='gaussian' or filter_order, not both.")
        if self.filter is not None and self.max_epsilon is None:
            raise ValueError("filter needs a cap to keep under: give max_epsilon and max_delta.")

    @property
    def rule(self) -> RenyiFilter | GaussianFilter | None:
        """The filter that sessions have to pass; ``None`` without one."""
        if self.max_epsilon is None or self.max_delta is None:
            return None
        if self.filter is not None:
            return GaussianFilter(max_epsilon=self.max_epsilon, max_delta=self.max_delta)
        if self.filter_order is None:
            return None
        return RenyiFilter(order=self.filter_order, max_epsilon=self.max_epsilon, max_delta=self.max_delta)

    @staticmethod
    def of(entry: Mapping[str, Any]) -> "LedgerTerms":
        """Return the terms in a register line."""
        fields = {name: entry[name] for name in TERMS}
        for name in ("max_epsilon", "max_delta", "filter_order"):
            if fields[name] is not None and type(fields[name]) not in (int, float):
                raise LedgerError(f"{name} must be a number.")
        return LedgerTerms(**fields, filter=entry.get("filter"))

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of a ``register`` line; ``filter`` is left out without one, as before there was any."""
        fields = asdict(self)
        if self.filter is None:
            del fields["filter"]
        return fields

    def differences(self, other: "LedgerTerms") -> str:
        """Return the names of the settings that differ, joined by commas; empty if the terms are equal."""
        return ", ".join(n for n in LedgerTerms.__dataclass_fields__ if getattr(self, n) != getattr(other, n))


TERMS = frozenset(LedgerTerms.__dataclass_fields__) - {"filter"}  # in every register line


def settings_sha256(settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of ``settings``, which must be equal when a session is resumed.

    Raises:
        ValueError: ``settings`` holds a value that JSON cannot hold.

    Example:
        >>> settings_sha256({"lr": 0.1, "epochs": 3}) == settings_sha256({"epochs": 3, "lr": 0.1})
        True
    """
    try:
        return sha256(canonical(dict(settings)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"settings must hold plain JSON values (text, numbers, lists, objects): {error}.") from None


@dataclass(frozen=True, kw_only=True)
class Registration:
    """Everything that is fixed when a session is registered, and that its guarantee depends on.

    Attributes:
        id: The session's name in the ledger, such as "train-1".
        event: What it spends.
        planned_queries: The number of queries that it may make.
        purpose: "train", "bounds", "score", ...
        part: The part of the records that it sees; ``None`` is all of them.
        settings_sha256: :func:`settings_sha256` of the settings.
        secure_randomness: ``False`` if its noise comes from a stream that a test handed in.
        share: The share it is paid from, or ``None``.
        restart_of: The session that it may replace, once that one is written off; ``None`` for other sessions.
    """

    id: str
    event: Event
    planned_queries: int
    purpose: str
    part: Part | None
    settings_sha256: str
    secure_randomness: bool
    share: str | None
    restart_of: str | None = None

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of a ``register`` line, except the id, which every line carries."""
        return {
            "event": self.event.to_dict(),
            "planned_queries": self.planned_queries,
            "purpose": self.purpose,
            "part": None if self.part is None else self.part.to_dict(),
            "settings_sha256": self.settings_sha256,
            "secure_randomness": self.secure_randomness,
            "share": self.share,
            "restart_of": self.restart_of,
        }

    @staticmethod
    def from_fields(session: str, fields: Mapping[str, Any]) -> "Registration":
        """Read what :meth:`to_fields` wrote, strictly.

        Raises:
            LedgerError, ValueError, TypeError, KeyError: :meth:`to_fields` would not have written these fields.
        """
        part, share, first = fields["part"], fields["share"], fields["restart_of"]
        return Registration(
            id=session,
            event=Event.from_dict(fields["event"]),
            planned_queries=_validate.count("planned_queries", typed(fields, "planned_queries", int)),
            purpose=typed(fields, "purpose", str),
            part=None if part is None else Part.from_dict(typed(fields, "part", dict)),
            settings_sha256=typed(fields, "settings_sha256", str),
            secure_randomness=typed(fields, "secure_randomness", bool),
            share=None if share is None else typed(fields, "share", str),
            restart_of=None if first is None else typed(fields, "restart_of", str),
        )


def typed(fields: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return the field ``name`` if its type is exactly ``kind``, else raise :class:`LedgerError`."""
    if type(fields[name]) is not kind:
        raise LedgerError(f"{name} must be {kind.__name__}, got {type(fields[name]).__name__}.")
    return fields[name]


@dataclass(frozen=True)
class Share:
    """A fixed piece of the budget for sessions whose settings are chosen later.

    Attributes:
        id: Its name in the ledger, such as "share-1".
        epsilon: The epsilon that the sessions inside may spend together at ``delta``.
        delta: The delta that belongs to ``epsilon``.
        part: The part of the records that they may see; ``None`` is all of them.
    """

    id: str
    epsilon: float
    delta: float
    part: Part | None = None
