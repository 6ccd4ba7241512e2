"""The records of a ledger, one struct a kind: what is written, and what is read back strictly.

A record is one line of the file. It holds the fields of its struct, and ``v``, ``seq`` and ``prev``, which
:mod:`tacita.ledger.hash_chain` sees to. Everything in it is public.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from tacita import _validate
from tacita.accounting.events import Event
from tacita.accounting.parts import Part
from tacita.accounting.relations import NeighboringRelation, check_relation
from tacita.errors import LedgerError, TacitaError
from tacita.ledger.hash_chain import PLACE, Anchor, Entry, canonical, sha256

if TYPE_CHECKING:
    from tacita.accounting.composition import Filter

SHARE = "share"  # the purpose of a share's own record
_PLAIN = r"\w[\w. +-]*"
_PLAIN_PATH = re.compile(
    rf"{_PLAIN}(/{_PLAIN})*", re.ASCII
)  # no drive, no way up: beside the ledger, or in a folder there
_LONGEST_REASON = 500  # characters


class LedgerTerms(Struct, frozen=True, kw_only=True):
    """The settings of the whole ledger, which every register record repeats."""

    neighboring_relation: NeighboringRelation
    privacy_unit: str
    max_epsilon: int | float | None
    max_delta: int | float | None
    filter_order: int | float | None
    filter: Literal["gaussian"] | None = None  # not in the record if there is none, as before there was any

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
        if self.filter not in (None, "gaussian"):
            raise ValueError(f"filter must be 'gaussian' or None, got {self.filter!r}.")
        if self.filter is not None and self.filter_order is not None:
            raise ValueError("a ledger must have one filter: give filter='gaussian' or filter_order, not both.")
        if self.filter is not None and self.max_epsilon is None:
            raise ValueError("filter needs a cap to keep under: give max_epsilon and max_delta.")
        _ = self.rule  # refuses an order that leaves no budget

    @property
    def rule(self) -> "Filter | None":
        """The filter that sessions have to pass; ``None`` without one. A filter is loaded with a ledger that has it."""
        if self.max_epsilon is None or self.max_delta is None or (self.filter is None and self.filter_order is None):
            return None
        if self.filter_order is None:
            from tacita.accounting.gaussian_filter import GaussianFilter

            return GaussianFilter(max_epsilon=self.max_epsilon, max_delta=self.max_delta)
        from tacita.accounting.renyi_filter import RenyiFilter

        return RenyiFilter(order=self.filter_order, max_epsilon=self.max_epsilon, max_delta=self.max_delta)

    def differences(self, other: "LedgerTerms") -> str:
        """Return the names of the settings that differ, joined by commas; empty if the terms are equal."""
        return ", ".join(name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name))


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
    """

    id: str
    event: Event
    planned_queries: int
    purpose: str
    part: Part | None
    settings_sha256: str
    secure_randomness: bool
    share: str | None


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


@dataclass(frozen=True)
class Seal:
    """The last record of a ledger, which ties it to the files of its run.

    The hash chain covers the seal, so that an exchanged model, configuration or statement shows, even if the hash in
    the statement was changed as well. It claims nothing against somebody who rewrites the ledger and every copy of its
    anchor.

    Attributes:
        files: SHA-256 by file name, of files in the ledger's folder; with slashes, in folders below it.
        statement: SHA-256 of the statement's fields, as canonical JSON.
        after: How far the ledger had come before the seal; the statement holds the same.
    """

    files: Mapping[str, str]
    statement: str
    after: Anchor = field(compare=False)

    def __post_init__(self) -> None:
        for name, digest in self.files.items():
            if not _PLAIN_PATH.fullmatch(name):
                raise ValueError(f"a sealed file must have a plain name, or a path of such names, got {name!r}.")
            if not (isinstance(digest, str) and len(digest) == 64):
                raise ValueError(f"files must give the SHA-256 of {name!r} in hexadecimal.")

    @classmethod
    def of(cls, statement: Mapping[str, Any], files: Mapping[str, str], after: Anchor) -> "Seal":
        """Return the seal over ``statement`` and ``files``."""
        return cls(dict(sorted(files.items())), statement_sha256(statement), after)


# The kinds of record, as they stand in the file.


class Record(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """What every record holds beside its place in the chain: its kind, and the id of the session that it is about."""

    session: str

    @property
    def kind(self) -> str:
        """The word for it in the file."""
        return str(self.__struct_config__.tag)


class Register(Record, kw_only=True, tag="register"):
    """A session is added, and counts from here on. The settings of the ledger stand in it, too."""

    ledger: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]  # the ledger's random name
    neighboring_relation: str
    privacy_unit: str
    max_epsilon: int | float | None
    max_delta: int | float | None
    filter_order: int | float | None
    filter: str | None = None
    event: dict[str, Any]
    planned_queries: Annotated[int, Meta(ge=1)]
    purpose: str
    part: dict[str, Any] | None
    settings_sha256: str
    secure_randomness: bool
    share: str | None

    @staticmethod
    def of(ledger: str, terms: LedgerTerms, new: Registration) -> "Register":
        """Return the record of a new session."""
        fields = {**asdict(terms), **vars(new), "event": new.event.to_dict()}
        fields["part"] = None if new.part is None else new.part.to_dict()
        return Register(ledger=ledger, session=fields.pop("id"), **fields)

    @property
    def terms(self) -> LedgerTerms:
        """The settings of the ledger that it is in."""
        return LedgerTerms(**{name: getattr(self, name) for name in LedgerTerms.__struct_fields__})

    @property
    def registration(self) -> Registration:
        """The session that it adds.

        Raises:
            LedgerError, ValueError, TypeError, KeyError: :meth:`of` would not have written it.
        """
        return Registration(
            id=self.session,
            event=Event.from_dict(self.event),
            planned_queries=self.planned_queries,
            purpose=self.purpose,
            part=None if self.part is None else Part.from_dict(self.part),
            settings_sha256=self.settings_sha256,
            secure_randomness=self.secure_randomness,
            share=self.share,
        )


class Open(Record, tag="open"):
    """A session begins, and cannot be withdrawn any more."""


class Withdraw(Record, tag="withdraw"):
    """A session was given up before it began."""


class Reserve(Record, tag="reserve"):
    """The noise of the queries ``first`` to ``last`` may be used from here on."""

    first: int
    last: int


class GiveBack(Record, tag="give_back"):
    """The reserved queries ``first`` to ``last`` were not begun."""

    first: int
    last: int


class Query(Record, tag="query"):
    """A query was made; written before its release is returned."""

    number: int
    fingerprint: str


class Close(Record, tag="close"):
    """A session has ended."""

    queries_made: int


class Sealed(Record, tag="seal"):
    """The run is finished (:class:`Seal`)."""

    session: Literal[""]
    files: dict[str, str]
    statement: str


_KINDS = {of.__struct_config__.tag: of for of in (Register, Open, Withdraw, Reserve, GiveBack, Query, Close, Sealed)}
Change = Open | Withdraw | Reserve | GiveBack | Query | Close  # of one session


def read_record(entry: Entry) -> Register | Change | Sealed:
    """Return the record of an entry of the chain.

    Raises:
        LedgerError: No version has written such a record.
    """
    if not entry.keys() >= PLACE:
        raise LedgerError("it lacks its place in the chain.")
    kind, fields = entry.get("kind"), {name: value for name, value in entry.items() if name not in PLACE}
    try:
        return msgspec.convert(fields, _KINDS[kind])  # not their union, which would be looked at for each line anew
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise LedgerError(f"a {kind} line with other fields: {error}.") from None


class errors_of_record:
    """Turn any error that a damaged record causes into a :class:`LedgerError` that names its line in the file."""

    def __init__(self, name: str, number: int):
        self._where = f"{name}, line {number}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, KeyError):
            raise LedgerError(f"{self._where}: it lacks a field, or names an unknown session.") from None
        if isinstance(error, TacitaError | ValueError | TypeError | AttributeError | OverflowError | RecursionError):
            why = " ".join(str(error).split())[:_LONGEST_REASON]  # a quoted value may be of any length
            raise LedgerError(f"{self._where}: {why}") from None


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


def statement_sha256(fields: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of a statement's fields.

    Example:
        >>> statement_sha256({"epsilon": 1.0, "delta": 1e-5}) == statement_sha256({"delta": 1e-5, "epsilon": 1.0})
        True
    """
    return sha256(canonical(dict(fields)))
