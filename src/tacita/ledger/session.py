"""Sessions: the queries that one oracle plans, reserves and makes, each change a record of the ledger.

A session goes from *registered* to *open* to *closed*, or from registered to *withdrawn*. The same code applies a
record that is written now and one that is read back.
"""

import threading
from collections.abc import Sequence
from functools import partial
from typing import Literal, Protocol

from msgspec import to_builtins

from tacita import _validate
from tacita.accounting.events import Event
from tacita.accounting.parts import Part
from tacita.errors import BudgetExceededError, LedgerError
from tacita.ledger.journal import Journal
from tacita.ledger.records import Change, Close, GiveBack, Open, Query, Registration, Reserve, Withdraw

State = Literal["registered", "open", "withdrawn", "closed"]
BLOCK, FIRST = 1024, 16  # queries a reservation, at most, and at first


class Owner(Protocol):
    """What a session needs of its ledger."""

    id: str
    journal: Journal
    lock: threading.RLock  # threads change the ledger one at a time

    @property
    def all(self) -> "tuple[Session, ...]":
        """Every session of the ledger."""
        ...

    def released(self, part: Part | None) -> bool:
        """Return whether a session that shares records with ``part`` may have released something."""
        ...


class Session:
    """One session of a ledger; made by :meth:`Ledger.register <tacita.ledger.Ledger.register>`.

    Queries are numbered from 0. A number must be reserved on disk before its noise is used, and its record is written
    before its release is returned. The noise of a number is drawn once: a number with a record gets no second record.

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

    def __init__(self, registration: Registration, owner: Owner):
        self._registration, self._owner = registration, owner
        self._lines: dict[int, str] = {}
        self._last_query = -1
        self._reserved = 0
        self._begun = 0  # reserved numbers below this one may have been drawn
        self._carried = 0  # a process that is gone reserved the numbers below this one, and may have released each
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
        return self._owner.id

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
    def ended(self) -> tuple[str, ...]:
        """The ids of all sessions of its ledger that have ended, and draw no more noise."""
        return tuple(one.id for one in self._owner.all if one.closed)

    @property
    def queries_made(self) -> int:
        """The number of queries that have a record."""
        return len(self._lines)

    @property
    def last_query(self) -> int:
        """The highest number with a record; -1 if there is none."""
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

        These are the queries with a record and, after a process was killed, all that it had reserved. A process that
        closed its ledger gave back what it had not begun.
        """
        return self._closed_with if self._closed_with is not None else max(len(self._lines), self._carried)

    def is_reserved(self, query: int) -> bool:
        """Return whether ``query`` is reserved, so that its noise may be used."""
        return 0 <= query < self._reserved

    def lookup(self, query: int) -> str | None:
        """Return the fingerprint in the record of ``query``; ``None`` if it has no record and was never released."""
        return self._lines.get(query)

    # Changes.

    def open(self) -> None:
        """Start the session, which cannot be withdrawn from here on."""
        self._change(Open(session=self.id))

    def withdraw(self) -> None:
        """Give up a session that was not opened. It spends nothing.

        It leaves the plan too, unless a session that shares records with it has already reserved queries. The choice
        to withdraw may then depend on what was released, and the plan's guarantee is that of both sessions.
        """
        self._change(Withdraw(session=self.id))

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
            LedgerError: The session is not open, there would be a gap, or the record could not be put on disk.
        """
        first = _validate.count("first", first, at_least=0)
        last = _validate.count("last", last, at_least=first)
        self.settle()
        if self._state != "open" or last >= self._reserved:
            self._change(Reserve(session=self.id, first=first, last=last))
        if not ahead:
            self._begun = max(self._begun, last + 1)

    def begin(self, query: int) -> None:
        """Note that the reserved ``query`` is being drawn, so that it is not given back.

        Raises:
            LedgerError: ``query`` is not reserved.
        """
        if type(query) is not int or query < 0:
            query = _validate.count("query", query, at_least=0)
        with self._owner.lock:  # so that no thread gives back what this one begins
            self._owner.journal.settle()
            if query >= self._reserved:
                raise LedgerError(f"query {query} of session {self.id} is not reserved: reserve it before it begins.")
            self._begun = max(self._begun, query + 1)

    def give_back(self) -> None:
        """Give back the numbers that were reserved ahead and not begun: they are not spent, and can be reserved again.

        Numbers that an earlier process reserved are not given back, because nobody knows what it drew.
        :meth:`Ledger.close <tacita.ledger.Ledger.close>` calls this for every open session.
        Proof: docs/derivations/redone-queries.md.
        """
        with self._owner.lock:
            self._owner.journal.settle()
            first = max(self._begun, self._carried, self.last_query + 1)
            if self._state == "open" and first < self._reserved:
                self._change(GiveBack(session=self.id, first=first, last=self._reserved - 1))

    def spend(self, query: int, fingerprint: str = "") -> None:
        """Write the record of ``query``, before its release is returned.

        Args:
            query: A reserved number without a record.
            fingerprint: Keyed hash of the bounded values, which recognises the query when it is redone. Empty if none
                is kept; a redo then takes a new number.

        Raises:
            BudgetExceededError: ``query`` is outside the plan.
            LedgerError: ``query`` is not reserved, or already has a record.
        """
        if type(query) is not int or query < 0:
            query = _validate.count("query", query, at_least=0)
        if not isinstance(fingerprint, str):
            raise LedgerError(f"fingerprint must be str, got {type(fingerprint).__name__}.")
        self._change(Query(session=self.id, number=query, fingerprint=fingerprint))

    def settle(self) -> None:
        """Finish or take back a record whose writing was interrupted (Ctrl-C), so that the session says what it is."""
        with self._owner.lock:
            self._owner.journal.settle()

    def flush(self) -> None:
        """Put every record on disk, before anything derived from the releases leaves the process."""
        with self._owner.lock:
            self._owner.journal.sync()

    def close(self) -> None:
        """End the session. Reserved queries that were not used are not spent, unless a killed process reserved them."""
        with self._owner.lock:
            self._owner.journal.settle()
            self._change(Close(session=self.id, queries_made=self.queries_spent))

    # Every change is one record. One that is read back goes through the same checks as one that is written.

    def _change(self, change: Change, *, read_back: bool = False) -> None:
        """Check a record, write it unless it was read back, and apply it; put all but queries on disk before."""
        with self._owner.lock:
            if read_back:
                self._check(change)
                self._apply(change)
                return
            journal = self._owner.journal
            journal.settle()
            self._check(change)
            journal.append(to_builtins(change), partial(self._apply, change), sync=not isinstance(change, Query))

    def _take_over(self, first: int, fingerprints: Sequence[str]) -> bool:
        """Apply the records of queries ``first``, ``first`` + 1, ... that were read back, if :meth:`_check` lets all.

        It does where they are reserved, within the plan, and after all that have a record.
        """
        after = first + len(fingerprints)
        if self._state != "open" or first <= self._last_query or after > min(self._reserved, self.planned_queries):
            return False
        self._lines.update(zip(range(first, after), fingerprints, strict=True))
        self._begun, self._last_query = max(self._begun, after), after - 1
        return True

    def _apply(self, change: Change) -> None:
        """Take over what a record says. Done twice, because the first time was interrupted, it changes nothing more."""
        match change:
            case Open():
                self._state = "open"
            case Withdraw():
                self._state, self._counts_in_plan = "withdrawn", self._owner.released(self.part)
            case Reserve():
                self._reserved = change.last + 1
            case GiveBack():
                self._reserved = change.first
            case Query():
                self._lines[change.number] = change.fingerprint
                self._begun = max(self._begun, change.number + 1)
                self._last_query = max(self._last_query, change.number)
            case Close():
                self._state, self._closed_with = "closed", change.queries_made

    def _check(self, change: Change) -> None:
        """Raise unless this record may follow the session's records so far."""
        wanted = "registered" if isinstance(change, Open | Withdraw) else "open"
        if self._state != wanted:
            raise LedgerError(f"session {self.id} is {self._state}: {change.kind!r} needs one that is {wanted}.")
        match change:
            case Reserve(first=first, last=last):
                if last >= self.planned_queries:
                    raise self._past_plan(last)
                if not 0 <= first <= self._reserved <= last:
                    raise LedgerError(
                        f"session {self.id} has reserved {self._reserved} queries; {first} to {last} do not follow."
                    )
            case GiveBack(first=first, last=last):
                if not self._last_query < first <= last == self._reserved - 1:
                    raise LedgerError(
                        f"session {self.id} cannot give back queries {first} to {last}: not all of them are unused."
                    )
            case Query(number=query):
                if query >= self._registration.planned_queries:
                    raise self._past_plan(query)
                if not self.is_reserved(query):
                    raise LedgerError(
                        f"query {query} of session {self.id} is not reserved: reserve it before its noise is used."
                    )
                if query in self._lines:
                    raise LedgerError(
                        f"query {query} of session {self.id} already has a line: a redo takes the next number."
                    )
            case Close(queries_made=made):
                if not len(self._lines) <= made <= self._reserved:
                    raise LedgerError(f"session {self.id} cannot have made {made} queries.")

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


class Reservations:
    """Reserves queries of one session ahead of their use: as many as were made, but 16 at first and ``size`` at most.

    So a kill over-reports at most as many queries as were made, or 16. The first 1024 queries need seven flushes to
    disk (5 to 20 ms each). A longer plan needs one every 1024 queries, which is at most 2 % of the run's time if a
    query takes a millisecond.

    The part of a reservation that is not used counts as spent if the process is killed, and is given back when the
    ledger is closed. A size that followed the duration of queries would reveal batch sizes, and so the number of
    records, in a ledger that is shared.

    Args:
        session: An open session.
        size: Queries a reservation at most, >= 1; a public number. Use 1 for a process that lives for one query and
            may be killed at any time, such as a federated client: it then pays for what it made, at one flush a query.

    Example:
        >>> from tacita.accounting import FullBatchLaw, GaussianSumEvent
        >>> from tacita.ledger import Ledger
        >>> ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row = one patient")
        >>> event = GaussianSumEvent(
        ...     relation="add_or_remove_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(5.0,))
        >>> session = ledger.register(event, planned_queries=10)
        >>> session.open()
        >>> Reservations(session).prepare(0)
        >>> session.is_reserved(0), session.is_reserved(9)
        (True, True)
    """

    def __init__(self, session: Session, size: int = BLOCK):
        self._session = session
        self._size = _validate.count("size", size)

    def prepare(self, query: int) -> None:
        """Reserve ``query`` on disk, with the rest of its group, and note that it is being drawn.

        Raises:
            BudgetExceededError: ``query`` is outside the plan.
            LedgerError: The record could not be put on disk; no noise of ``query`` may be used.
        """
        session = self._session
        if not session.is_reserved(query):
            block_end = min((query // self._size + 1) * self._size, max(FIRST, 2 * query))
            last = max(query, min(block_end, session.planned_queries) - 1)
            session.reserve(min(query, session.reserved_queries), last, ahead=True)
        session.begin(query)
