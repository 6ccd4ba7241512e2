"""The half of a ledger that only reads: what it guarantees, and what it holds.

The plan's guarantee stands beside what was spent so far. Proofs: docs/derivations/composition.md.
"""

import math
from abc import ABC
from itertools import takewhile
from pathlib import Path
from typing import Literal

import numpy as np

from tacita import _validate
from tacita.accounting.accountant import Bound
from tacita.accounting.composition import worst_bound, worst_delta, worst_divergence, worst_privacy_curve
from tacita.accounting.curve import PrivacyCurve
from tacita.accounting.events import Spend
from tacita.accounting.gaussian_filter import GaussianFilter
from tacita.accounting.parts import Part, overlap
from tacita.accounting.relations import NeighboringRelation
from tacita.ledger.hash_chain import Anchor, Verification
from tacita.ledger.journal import Journal
from tacita.ledger.registration import SHARE, Share
from tacita.ledger.registry import SessionRegistry, as_share, planned
from tacita.ledger.seal import Seal
from tacita.ledger.session import Session


class ReadableLedger(ABC):
    """Everything that can be read from a ledger; :class:`Ledger` adds writing."""

    _registry: SessionRegistry
    _journal: Journal
    _seal: Seal | None

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

        A closed session counts the queries it made, a running one those with a line, and one whose process is gone all
        that it had reserved. A session that does not compose query by query counts in full from its first query on, and
        so does a share. This is a guarantee only if queries are missing for a reason that has nothing to do with the
        releases; :meth:`bound` always is one. If there are :attr:`conditions`, it rests on them.
        """
        _validate.delta("delta", delta)
        spent, rule = self._registry.spent(), self._registry.filter
        if rule is not None and spent:
            return Bound(rule.epsilon(delta, worst_divergence(spent, rule)), delta, rule.name)
        return worst_bound(spent, delta)

    def made_epsilon(self, delta: float) -> float:
        """Return epsilon of the queries that have a line, for a progress bar. It is not a guarantee.

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
        whole = isinstance(rule, GaussianFilter)
        return PrivacyCurve(lambda epsilons: np.array([rule.delta(float(one)) for one in epsilons]), whole)

    def spends(
        self, part: Part | None = None, *, share: Share | None = None, before: Session | None = None
    ) -> list[Spend]:
        """Return what is charged already to the records of ``part``, which calibration has to add to.

        Args:
            part: A part of a split; ``None`` is all records.
            share: Return only what is charged to this share.
            before: Return only what was registered before this session or, if it is a restart, before the session that
                it may replace.
        """
        if before is not None and before.restart_of is not None:
            before = self._registry.sessions[before.restart_of]
        if share is not None:
            inside = takewhile(lambda one: one is not before, self._registry.inside(share.id))
            charges = [planned(session) for session in inside]
        else:
            charges = self._registry.plan(before=before)
        return [spend for where, spend in charges if overlap(where, part)]

    # Its settings and sessions.

    @property
    def id(self) -> str:
        """The ledger's random name, 32 hexadecimal digits, in every register line. A key serves one name only."""
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

    # The lines.

    @property
    def head(self) -> str:
        """SHA-256 of the last line; 64 zeros if there is none."""
        return self._journal.head

    @property
    def anchor(self) -> Anchor:
        """The number of lines and the hash of the last; keep it in a checkpoint, and hand it to :meth:`verify`."""
        return Anchor(self._journal.count, self._journal.head)

    @property
    def sealed(self) -> Seal | None:
        """The seal that ends this ledger; ``None`` if lines may be added."""
        return self._seal

    @property
    def before_seal(self) -> Anchor:
        """The :attr:`anchor` without the seal, if there is one: of the ledger when its statement was made."""
        return self.anchor if self._seal is None else self._seal.after

    def verify(self, anchor: Anchor | tuple[int, str] | tuple[int, str, str] | None = None) -> Verification:
        """Read the lines again and check that each follows from the one before, and the anchor's line is among them.

        Also check that nothing follows a seal; ``sealed`` of the result says whether there is one. Nothing is claimed
        against somebody who rewrites the lines and every copy of the anchor.

        Args:
            anchor: (count, head) or (count, head, name), from a checkpoint or a statement; by default
                ``NAME.head.json``, which stands beside the file.
        """
        if anchor is not None and not isinstance(anchor, Anchor):
            anchor = Anchor(anchor[0], anchor[1], *anchor[2:])
        return self._journal.verify(anchor)

    def __repr__(self) -> str:
        name = "in memory" if self.path is None else self.path.name
        return f"Ledger({name}, {self.neighboring_relation}, {self.privacy_unit!r}, {len(self.sessions)} sessions)"
