"""Sessions: what one oracle may ask, reserves, asks and has asked, as lines of the ledger.

Place: journal -> [accounting.session] -> ledger. A session goes from *registered* to *open* to *closed*, or from
registered to *withdrawn*. Every change is a line; the same code applies a line that is written now and one that is
read back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tacita import _validate
from tacita.accounting.chain import canonical, sha256
from tacita.accounting.events import Event
from tacita.accounting.parts import Part
from tacita.errors import BudgetExceededError, LedgerError

State = Literal["registered", "open", "withdrawn", "closed"]
SHARE = "share"  # the purpose of a share's own line
Write = Callable[[str, str, Mapping[str, Any], Callable[[], None]], None]  # kind, session, fields, what follows


def settings_sha256(settings: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of ``settings``: what must be equal when a session is resumed.

    Raises:
        ValueError: ``settings`` holds something that JSON does not.

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
    """What is fixed when a session is registered: all that its guarantee depends on.

    Attributes:
        id: The session's name in the ledger, such as "train-1".
        event: What it spends.
        planned_queries: Queries it may make.
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

    def to_fields(self) -> dict[str, Any]:
        """What a ``register`` line holds of it (the line itself carries the id)."""
        return {
            "event": self.event.to_dict(),
            "planned_queries": self.planned_queries,
            "purpose": self.purpose,
            "part": None if self.part is None else self.part.to_dict(),
            "settings_sha256": self.settings_sha256,
            "secure_randomness": self.secure_randomness,
            "share": self.share,
        }

    @staticmethod
    def from_fields(session: str, fields: Mapping[str, Any]) -> "Registration":
        """The inverse of :meth:`to_fields`; strict.

        Raises:
            LedgerError, ValueError, TypeError, KeyError: Not what :meth:`to_fields` writes.
        """
        part, share = fields["part"], fields["share"]
        return Registration(
            id=session,
            event=Event.from_dict(fields["event"]),
            planned_queries=_validate.count("planned_queries", _typed(fields, "planned_queries", int)),
            purpose=_typed(fields, "purpose", str),
            part=None if part is None else Part.from_dict(_typed(fields, "part", dict)),
            settings_sha256=_typed(fields, "settings_sha256", str),
            secure_randomness=_typed(fields, "secure_randomness", bool),
            share=None if share is None else _typed(fields, "share", str),
        )


def _typed(fields: Mapping[str, Any], name: str, kind: type) -> Any:
    if type(fields[name]) is not kind:
        raise LedgerError(f"{name} must be {kind.__name__}, got {type(fields[name]).__name__}.")
    return fields[name]


class Session:
    """One session of a ledger; made by :meth:`Ledger.register <tacita.accounting.Ledger.register>`.

    Queries are numbered from 0. A number must be reserved (on disk) before its noise is used, and gets its line before
    its release is returned. The noise of one number is drawn once: a number with a line is not written again.

    Example:
        >>> from tacita.accounting import FullBatchGaussianEvent, Ledger
        >>> ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row = one patient")
        >>> event = FullBatchGaussianEvent(relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,))
        >>> session = ledger.register(event, planned_queries=10)
        >>> session.open()
        >>> session.reserve(0, 4)
        >>> session.spend(0, "5d41402a")
        >>> session.id, session.queries_made, session.remaining_queries, session.covered(4), session.covered(5)
        ('train-1', 1, 9, True, False)
    """

    def __init__(
        self,
        registration: Registration,
        write: Write,
        flush: Callable[[], None],
        released: Callable[[Part | None], bool],  # whether something was released on these records
    ):
        self._registration = registration
        self._write_line, self._flush, self._released = write, flush, released
        self._lines: dict[int, str] = {}
        self._reserved = 0
        self._carried = 0  # reserved by a process that is gone: each of them may have been released
        self._closed_with: int | None = None
        self._state: State = "registered"
        self._counts_in_plan = True

    # What it is.

    @property
    def registration(self) -> Registration:
        """All that was fixed at registration."""
        return self._registration

    @property
    def id(self) -> str:
        """Its name in the ledger, such as "train-1"."""
        return self._registration.id

    @property
    def event(self) -> Event:
        """What the whole session spends."""
        return self._registration.event

    @property
    def planned_queries(self) -> int:
        """Queries it may make."""
        return self._registration.planned_queries

    @property
    def purpose(self) -> str:
        """What it is for."""
        return self._registration.purpose

    @property
    def part(self) -> Part | None:
        """The part of the records that it sees."""
        return self._registration.part

    @property
    def share(self) -> str | None:
        """The share it is paid from."""
        return self._registration.share

    # How far it is.

    @property
    def state(self) -> State:
        """ "registered", "open", "withdrawn" or "closed"."""
        return self._state

    @property
    def counts_in_plan(self) -> bool:
        """Whether the plan's guarantee includes it: unless it was withdrawn in time."""
        return self._counts_in_plan

    @property
    def opened(self) -> bool:
        """Whether it was opened, by this process or by an earlier one; true of a closed one, too."""
        return self._state in ("open", "closed")

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._state == "closed"

    @property
    def queries_made(self) -> int:
        """Queries with a line."""
        return len(self._lines)

    @property
    def last_query(self) -> int:
        """The highest number with a line; -1 if there is none."""
        return max(self._lines, default=-1)

    @property
    def remaining_queries(self) -> int:
        """Numbers above :attr:`last_query` that the plan still holds."""
        return self.planned_queries - 1 - self.last_query

    @property
    def reserved_queries(self) -> int:
        """The numbers 0 to this one less 1 are reserved."""
        return self._reserved

    @property
    def queries_spent(self) -> int:
        """Queries whose noise may have been used.

        Those with a line; and, where a process was killed, all that it had reserved.
        """
        return self._closed_with if self._closed_with is not None else max(len(self._lines), self._carried)

    def covered(self, query: int) -> bool:
        """Whether ``query`` is reserved, so that its noise may be used."""
        return 0 <= query < self._reserved

    def lookup(self, query: int) -> str | None:
        """The fingerprint in the line of ``query``; ``None`` if it has no line, so that it was never released."""
        return self._lines.get(query)

    # What it does.

    def open(self) -> None:
        """Start: from here on it cannot be withdrawn."""
        self._do("open", {})

    def withdraw(self) -> None:
        """Give up a session that was not opened. It spends nothing.

        It leaves the plan too, unless a session that shares records with it has already reserved queries: then the
        choice to withdraw may rest on what was released, and the plan's guarantee is that of both.
        """
        self._do("withdraw", {})

    def reserve(self, first: int, last: int) -> None:
        """Put on disk that the queries ``first`` to ``last`` (both included) may be made. No noise before that.

        Reservations leave no gap: ``first`` is at most :attr:`reserved_queries`.

        Raises:
            BudgetExceededError: ``last`` is outside the plan.
            LedgerError: Not open, a gap, or the disk refused.
        """
        first = _validate.count("first", first, at_least=0)
        last = _validate.count("last", last, at_least=first)
        if self._state != "open" or last >= self._reserved:
            self._do("reserve", {"first": first, "last": last})

    def spend(self, query: int, fingerprint: str = "") -> None:
        """Write the line of ``query``, before its release is returned.

        Args:
            query: A reserved number without a line.
            fingerprint: Keyed hash of the bounded values, to recognise the query when it is redone; empty if none is
                kept, and then a redo takes a new number.

        Raises:
            BudgetExceededError: ``query`` is outside the plan.
            LedgerError: Not reserved, or it already has a line.
        """
        query = _validate.count("query", query, at_least=0)
        self._do("query", {"number": query, "fingerprint": fingerprint})

    def flush(self) -> None:
        """Put every line on disk: before anything derived from the releases leaves the process."""
        self._flush()

    def close(self) -> None:
        """End: what was reserved and not used is not spent. After a crash, what was reserved before it still is."""
        self._do("close", {"queries_made": self.queries_spent})

    # One line: checked, written, applied. Lines read back are checked and applied.

    def _do(self, kind: str, fields: Mapping[str, Any]) -> None:
        self._check(kind, fields)
        self._write_line(kind, self.id, fields, lambda: self._apply(kind, fields))

    def _replay(self, kind: str, fields: Mapping[str, Any]) -> None:
        self._check(kind, fields)
        self._apply(kind, fields)

    def _left_by_another_process(self) -> None:
        """After reading back: of what was reserved, everything may have been released."""
        if self._state == "open":
            self._carried = self._reserved

    def _check(self, kind: str, fields: Mapping[str, Any]) -> None:
        wanted = "registered" if kind in ("open", "withdraw") else "open"
        if self._state != wanted:
            raise LedgerError(f"session {self.id} is {self._state}: {kind!r} needs one that is {wanted}.")
        if kind == "reserve":
            self._check_reserve(_typed(fields, "first", int), _typed(fields, "last", int))
        elif kind == "query":
            self._check_query(_typed(fields, "number", int), _typed(fields, "fingerprint", str))
        elif kind == "close" and not len(self._lines) <= _typed(fields, "queries_made", int) <= self._reserved:
            raise LedgerError(f"session {self.id} cannot have made {fields['queries_made']} queries.")

    def _check_reserve(self, first: int, last: int) -> None:
        if last >= self.planned_queries:
            raise BudgetExceededError(
                f"session {self.id} planned {self.planned_queries} queries: query {last} is past its plan. "
                "Register another session for more."
            )
        if not 0 <= first <= self._reserved <= last:
            raise LedgerError(
                f"session {self.id} has reserved {self._reserved} queries; {first} to {last} do not follow."
            )

    def _check_query(self, query: int, _fingerprint: str) -> None:
        if query >= self.planned_queries:
            raise BudgetExceededError(
                f"session {self.id} planned {self.planned_queries} queries: query {query} is past its plan. "
                "Register another session for more."
            )
        if not self.covered(query):
            raise LedgerError(
                f"query {query} of session {self.id} is not reserved: reserve it before its noise is used."
            )
        if query in self._lines:
            raise LedgerError(f"query {query} of session {self.id} already has a line: a redo takes the next number.")

    def _apply(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "open":
            self._state = "open"
        elif kind == "withdraw":
            self._state, self._counts_in_plan = "withdrawn", self._released(self.part)
        elif kind == "reserve":
            self._reserved = fields["last"] + 1
        elif kind == "query":
            self._lines[fields["number"]] = fields["fingerprint"]
        else:
            self._state, self._closed_with = "closed", fields["queries_made"]

    def __repr__(self) -> str:
        return f"Session({self.id!r}, {self._state}, {self.queries_made} of {self.planned_queries} queries)"


@dataclass(frozen=True)
class Share:
    """A fixed piece of the budget for sessions whose settings are chosen later.

    Attributes:
        id: Its name in the ledger, such as "share-1".
        epsilon: What the sessions inside may spend together ...
        delta: ... at this delta.
        part: The part of the records that they may see; ``None`` is all of them.
    """

    id: str
    epsilon: float
    delta: float
    part: Part | None = None
