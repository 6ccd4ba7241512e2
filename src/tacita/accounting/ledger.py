"""The ledger: every session that touches the data, written down before it is released.

Place: events, accountant, session -> [accounting.ledger] -> oracles, report. It composes sessions: in sequence those
that may share a record, in parallel those that cannot; and it says which sessions may still be added. What each kind of
line holds is in :mod:`tacita.accounting.session`, how lines are kept in :mod:`tacita.accounting.journal`. Proofs:
docs/derivations/composition.md.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tacita import _validate
from tacita.accounting.accountant import Bound
from tacita.accounting.book import (
    Book,
    Terms,
    as_share,
    planned,
    worst_bound,
    worst_delta,
    worst_divergence,
)
from tacita.accounting.chain import Anchor, Entry, Verification
from tacita.accounting.events import Event, Spend
from tacita.accounting.journal import Journal, read_file
from tacita.accounting.parts import Part, overlap
from tacita.accounting.pure_events import ApproximateDPEvent
from tacita.accounting.relations import NeighboringRelation
from tacita.accounting.session import SHARE, Registration, Session, Share, settings_sha256
from tacita.errors import LedgerError, TacitaError

_ENVELOPE = {"v", "seq", "prev", "kind", "session"}
_REGISTER = {*Terms.__dataclass_fields__, *Registration.__dataclass_fields__} - {"id"}
_LONGEST_REASON = 500  # characters
_FIELDS = {
    "open": set(),
    "withdraw": set(),
    "reserve": {"first", "last"},
    "query": {"number", "fingerprint"},
    "close": {"queries_made"},
}


class Ledger:
    """All sessions that touch one body of data, and the guarantee that follows for each privacy unit.

    With a path it is a file that is appended to, and continued if it is there already; without one it is in memory.
    Sessions registered before the first release compose tightly. A session registered after it may depend on what was
    released, and must be paid from a share fixed beforehand (:meth:`register_share`) or pass a filter
    (``filter_order``). Sessions on disjoint parts of one split compose in parallel.

    Args:
        path: A file such as ``run/ledger.jsonl`` (its folder is made), or ``None``.
        neighboring_relation: How neighbouring data sets differ; sessions of another relation are refused.
        privacy_unit: What one unit is, in the caller's words; it stands in the statement.
        max_epsilon: A cap: a session whose plan would pass it is refused when it is registered.
        max_delta: The delta of the cap.
        filter_order: Order of the Rényi filter; sessions may then be chosen after looking at releases, and the
            guarantee is the cap's.

    Raises:
        ValueError: A setting is not valid.
        LedgerError: The file is locked by another writer, damaged, shortened, or of other settings than these.

    Example:
        >>> from tacita.accounting import FullBatchGaussianEvent
        >>> ledger = Ledger(neighboring_relation="replace_one", privacy_unit="one row = one patient", max_epsilon=4,
        ...                 max_delta=1e-6)
        >>> event = FullBatchGaussianEvent(relation="replace_one", max_contribution=(1.0,), noise_std=(20.0,))
        >>> session = ledger.register(event, planned_queries=10)
        >>> round(ledger.epsilon(1e-6), 2), ledger.epsilon_spent(1e-6)
        (1.37, 0.0)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        neighboring_relation: NeighboringRelation,
        privacy_unit: str,
        max_epsilon: float | None = None,
        max_delta: float | None = None,
        filter_order: float | None = None,
    ):
        terms = Terms(
            neighboring_relation=neighboring_relation,
            privacy_unit=privacy_unit,
            max_epsilon=max_epsilon,
            max_delta=max_delta,
            filter_order=filter_order,
        )
        self._begin(terms, Journal(None if path is None else Path(path)))

    @classmethod
    def load(cls, path: str | os.PathLike[str], read_only: bool = True, *, anchor: Anchor | None = None) -> "Ledger":
        """The ledger in a file, with the relation, unit and cap that the file states.

        Read-only needs no lock, and shows a ledger even if it was changed or shortened: :meth:`verify` tells. To
        continue a ledger everything must hold; a torn last line is dropped, and what was reserved counts as spent.

        Args:
            path: A file that a ledger with at least one session wrote.
            read_only: ``False`` to add to it.
            anchor: For ``read_only=False``: held against the file in place of ``NAME.head.json`` (if that was lost).

        Raises:
            LedgerError: Unreadable, not a ledger, or, to be continued, locked, changed or shortened.
        """
        path = Path(path)
        entries = read_file(path).entries
        if not entries:
            raise LedgerError(f"{path.name} holds no session yet; open it as Ledger(path, neighboring_relation=...).")
        with _as_ledger_error(path.name, 1):
            terms = Terms.of(entries[0])
        ledger = cls.__new__(cls)
        ledger._begin(terms, Journal(path, anchor=anchor, read_only=read_only))
        return ledger

    def _begin(self, terms: Terms, journal: Journal) -> None:
        self._journal = journal
        self._book = Book(terms, self._write, self.flush)
        try:
            self._replay()
        except BaseException:
            journal.close()
            raise

    def _replay(self) -> None:
        name = "ledger" if self._journal.path is None else self._journal.path.name
        for number, entry in enumerate(self._journal.entries, start=1):
            with _as_ledger_error(name, number):
                self._replay_line(entry)
        self._journal.entries = []
        for session in self._book.sessions.values():
            session._left_by_another_process()

    def _replay_line(self, entry: Entry) -> None:
        kind, name = entry["kind"], entry["session"]
        if kind == "register":
            if set(entry) != _ENVELOPE | _REGISTER:
                raise LedgerError("a register line with other fields.")
            differences = Terms.of(entry).differences(self._book.terms)
            if differences:
                raise LedgerError(f"it was written with another {differences} than this ledger is opened with.")
            registration = Registration.from_fields(name, entry)
            if name != self._book.next_id(registration.purpose):
                raise LedgerError(f"session {name!r} is out of turn.")
            self._book.check(registration)
            self._book.add(registration)
            return
        if set(entry) != _ENVELOPE | _FIELDS[kind]:
            raise LedgerError(f"a {kind} line with other fields.")
        session = self._book.sessions[name]
        fields = {field: entry[field] for field in _FIELDS[kind]}
        session._replay(kind, fields)

    # Registering.

    def register(
        self,
        event: Event,
        *,
        planned_queries: int,
        purpose: str = "train",
        part: Part | None = None,
        settings: Mapping[str, Any] | None = None,
        secure_randomness: bool = True,
        share: Share | None = None,
    ) -> Session:
        """Add a session. It counts for :meth:`epsilon`, and for the cap, from here on.

        Args:
            event: What it spends, as its estimator states.
            planned_queries: Queries that it may make.
            purpose: A word such as "train", "bounds" or "score"; with a number it becomes the session's id.
            part: The part of a split that the session sees; ``None`` is all records.
            settings: Plain JSON values that must be the same when the session is resumed; only their hash is kept.
            secure_randomness: ``False`` if a test handed in the stream: then the statement says so.
            share: Pay from this share.

        Raises:
            BudgetExceededError: The plan would pass the cap, or the share.
            LedgerError: Another relation; or a release was made already and there is neither share nor filter.
            UnsupportedEventError: A part that is not disjoint under the relation; an event that no filter takes.
        """
        if purpose == SHARE or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", purpose):
            raise ValueError(
                f"purpose must be a word of letters, digits, '_', '.' or '-', not 'share', got {purpose!r}."
            )
        return self._register(
            Registration(
                id=self._book.next_id(purpose),
                event=event,
                planned_queries=_validate.count("planned_queries", planned_queries),
                purpose=purpose,
                part=part,
                settings_sha256=settings_sha256(settings or {}),
                secure_randomness=bool(secure_randomness),
                share=None if share is None else share.id,
            )
        )

    def register_share(self, epsilon: float, delta: float, *, part: Part | None = None) -> Share:
        """Set a piece of the budget aside for sessions whose settings will depend on releases.

        The sessions inside one share are registered together, before the first of them makes a query, and their plan
        at ``delta`` must stay below ``epsilon``. The share counts in full, used or not.

        Args:
            epsilon: > 0.
            delta: In (0, 1).
            part: The part of a split that the sessions inside will see; ``None`` is all records.

        Raises:
            LedgerError: A release was made already, so that the share is not fixed beforehand.
            BudgetExceededError: The plan with it would pass the cap.
        """
        event = ApproximateDPEvent(
            relation=self.neighboring_relation,
            epsilon=_validate.positive("epsilon", epsilon),
            delta_share=_validate.delta("delta", delta),
        )
        session = self._register(
            Registration(
                id=self._book.next_id(SHARE),
                event=event,
                planned_queries=1,
                purpose=SHARE,
                part=part,
                settings_sha256=settings_sha256({}),
                secure_randomness=True,
                share=None,
            )
        )
        return as_share(session)

    def _register(self, registration: Registration) -> Session:
        self._book.check(registration)
        self._book.check_budget(registration)
        fields = {**asdict(self._book.terms), **registration.to_fields()}
        self._write("register", registration.id, fields, lambda: self._book.add(registration))
        return self._book.sessions[registration.id]

    def _replace(self, session: Session, event: Event, settings: Mapping[str, Any]) -> Session:
        """Withdraw a session and register another event in its place: both, or neither if the other is refused."""
        session._check("withdraw", {})
        name, bound = self._book.next_id(session.purpose), settings_sha256(settings)
        registration = replace(session.registration, id=name, event=event, settings_sha256=bound)
        self._book.check_in_place_of(session, registration)
        session.withdraw()
        return self._register(registration)

    def _write(self, kind: str, session: str, fields: Mapping[str, Any], then: Callable[[], None]) -> None:
        self._journal.append(kind, session, fields)
        then()
        if kind != "query":
            self._journal.sync()

    # The guarantee.

    def bound(self, delta: float) -> Bound:
        """The guarantee of the *plan* at ``delta``: of all sessions registered and not withdrawn in time.

        It holds whatever is done with the releases, stopping early because of them included. Epsilon is infinite if a
        session has no noise, or rests on a condition that nobody enforces (:meth:`conditional_bound`).
        """
        _validate.delta("delta", delta)
        if self.conditions:
            return Bound(math.inf, delta, "none: a session's guarantee is conditional")
        return self.conditional_bound(delta)

    def conditional_bound(self, delta: float) -> Bound:
        """As :meth:`bound`, if every condition in :attr:`conditions` holds."""
        _validate.delta("delta", delta)
        plan, rule = self._book.plan(), self._book.filter
        if rule is not None and plan:
            return Bound(rule.epsilon(delta), delta, rule.name)
        return worst_bound(plan, delta)

    def spent_bound(self, delta: float) -> Bound:
        """What was *spent so far* at ``delta``: never less than what was released.

        A closed session counts the queries it made; a running one those with a line; one whose process is gone all that
        it had reserved. A session that does not compose query by query counts in full from its first query on, and so
        does a share. Valid as a guarantee only if the queries that are missing are so for a reason that has nothing to
        do with the releases; :meth:`bound` always is.
        """
        _validate.delta("delta", delta)
        spent, rule = self._book.spent(), self._book.filter
        if rule is not None and spent:
            return Bound(rule.epsilon(delta, worst_divergence(spent, rule)), delta, rule.name)
        return worst_bound(spent, delta)

    def epsilon(self, delta: float) -> float:
        """Epsilon of the plan at ``delta``; see :meth:`bound`."""
        return self.bound(delta).epsilon

    def epsilon_spent(self, delta: float) -> float:
        """Epsilon spent so far at ``delta``; see :meth:`spent_bound`. Infinite once a conditional session has spent."""
        spent_on_condition = any(
            session.event.condition is not None and session.queries_spent for session in self._book.sessions.values()
        )
        return math.inf if spent_on_condition else self.spent_bound(delta).epsilon

    def delta(self, epsilon: float) -> float:
        """Delta of the plan at ``epsilon`` >= 0; 1 if nothing is guaranteed."""
        _validate.non_negative("epsilon", epsilon)
        plan, rule = self._book.plan(), self._book.filter
        if self.conditions:
            return 1.0
        return rule.delta(epsilon) if rule is not None and plan else worst_delta(plan, epsilon)

    def spends(
        self, part: Part | None = None, *, share: Share | None = None, before: Session | None = None
    ) -> list[Spend]:
        """What is charged already to records of ``part`` (or of the whole): what calibration must stand beside.

        Args:
            part: A part of a split; ``None`` is all records.
            share: Only what is charged to this share.
            before: Only what was registered before this session.
        """
        if share is not None:
            charges = [planned(session) for session in self._book.inside(share.id)]
        else:
            charges = self._book.plan(before=before)
        return [spend for where, spend in charges if overlap(where, part)]

    # What it is.

    @property
    def path(self) -> Path | None:
        """The file, or ``None`` in memory."""
        return self._journal.path

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        """How neighbouring data sets differ."""
        return self._book.terms.neighboring_relation

    @property
    def privacy_unit(self) -> str:
        """What one unit is, in the caller's words."""
        return self._book.terms.privacy_unit

    @property
    def max_epsilon(self) -> float | None:
        """The cap."""
        return self._book.terms.max_epsilon

    @property
    def max_delta(self) -> float | None:
        """The cap's delta."""
        return self._book.terms.max_delta

    @property
    def filter_order(self) -> float | None:
        """Order of the Rényi filter."""
        return self._book.terms.filter_order

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All sessions, in the order of registration, withdrawn ones included; shares are in :attr:`shares`."""
        return tuple(session for session in self._book.sessions.values() if session.purpose != SHARE)

    @property
    def shares(self) -> tuple[Share, ...]:
        """The shares set aside."""
        return tuple(as_share(session) for session in self._book.sessions.values() if session.purpose == SHARE)

    @property
    def conditions(self) -> tuple[str, ...]:
        """What nobody enforces and the guarantee rests on; empty if it is unconditional."""
        return self._book.conditions()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the library sees to, and the guarantee rests on."""
        return self._book.assumptions()

    # The lines.

    @property
    def head(self) -> str:
        """SHA-256 of the last line; 64 zeros if there is none."""
        return self._journal.head

    @property
    def anchor(self) -> Anchor:
        """Number of lines and hash of the last: to keep in a checkpoint or a statement, and hand to :meth:`verify`."""
        return Anchor(self._journal.count, self._journal.head)

    def verify(self, anchor: Anchor | tuple[int, str] | tuple[int, str, str] | None = None) -> Verification:
        """Read the lines again: does each follow from the one before, and is the anchor's line where it says?

        Claims nothing against somebody who rewrites the lines and every copy of the anchor.

        Args:
            anchor: (count, head) or (count, head, name), from a checkpoint or a statement; by default
                ``NAME.head.json``, which stands beside the file.
        """
        if anchor is not None and not isinstance(anchor, Anchor):
            anchor = Anchor(anchor[0], anchor[1], *anchor[2:])
        return self._journal.verify(anchor)

    def flush(self) -> None:
        """Put every line on disk: before anything derived from releases leaves the process."""
        self._journal.sync()

    def close(self) -> None:
        """Flush, and let other writers in. Reading goes on; writing does not."""
        self._journal.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        name = "in memory" if self.path is None else self.path.name
        return f"Ledger({name}, {self.neighboring_relation}, {self.privacy_unit!r}, {len(self.sessions)} sessions)"


class _as_ledger_error:
    """Whatever a damaged line makes fail is a :class:`LedgerError` that names the line."""

    def __init__(self, name: str, number: int):
        self._where = f"{name}, line {number}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, KeyError):
            raise LedgerError(f"{self._where}: it lacks a field, or names an unknown kind or session.") from None
        if isinstance(error, TacitaError | ValueError | TypeError | AttributeError | OverflowError | RecursionError):
            why = " ".join(str(error).split())[:_LONGEST_REASON]  # what it quotes may be of any length
            raise LedgerError(f"{self._where}: {why}") from None
