"""The sessions and shares of one ledger: what each is charged, and which may be added.

A record is checked, then written, then applied; one that is read back is checked in the same way. Proofs of the rules:
docs/derivations/composition.md.
"""

import secrets
import threading
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from tacita.accounting.composition import Charge, worst_bound, worst_divergence
from tacita.accounting.events import Spend
from tacita.accounting.events.pure import ApproximateDPEvent
from tacita.accounting.parts import Part, check_drawing, check_part, overlap
from tacita.errors import BudgetExceededError, LedgerError
from tacita.ledger.hash_chain import Anchor, Entry, QueryRun
from tacita.ledger.journal import Journal
from tacita.ledger.records import (
    SHARE,
    LedgerTerms,
    Register,
    Registration,
    Seal,
    Sealed,
    Share,
    errors_of_record,
    read_record,
)
from tacita.ledger.session import Session

if TYPE_CHECKING:
    from tacita.accounting.composition import Filter

TOO_LATE = (
    "queries were made on these records already, so that the settings of a new session may depend on what they "
    "released. Register all sessions before the first query; or set a share aside before it (register_share) and "
    "pass it as share= to register, to the oracle or to fit; or build the ledger with a filter (filter_order, or "
    "filter='gaussian' if every session is Gaussian), max_epsilon and max_delta."
)


class SessionRegistry:
    """Sessions by id, under the rules of one ledger.

    Whoever changes something holds ``lock`` from the check of a record until it is written and applied.
    """

    def __init__(self, terms: LedgerTerms, journal: Journal):
        self.terms, self.filter, self.journal = terms, terms.rule, journal
        self.sessions: dict[str, Session] = {}
        self.id = secrets.token_hex(16)  # replaced by the id in the records when a ledger is read back
        self.lock = threading.RLock()

    @property
    def all(self) -> tuple[Session, ...]:
        """Every session, shares and withdrawn ones included, in the order of registration."""
        return tuple(self.sessions.values())

    def next_id(self, purpose: str) -> str:
        """Return the id of the next session for ``purpose``."""
        return f"{purpose}-{1 + sum(session.purpose == purpose for session in self.all)}"

    def add(self, registration: Registration) -> None:
        """Add a session that has passed :meth:`check`."""
        self.sessions.setdefault(registration.id, Session(registration, self))  # it is there if an interrupt came

    def inside(self, share: str) -> list[Session]:
        """Return the sessions that are paid from ``share``, without those withdrawn in time."""
        return [one for one in self.all if one.share == share and one.counts_in_plan]

    def released(self, part: Part | None) -> bool:
        """Return whether a session that shares records with ``part`` may have released something."""
        return any(one.reserved_queries and overlap(one.part, part) for one in self.all)

    def check_sealable(self) -> None:
        """Raise :class:`LedgerError` if a session is open, or there is none at all."""
        if not self.sessions:
            raise LedgerError(
                "a ledger without a session guarantees nothing, and cannot be sealed: register one first."
            )
        running = [one.id for one in self.all if one.state == "open"]
        if running:
            raise LedgerError(f"a ledger with open sessions cannot be sealed: close {', '.join(running)} first.")

    # Reading back.

    def replay(self, entries: Iterable[Entry], name: str) -> Seal | None:
        """Apply the records of an empty registry's ledger; return the seal, if they end with one.

        Args:
            entries: The records, oldest first; their hash chain was checked before.
            name: The file's name, for error messages.

        Raises:
            LedgerError: This version would not have written one of the records, under the rules that hold at its place.
        """
        seal, number = None, 0
        for entry in entries:
            if isinstance(entry, QueryRun) and seal is None and self._queries_again(entry):
                number += len(entry["fingerprints"])
                continue
            for line in entry.each() if isinstance(entry, QueryRun) else (entry,):
                number += 1
                with errors_of_record(name, number):
                    if seal is not None:
                        raise LedgerError("it follows the seal, after which nothing may be added.")
                    seal = self._read_back(line)
        for session in self.all:
            session._left_by_another_process()
        return seal

    def _read_back(self, entry: Entry) -> Seal | None:
        """Check and apply one record; return the seal if it is one."""
        record = read_record(entry)
        match record:
            case Sealed():
                self.check_sealable()
                return Seal(record.files, record.statement, Anchor(entry["seq"], entry["prev"]))
            case Register():
                self._register_again(record)
            case _:
                self.sessions[record.session]._change(record, read_back=True)
        return None

    def _queries_again(self, run: QueryRun) -> bool:
        """Apply the records of queries in a row, if all of them may follow; else apply none."""
        session = self.sessions.get(run["session"])
        return session is not None and session._take_over(run["number"], run["fingerprints"])

    def _register_again(self, record: Register) -> None:
        differences = record.terms.differences(self.terms)
        if differences:
            raise LedgerError(f"it was written with another {differences} than this ledger is opened with.")
        if self.sessions and record.ledger != self.id:
            raise LedgerError("it is a line of another ledger.")
        self.id = record.ledger
        new = record.registration
        if new.id != self.next_id(new.purpose):
            raise LedgerError(f"session {new.id!r} is out of turn.")
        self.check(new)
        self.add(new)

    # What the sessions add up to.

    def plan(self, before: Session | None = None) -> list[Charge]:
        """Return the full charges of the shares and of the sessions in no share, up to ``before`` if given."""
        ones = takewhile(lambda one: one is not before, self.all)
        return [planned(one) for one in ones if one.counts_in_plan and one.share is None]

    def spent(self, *, made: bool = False) -> list[Charge]:
        """Return charges as :meth:`plan` does, for queries that may have been released; with ``made``, that were."""
        number = {one.id: one.queries_made if made else one.queries_spent for one in self.all}
        used_shares = {one.share for one in self.all if number[one.id]}
        spent: list[Charge] = []
        for one in self.all:
            queries = number[one.id] if one.purpose != SHARE else int(one.id in used_shares)
            if queries and one.share is None:
                if not one.event.per_query:  # it leaves no number out
                    queries = max(queries, one.last_query + 1) if one.event.costs_by_prefix else one.planned_queries
                spent.append((one.part, Spend(one.event, queries)))
        return spent

    def conditions(self) -> tuple[str, ...]:
        """Return the conditions that the plan rests on and nobody enforces."""
        return _distinct(one.event.condition for one in self.all if one.counts_in_plan)

    def assumptions(self) -> tuple[str, ...]:
        """Return the assumptions that the plan rests on and the library sees to."""
        each = (one.event.assumptions for one in self.all if one.counts_in_plan)
        return _distinct(assumption for assumptions in each for assumption in assumptions)

    # What may be added.

    def check(self, new: Registration) -> None:
        """Check the rules that need no accountant. A record that is read back must keep them, too.

        Raises:
            LedgerError, UnsupportedEventError: The session may not be added, whatever it costs.
        """
        if new.event.relation != self.terms.neighboring_relation:
            raise LedgerError(
                f"an event under {new.event.relation} does not fit a ledger under {self.terms.neighboring_relation}: "
                "build both with one neighboring_relation."
            )
        if new.part is not None:
            check_part(new.part, self.terms.neighboring_relation)
            check_drawing(new.part, [one.part for one in self.all])
        if new.share is not None:
            self._check_in_share(new, new.share)
        elif self.filter is not None:
            self.filter.divergence([planned(new)[1]])  # raises if the filter does not take the event
        else:
            self.check_in_time(new.part)

    def check_in_time(self, part: Part | None) -> None:
        """Raise :class:`LedgerError` if a session registered now, outside all shares, could depend on releases."""
        if self.filter is None and self.released(part):
            raise LedgerError(TOO_LATE)

    def _check_in_share(self, new: Registration, name: str) -> None:
        share = self.sessions.get(name)
        if share is None or share.purpose != SHARE or new.purpose == SHARE:
            raise LedgerError(f"{name!r} is no share of this ledger: pass the share that register_share returned.")
        if share.part is not None and new.part != share.part:
            raise LedgerError(f"{name} was set aside for one part of the records: register the session on that part.")
        if any(other.reserved_queries and overlap(other.part, new.part) for other in self.inside(name)):
            raise LedgerError(
                f"sessions of {name} have made queries already: sessions inside one share are registered together. "
                "Set one share aside for each."
            )

    def check_budget(self, new: Registration) -> None:
        """Check the rules that need an accountant: the limit of the share, the budget of the filter, the cap.

        Args:
            new: The session to be registered.

        Raises:
            BudgetExceededError: The session would exceed one of these limits.
        """
        terms, charge = self.terms, planned(new)
        if terms.max_epsilon is not None and new.event.condition is not None:
            raise BudgetExceededError(
                f"max_epsilon caps a guarantee, and this event guarantees nothing unless {new.event.condition}."
            )
        if new.share is not None:
            share = as_share(self.sessions[new.share])
            inside = [planned(other) for other in self.inside(new.share)]
            _refuse([*inside, charge], share.epsilon, share.delta, f"{share.id}, set aside")
        elif self.filter is not None:
            _refuse_divergence([*self.plan(), charge], self.filter)
        elif terms.max_epsilon is not None and terms.max_delta is not None:
            _refuse([*self.plan(), charge], terms.max_epsilon, terms.max_delta, "the cap")


def planned(session: Registration | Session) -> Charge:
    """Return what a session costs if it makes every query that it planned."""
    return session.part, Spend(session.event, session.planned_queries)


def as_share(session: Session) -> Share:
    """Return the share that a register record with purpose "share" set aside."""
    if not isinstance(session.event, ApproximateDPEvent):
        raise LedgerError(f"{session.id} is not the line of a share.")
    return Share(session.id, session.event.epsilon, session.event.delta_share, session.part)


def _refuse(charges: Sequence[Charge], most: float, delta: float, name: str) -> None:
    epsilon = worst_bound(charges, delta).epsilon
    if not epsilon <= most:
        raise BudgetExceededError(
            f"epsilon {epsilon:.6g} at delta {delta:g} would exceed {name}: epsilon {most:g}. "
            "Plan fewer queries, or add more noise."
        )


def _refuse_divergence(charges: Sequence[Charge], rule: "Filter") -> None:
    divergence = worst_divergence(charges, rule)
    if not divergence <= rule.budget:
        epsilon = rule.epsilon(rule.max_delta, divergence)
        raise BudgetExceededError(
            f"epsilon {epsilon:.6g} at delta {rule.max_delta:g} would exceed the cap: epsilon {rule.max_epsilon:g} "
            f"({rule.name}: a divergence of {divergence:.6g} in a budget of {rule.budget:.6g}). "
            "Plan fewer queries, or add more noise."
        )


def _distinct(words: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in words if word is not None))
