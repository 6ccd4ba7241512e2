"""The ledger: the record of every session that touches the data, written before anything is released.

Sessions that may share a record compose in sequence, sessions that cannot compose in parallel. The ledger also decides
which sessions may still be added. :mod:`tacita.ledger.records` says what each kind of record holds,
:mod:`tacita.ledger.journal` how they are kept. Proofs: docs/derivations/composition.md.
"""

import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import to_builtins

from tacita import _validate
from tacita._counted import counted
from tacita.accounting.accountant import Bound
from tacita.accounting.composition import worst_bound, worst_delta, worst_divergence, worst_privacy_curve
from tacita.accounting.curve import PrivacyCurve
from tacita.accounting.events import Event, Spend
from tacita.accounting.events.pure import ApproximateDPEvent
from tacita.accounting.parts import Part, overlap
from tacita.accounting.relations import NeighboringRelation
from tacita.errors import LedgerError
from tacita.ledger.hash_chain import SEAL, Anchor, Verification
from tacita.ledger.journal import Journal, read_file
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
    settings_sha256,
)
from tacita.ledger.registry import SessionRegistry, as_share, planned
from tacita.ledger.session import Session


class Ledger:
    """All sessions that touch one body of data, and the guarantee that follows for each privacy unit.

    With a path, the ledger is a file that records are appended to; an existing file is continued. Without a path it is
    kept in memory. Sessions registered before the first release compose tightly. The settings of a session that is
    registered later may depend on what was released, so such a session must be paid from a share fixed beforehand
    (:meth:`register_share`) or pass a filter (``filter_order``, ``filter``). Sessions on disjoint parts
    of one split compose in parallel.

    Args:
        path: A file such as ``run/ledger.jsonl`` (its folder is made), or ``None``.
        neighboring_relation: How neighbouring data sets differ; sessions of another relation are refused.
        privacy_unit: What one unit is, in the caller's words; it is printed in the statement.
        max_epsilon: A cap. A session is refused at registration if the plan with it would exceed the cap.
        max_delta: The delta of the cap.
        filter_order: Order of the Rényi filter. Sessions may then be chosen after looking at releases, and the
            guarantee is that of the cap.
        filter: ``"gaussian"`` for a filter of sessions that each are Gaussian as a whole (every record in every query,
            one pass, shuffled epochs). It loses nothing against sessions that were fixed beforehand, where
            ``filter_order`` takes 5 to 8 % more noise at its best order; sessions that sample records are refused.

    Raises:
        ValueError: A setting is not valid.
        LedgerError: The file is locked by another writer, damaged or shortened, or was written with other settings.

    Example:
        >>> from tacita.accounting import FullBatchLaw, GaussianSumEvent
        >>> ledger = Ledger(neighboring_relation="replace_one", privacy_unit="one row = one patient", max_epsilon=4,
        ...                 max_delta=1e-6)
        >>> event = GaussianSumEvent(
        ...     relation="replace_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(20.0,))
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
        filter: Literal["gaussian"] | None = None,
    ):
        terms = LedgerTerms(
            neighboring_relation=neighboring_relation,
            privacy_unit=privacy_unit,
            max_epsilon=max_epsilon,
            max_delta=max_delta,
            filter_order=filter_order,
            filter=filter,
        )
        self._begin(terms, Journal(None if path is None else Path(path)))

    @classmethod
    def load(cls, path: str | os.PathLike[str], read_only: bool = True, *, anchor: Anchor | None = None) -> "Ledger":
        """Read a ledger from a file, with the relation, unit and cap that the file states.

        Reading alone takes no lock and also works on a ledger that was changed or shortened; :meth:`verify` tells. A
        ledger that is to be continued must be intact. A torn last record is then dropped, and reserved queries count as
        spent.

        Args:
            path: A file that a ledger with at least one session wrote.
            read_only: ``False`` to add to the ledger.
            anchor: With ``read_only=False``, the anchor to check the file against in place of ``NAME.head.json`` (if
                that was lost).

        Raises:
            LedgerError: The file is unreadable or not a ledger; or, with ``read_only=False``, it is locked, changed or
                shortened.
        """
        path = Path(path)
        entries = read_file(path, first=True).entries
        if not entries:
            raise LedgerError(f"{path.name} holds no session yet; open it as Ledger(path, neighboring_relation=...).")
        if entries[0].get("kind") == SEAL:
            raise LedgerError(f"{path.name} was sealed without a session: nothing is guaranteed by it.")
        with errors_of_record(path.name, 1):
            first = read_record(entries[0])
            if not isinstance(first, Register):
                raise LedgerError("a ledger begins with a session.")
            terms = first.terms
        ledger = cls.__new__(cls)
        ledger._begin(terms, Journal(path, anchor=anchor, read_only=read_only))
        return ledger

    def _begin(self, terms: LedgerTerms, journal: Journal) -> None:
        self._journal = journal
        self._registry = SessionRegistry(terms, journal)
        self._seal: Seal | None = None
        try:
            self._seal = self._registry.replay(journal.entries, "" if journal.path is None else journal.path.name)
            journal.entries = []
        except BaseException:
            journal.close()
            raise

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
        """Add a session, which counts toward :meth:`epsilon` and the cap from here on.

        Args:
            event: What the session spends, as its estimator states.
            planned_queries: The number of queries that it may make.
            purpose: A word such as "train", "bounds" or "score"; with a number it becomes the session's id.
            part: The part of a split that the session sees; ``None`` is all records.
            settings: Plain JSON values that must be the same when the session is resumed; only their hash is kept.
            secure_randomness: ``False`` if a test handed in the random stream; the statement then says so.
            share: The share to pay from.

        Raises:
            BudgetExceededError: The plan would exceed the cap, or the share.
            LedgerError: The event has another relation; or a release was made already and there is neither a share nor
                a filter.
            UnsupportedEventError: The part is not disjoint under the relation; or the filter does not take the event.
        """
        if purpose == SHARE or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", purpose):
            raise ValueError(
                f"purpose must be a word of letters, digits, '_', '.' or '-', not 'share', got {purpose!r}."
            )
        return self._register(
            Registration(
                id="",
                event=event,
                planned_queries=_validate.count("planned_queries", planned_queries),
                purpose=purpose,
                part=part,
                settings_sha256=settings_sha256(settings or {}),
                secure_randomness=bool(secure_randomness),
                share=None if share is None else share.id,
            )
        )

    def check_in_time(self, part: Part | None = None) -> None:
        """Raise ``LedgerError`` if :meth:`register` without a share would refuse every session on ``part``."""
        self._registry.check_in_time(part)

    def register_share(self, epsilon: float, delta: float, *, part: Part | None = None) -> Share:
        """Set a share of the budget aside for sessions whose settings will depend on releases.

        The sessions inside one share are registered together, before the first of them makes a query, and the epsilon
        of their plan at ``delta`` must be at most ``epsilon``. The share counts in full, used or not.

        Args:
            epsilon: > 0.
            delta: In (0, 1).
            part: The part of a split that the sessions inside will see; ``None`` is all records.

        Raises:
            LedgerError: A release was made already, so that the share would not be fixed beforehand.
            BudgetExceededError: The plan with the share would exceed the cap.
        """
        event = ApproximateDPEvent(
            relation=self.neighboring_relation,
            epsilon=_validate.positive("epsilon", epsilon),
            delta_share=_validate.delta("delta", delta),
        )
        session = self._register(
            Registration(
                id="",
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

    def _register(self, wanted: Registration) -> Session:
        """Check and write a session under the next id."""
        with self._registry.lock:
            self._journal.check_not_sealed()
            new = replace(wanted, id=self._registry.next_id(wanted.purpose))
            self._registry.check(new)
            self._registry.check_budget(new)
            record = Register.of(self.id, self._registry.terms, new)
            self._journal.append(to_builtins(record), partial(self._registry.add, new), sync=True)
            return self._registry.sessions[new.id]

    # Sealing.

    def seal(self, statement: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """Write the last record, with hashes of what was made with this ledger. Nothing can be added after it.

        :func:`tacita.seal_run` writes the files of a run and seals them; ``tacita statement`` checks them.

        Args:
            statement: The statement's fields (:meth:`Statement.to_json`).
            files: SHA-256 by file name, of files in the ledger's folder.

        Raises:
            LedgerError: A session is open (close it, or go on with it), there is none, or the ledger is sealed already.

        Example:
            >>> from tacita.accounting import FullBatchLaw, GaussianSumEvent
            >>> ledger = Ledger(neighboring_relation="replace_one", privacy_unit="one row = one patient")
            >>> event = GaussianSumEvent(
            ...     relation="replace_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(20.0,))
            >>> session = ledger.register(event, planned_queries=10)
            >>> ledger.seal({"epsilon": 1.0}, {})
            >>> ledger.verify().sealed
            True
        """
        seal = Seal.of(statement, files, self.anchor)
        with self._registry.lock:
            self.check_sealable()
            record = Sealed(session="", files=dict(seal.files), statement=seal.statement)
            self._journal.append(to_builtins(record), partial(setattr, self, "_seal", seal), sync=True)

    def check_sealable(self) -> None:
        """Raise :class:`LedgerError` if a session is open or there is none, or the ledger is sealed already."""
        self._journal.check_not_sealed()
        self._registry.check_sealable()

    # Closing.

    def flush(self) -> None:
        """Put every record on disk, before anything derived from releases leaves the process."""
        with self._registry.lock:
            self._journal.sync()

    def close(self) -> None:
        """Flush, and release the lock. The ledger can still be read, but not written.

        Query numbers that open sessions reserved ahead and have not begun are given back, so that a session that is
        continued later has spent only what it has made. If that cannot be written down, they count as spent.
        """
        with self._registry.lock:
            try:
                for session in self._registry.all if self._journal.writes else ():
                    with suppress(LedgerError):
                        session.give_back()
            finally:
                self._journal.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The guarantee.

    def bound(self, delta: float) -> Bound:
        """Return the guarantee of the *plan* at ``delta``: of all sessions that were not withdrawn in time.

        It holds whatever is done with the releases, including stopping early because of them. Epsilon is infinite if a
        session has no noise, or rests on a condition that nobody enforces (:meth:`conditional_bound`).
        """
        _validate.delta("delta", delta)
        if self.conditions:
            return Bound(math.inf, delta, "none: a session's guarantee is conditional")
        return self.conditional_bound(delta)

    def conditional_bound(self, delta: float) -> Bound:
        """Return the plan's guarantee as :meth:`bound` does, provided that all :attr:`conditions` hold."""
        _validate.delta("delta", delta)
        plan, rule = self._registry.plan(), self._registry.filter
        if rule is not None and plan:
            return Bound(rule.epsilon(delta), delta, rule.name)
        return worst_bound(plan, delta)

    def spent_bound(self, delta: float) -> Bound:
        """Return what was *spent so far* at ``delta``, which is never less than what was released.

        A closed session counts the queries it made, a running one those with a record, one whose process is gone all
        that it had reserved. A session that does not compose query by query counts the queries up to its last, if its
        proof covers these alone, and else in full from its first query on; so does a share. This is a guarantee only if
        queries are missing for a reason that has nothing to do with the releases; :meth:`bound` always is one. If there
        are :attr:`conditions`, it rests on them.
        """
        _validate.delta("delta", delta)
        spent, rule = self._registry.spent(), self._registry.filter
        if rule is not None and spent:
            return Bound(rule.epsilon(delta, worst_divergence(spent, rule)), delta, rule.name)
        return worst_bound(spent, delta)

    def made_epsilon(self, delta: float) -> float:
        """Return epsilon of the queries that have a record, for a progress bar. It is not a guarantee.

        After a process was killed, :meth:`epsilon_spent` counts all that it had reserved, and so jumps; this does not.
        Infinite once a conditional session has made a query.
        """
        _validate.delta("delta", delta)
        made, rule = self._registry.spent(made=True), self._registry.filter
        if any(one.event.condition is not None and one.queries_made for one in self._registry.sessions.values()):
            return math.inf
        if rule is not None and made:
            return rule.epsilon(delta, worst_divergence(made, rule))
        return worst_bound(made, delta).epsilon

    def epsilon(self, delta: float) -> float:
        """Return epsilon of the plan at ``delta``; see :meth:`bound`."""
        return self.bound(delta).epsilon

    def epsilon_spent(self, delta: float) -> float:
        """Return epsilon spent so far (:meth:`spent_bound`); infinite once a conditional session has spent."""
        spent_on_condition = any(
            session.event.condition is not None and session.queries_spent for session in self._registry.all
        )
        return math.inf if spent_on_condition else self.spent_bound(delta).epsilon

    def delta(self, epsilon: float) -> float:
        """Return delta of the plan at ``epsilon`` >= 0; 1 if nothing is guaranteed."""
        _validate.non_negative("epsilon", epsilon)
        plan, rule = self._registry.plan(), self._registry.filter
        if self.conditions:
            return 1.0
        return rule.delta(epsilon) if rule is not None and plan else worst_delta(plan, epsilon)

    def conditional_curve(self) -> PrivacyCurve:
        """Return delta of the plan at every epsilon >= 0, provided that all :attr:`conditions` hold."""
        plan, rule = self._registry.plan(), self._registry.filter
        if rule is None or not plan:
            return worst_privacy_curve(plan)
        return PrivacyCurve(lambda epsilons: np.array([rule.delta(float(one)) for one in epsilons]), rule.whole_curve)

    def spends(
        self, part: Part | None = None, *, share: Share | None = None, before: Session | None = None
    ) -> list[Spend]:
        """Return what is charged already to the records of ``part``, which calibration has to add to.

        Args:
            part: A part of a split; ``None`` is all records.
            share: Return only what is charged to this share.
            before: Return only what was registered before this session.
        """
        if share is not None:
            inside = takewhile(lambda one: one is not before, self._registry.inside(share.id))
            charges = [planned(session) for session in inside]
        else:
            charges = self._registry.plan(before=before)
        return [spend for where, spend in charges if overlap(where, part)]

    # Its settings and sessions.

    @property
    def id(self) -> str:
        """The ledger's random name, 32 hexadecimal digits, in every register record. A key serves one name only."""
        return self._registry.id

    @property
    def path(self) -> Path | None:
        """The path of the file; ``None`` in memory."""
        return self._journal.path

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        """How neighbouring data sets differ."""
        return self._registry.terms.neighboring_relation

    @property
    def privacy_unit(self) -> str:
        """What one unit is, in the caller's words."""
        return self._registry.terms.privacy_unit

    @property
    def max_epsilon(self) -> float | None:
        """The cap on epsilon; ``None`` without one."""
        return self._registry.terms.max_epsilon

    @property
    def max_delta(self) -> float | None:
        """The delta of the cap; ``None`` without one."""
        return self._registry.terms.max_delta

    @property
    def filter_order(self) -> float | None:
        """The order of the Rényi filter; ``None`` without one."""
        return self._registry.terms.filter_order

    @property
    def filter(self) -> Literal["gaussian"] | None:
        """``"gaussian"`` if sessions pass a Gaussian filter, else ``None``."""
        return self._registry.terms.filter

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All sessions in the order of registration, including withdrawn ones; shares are in :attr:`shares`."""
        return tuple(session for session in self._registry.all if session.purpose != SHARE)

    @property
    def shares(self) -> tuple[Share, ...]:
        """The shares that were set aside."""
        return tuple(as_share(session) for session in self._registry.all if session.purpose == SHARE)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions that the guarantee rests on and nobody enforces; empty if it is unconditional."""
        return self._registry.conditions()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions that the guarantee rests on and the library sees to."""
        return self._registry.assumptions()

    # The records.

    @property
    def head(self) -> str:
        """SHA-256 of the last record; 64 zeros if there is none."""
        return self._journal.head

    @property
    def anchor(self) -> Anchor:
        """The number of records and the hash of the last; keep it in a checkpoint, and hand it to :meth:`verify`."""
        return Anchor(self._journal.count, self._journal.head)

    @property
    def sealed(self) -> Seal | None:
        """The seal that ends this ledger; ``None`` if records may be added."""
        return self._seal

    @property
    def before_seal(self) -> Anchor:
        """The :attr:`anchor` without the seal, if there is one: of the ledger when its statement was made."""
        return self.anchor if self._seal is None else self._seal.after

    def verify(self, anchor: Anchor | tuple[int, str] | tuple[int, str, str] | None = None) -> Verification:
        """Read the records again: check that each follows from the one before, and that the anchor's is among them.

        Also check that nothing follows a seal; ``sealed`` of the result says whether there is one. Nothing is claimed
        against somebody who rewrites the records and every copy of the anchor.

        Args:
            anchor: (count, head) or (count, head, name), from a checkpoint or a statement; by default
                ``NAME.head.json``, which stands beside the file.
        """
        if anchor is not None and not isinstance(anchor, Anchor):
            anchor = Anchor(anchor[0], anchor[1], *anchor[2:])
        with self._registry.lock:
            return self._journal.verify(anchor)

    def __repr__(self) -> str:
        name = "in memory" if self.path is None else self.path.name
        return (
            f"Ledger({name}, {self.neighboring_relation}, {self.privacy_unit!r}, "
            f"{counted(len(self.sessions), 'session')})"
        )
