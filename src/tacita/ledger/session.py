"""Sessions: the queries that one oracle plans, reserves and makes, each change a line of the ledger.

A session goes from *registered* to *open* to *closed*, or from registered to *withdrawn*. The same code applies a line
that is written now and one that is read back.
"""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, Protocol

from tacita import _validate
from tacita.accounting.events import Event
from tacita.accounting.parts import Part
from tacita.errors import BudgetExceededError, LedgerError
from tacita.ledger.registration import Registration

State = Literal["registered", "open", "withdrawn", "closed"]
Apply = Callable[[], None]  # takes over what a line says


class Write(Protocol):
    """Write a line, then apply it (:meth:`tacita.ledger.journal.Journal.append`)."""

    def __call__(self, kind: str, session: str, fields: Mapping[str, Any], apply: Apply, *, sync: bool) -> None: ...


class Session:
    """One session of a ledger; made by :meth:`Ledger.register <tacita.ledger.Ledger.register>`.

    Queries are numbered from 0. A number must be reserved on disk before its noise is used, and its line is written
    before its release is returned. The noise of a number is drawn once: a number with a line gets no second line.

    Example:
        >>> from tacita.accounting import FullBatchLaw, GaussianSumEvent
        >>> from tacita.ledger import Ledger
        >>> ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row = one patient")
        >>> event = GaussianSumEvent(
        ...     relation="add_or_remove_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(5.0,))
        >>> session = ledger.register(event, planned_queries=10)
        >>> session.open()
        >>> session.reserve(0, 4)
        >>> session.spend(0, "5d41402a")
        >>> session.id, session.queries_made, session.remaining_queries, session.is_reserved(4), session.is_reserved(5)
        ('train-1', 1, 9, True, False)
    """

    def __init__(
        self,
        registration: Registration,
        write: Write,
        flush: Callable[[], None],
        settle: Callable[[], None],  # finishes a line that an interrupt left half written
        released: Callable[[Part | None], bool],  # whether anything may have been released on these records
        *,
        ledger: str,  # the ledger's id
        lock: threading.RLock,  # the ledger's: threads change it one at a time
    ):
        self._registration = registration
        self._write, self._flush, self._settle, self._released = write, flush, settle, released
        self._ledger, self._lock = ledger, lock
        self._lines: dict[int, str] = {}
        self._last_query = -1
        self._reserved = 0
        self._begun = 0  # reserved numbers below this one may have been drawn
        self._carried = (
            0  # numbers below this one were reserved by a process that is gone, which may have released each
        )
        self._closed_with: int | None = None
        self._state: State = "registered"
        self._counts_in_plan = True

    # What was fixed at registration.

    @property
    def registration(self) -> Registration:
        """Everything that was fixed at registration."""
        return self._registration

    @property
    def id(self) -> str:
        """Its name in the ledger, such as "train-1"."""
        return self._registration.id

    @property
    def ledger(self) -> str:
        """The ledger's id (:attr:`Ledger.id <tacita.ledger.Ledger.id>`)."""
        return self._ledger

    @property
    def event(self) -> Event:
        """What the whole session spends."""
        return self._registration.event

    @property
    def planned_queries(self) -> int:
        """The number of queries that it may make."""
        return self._registration.planned_queries

    @property
    def purpose(self) -> str:
        """What it is for, in one word."""
        return self._registration.purpose

    @property
    def part(self) -> Part | None:
        """The part of the records that it sees."""
        return self._registration.part

    @property
    def share(self) -> str | None:
        """The share it is paid from."""
        return self._registration.share

    @property
    def restart_of(self) -> str | None:
        """The session that it may replace, once that one is written off; ``None`` for other sessions."""
        return self._registration.restart_of

    # How far it has come.

    @property
    def state(self) -> State:
        """One of "registered", "open", "withdrawn" and "closed"."""
        return self._state

    @property
    def counts_in_plan(self) -> bool:
        """Whether the plan's guarantee includes it; false only if it was withdrawn in time (:meth:`withdraw`)."""
        return self._counts_in_plan

    @property
    def opened(self) -> bool:
        """Whether it was ever opened, by this process or by an earlier one; also true once it is closed."""
        return self._state in ("open", "closed")

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._state == "closed"

    @property
    def queries_made(self) -> int:
        """The number of queries that have a line."""
        return len(self._lines)

    @property
    def last_query(self) -> int:
        """The highest number with a line; -1 if there is none."""
        return self._last_query

    @property
    def remaining_queries(self) -> int:
        """How many numbers of the plan are above :attr:`last_query`."""
        return self.planned_queries - 1 - self.last_query

    @property
    def reserved_queries(self) -> int:
        """How many numbers are reserved: 0, 1, ..., up to this one less 1."""
        return self._reserved

    @property
    def queries_spent(self) -> int:
        """The number of queries whose noise may have been used.

        These are the queries with a line and, after a process was killed, all that it had reserved. A process that
        closed its ledger gave back what it had not begun.
        """
        return self._closed_with if self._closed_with is not None else max(len(self._lines), self._carried)

    def is_reserved(self, query: int) -> bool:
        """Return whether ``query`` is reserved, so that its noise may be used."""
        return 0 <= query < self._reserved

    def lookup(self, query: int) -> str | None:
        """Return the fingerprint in the line of ``query``; ``None`` if it has no line and was never released."""
        return self._lines.get(query)

    # Changes.

    def open(self) -> None:
        """Start the session, which cannot be withdrawn from here on."""
        self._change("open", {})

    def withdraw(self) -> None:
        """Give up a session that was not opened. It spends nothing.

        It leaves the plan too, unless a session that shares records with it has already reserved queries. The choice
        to withdraw may then depend on what was released, and the plan's guarantee is that of both sessions.
        """
        self._change("withdraw", {})

    def reserve(self, first: int, last: int, *, ahead: bool = False) -> None:
        """Reserve the queries ``first`` to ``last`` (both included) on disk. No noise of theirs may be used before.

        Reservations leave no gap: ``first`` is at most :attr:`reserved_queries`.

        Args:
            first: The first number.
            last: The last number.
            ahead: Whether nothing of these numbers is drawn before :meth:`begin` is called for each. Numbers that were
                not begun can be given back (:meth:`give_back`).

        Raises:
            BudgetExceededError: ``last`` is outside the plan.
            LedgerError: The session is not open, there would be a gap, or the line could not be put on disk.
        """
        first = _validate.count("first", first, at_least=0)
        last = _validate.count("last", last, at_least=first)
        self.settle()
        if self._state != "open" or last >= self._reserved:
            self._change("reserve", {"first": first, "last": last})
        if not ahead:
            self._begun = max(self._begun, last + 1)

    def begin(self, query: int) -> None:
        """Note that the reserved ``query`` is being drawn, so that it is not given back.

        Raises:
            LedgerError: ``query`` is not reserved.
        """
        if type(query) is not int or query < 0:
            query = _validate.count("query", query, at_least=0)
        with self._lock:  # so that no thread gives back what this one begins
            self._settle()
            if query >= self._reserved:
                raise LedgerError(f"query {query} of session {self.id} is not reserved: reserve it before it begins.")
            self._begun = max(self._begun, query + 1)

    def give_back(self) -> None:
        """Give back the numbers that were reserved ahead and not begun: they are not spent, and can be reserved again.

        Numbers that an earlier process reserved are not given back, because nobody knows what it drew.
        :meth:`Ledger.close <tacita.ledger.Ledger.close>` calls this for every open session.
        Proof: docs/derivations/redone-queries.md.
        """
        with self._lock:
            self._settle()
            first = max(self._begun, self._carried, self.last_query + 1)
            if self._state == "open" and first < self._reserved:
                self._change("give_back", {"first": first, "last": self._reserved - 1})

    def spend(self, query: int, fingerprint: str = "") -> None:
        """Write the line of ``query``, before its release is returned.

        Args:
            query: A reserved number without a line.
            fingerprint: Keyed hash of the bounded values, which recognises the query when it is redone. Empty if none
                is kept; a redo then takes a new number.

        Raises:
            BudgetExceededError: ``query`` is outside the plan.
            LedgerError: ``query`` is not reserved, or already has a line.
        """
        if type(query) is not int or query < 0:
            query = _validate.count("query", query, at_least=0)
        if not isinstance(fingerprint, str):
            raise LedgerError(f"fingerprint must be str, got {type(fingerprint).__name__}.")
        self._change("query", {"number": query, "fingerprint": fingerprint})

    def settle(self) -> None:
        """Finish or take back a line whose writing was interrupted (Ctrl-C), so that the session says what it is."""
        with self._lock:
            self._settle()

    def flush(self) -> None:
        """Put every line on disk, before anything derived from the releases leaves the process."""
        self._flush()

    def close(self) -> None:
        """End the session. Reserved queries that were not used are not spent, unless a killed process reserved them."""
        with self._lock:
            self._settle()
            self._change("close", {"queries_made": self.queries_spent})

    # Every change is one line. A line that is read back goes through the same checks as one that is written.

    def _change(self, kind: str, fields: Mapping[str, Any], *, read_back: bool = False) -> None:
        """Check a line, write it unless it was read back, and apply it; put all but query lines on disk before."""
        with self._lock:
            if read_back:
                self._check(kind, fields)
                self._apply(kind, fields)
                return
            self._settle()
            self._check(kind, fields)
            self._write(kind, self._registration.id, fields, partial(self._apply, kind, fields), sync=kind != "query")

    def _apply(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Take over what a line says. Done twice, because the first time was interrupted, it changes nothing more."""
        match kind:
            case "open":
                self._state = "open"
            case "withdraw":
                self._state, self._counts_in_plan = "withdrawn", self._released(self.part)
            case "reserve":
                self._reserved = fields["last"] + 1
            case "give_back":
                self._reserved = fields["first"]
            case "query":
                number = fields["number"]
                self._lines[number] = fields["fingerprint"]
                self._begun = max(self._begun, number + 1)
                self._last_query = max(self._last_query, number)
            case "close":
                self._state, self._closed_with = "closed", fields["queries_made"]

    def _check(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Raise unless this line may follow the session's lines so far."""
        wanted = "registered" if kind in ("open", "withdraw") else "open"
        if self._state != wanted:
            raise LedgerError(f"session {self.id} is {self._state}: {kind!r} needs one that is {wanted}.")
        match kind:
            case "reserve":
                self._check_reserve(fields["first"], fields["last"])
            case "give_back":
                first, last = fields["first"], fields["last"]
                if not self._last_query < first <= last == self._reserved - 1:
                    raise LedgerError(
                        f"session {self.id} cannot give back queries {first} to {last}: not all of them are unused."
                    )
            case "query":
                query = fields["number"]
                if query >= self._registration.planned_queries:
                    raise self._past_plan(query)
                if not 0 <= query < self._reserved:
                    raise LedgerError(
                        f"query {query} of session {self.id} is not reserved: reserve it before its noise is used."
                    )
                if query in self._lines:
                    raise LedgerError(
                        f"query {query} of session {self.id} already has a line: a redo takes the next number."
                    )
            case "close":
                made = fields["queries_made"]
                if not len(self._lines) <= made <= self._reserved:
                    raise LedgerError(f"session {self.id} cannot have made {made} queries.")

    def _check_reserve(self, first: int, last: int) -> None:
        if last >= self.planned_queries:
            raise self._past_plan(last)
        if not 0 <= first <= self._reserved <= last:
            raise LedgerError(
                f"session {self.id} has reserved {self._reserved} queries; {first} to {last} do not follow."
            )

    def _past_plan(self, query: int) -> BudgetExceededError:
        return BudgetExceededError(
            f"session {self.id} planned {self.planned_queries} queries: query {query} is past its plan. "
            "Register another session for more."
        )

    def _left_by_another_process(self) -> None:
        """Count all reserved queries as begun: the process that reserved them is gone and may have released them."""
        if self._state == "open":
            self._carried = self._begun = self._reserved

    def __repr__(self) -> str:
        return f"Session({self.id!r}, {self._state}, {self.queries_made} of {self.planned_queries} queries)"
