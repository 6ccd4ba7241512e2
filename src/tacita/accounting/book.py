"""The book: the sessions and shares of a ledger, what they add up to, and which may be added.

Place: session, parts, accountant -> [accounting.book] -> accounting.ledger. It keeps no file: the ledger writes a line,
then the book applies it. Proofs of the rules: docs/derivations/composition.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from tacita import _validate
from tacita.accounting import accountant
from tacita.accounting.accountant import Bound
from tacita.accounting.events import Spend
from tacita.accounting.parts import Part, check_part, overlap, record_classes
from tacita.accounting.pure_events import ApproximateDPEvent
from tacita.accounting.relations import NeighboringRelation, check_relation
from tacita.accounting.renyi_filter import RenyiFilter
from tacita.accounting.session import SHARE, Registration, Session, Share, Write
from tacita.errors import BudgetExceededError, LedgerError

Charge = tuple[Part | None, Spend]  # what to compose, and for which records

TOO_LATE = (
    "queries were made on these records already, so that the settings of a new session may depend on what they "
    "released. Register all sessions before the first query; or set a share aside before it (register_share) and "
    "register with share=; or build the ledger with filter_order (and max_epsilon, max_delta)."
)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is fixed for the whole ledger; every register line repeats it."""

    neighboring_relation: NeighboringRelation
    privacy_unit: str
    max_epsilon: float | None
    max_delta: float | None
    filter_order: float | None

    def __post_init__(self):
        check_relation(self.neighboring_relation)
        if not isinstance(self.privacy_unit, str) or not self.privacy_unit.strip() or "\n" in self.privacy_unit:
            raise ValueError(
                f"privacy_unit must say in one line what is protected, got {self.privacy_unit!r}. "
                "For instance 'one row = one patient'."
            )
        if (self.max_epsilon is None) != (self.max_delta is None):
            raise ValueError("max_epsilon and max_delta make one cap: give both or neither.")
        if self.max_epsilon is not None and self.max_delta is not None:
            _validate.positive("max_epsilon", self.max_epsilon)
            _validate.delta("max_delta", self.max_delta)
        if self.filter_order is not None and self.max_epsilon is None:
            raise ValueError("filter_order needs a cap to keep under: give max_epsilon and max_delta.")
        _ = self.filter  # refuses an order that leaves no budget

    @property
    def filter(self) -> RenyiFilter | None:
        """The filter, if there is an order for one."""
        if self.filter_order is None or self.max_epsilon is None or self.max_delta is None:
            return None
        return RenyiFilter(order=self.filter_order, max_epsilon=self.max_epsilon, max_delta=self.max_delta)

    @staticmethod
    def of(entry: Mapping[str, Any]) -> "Terms":
        """The terms in a register line."""
        fields = {name: entry[name] for name in Terms.__dataclass_fields__}
        for name in ("max_epsilon", "max_delta", "filter_order"):
            if fields[name] is not None and type(fields[name]) not in (int, float):
                raise LedgerError(f"{name} must be a number.")
        return Terms(**fields)

    def differences(self, other: "Terms") -> str:
        """The names of what differs, joined by commas; empty if the terms are equal."""
        return ", ".join(n for n in Terms.__dataclass_fields__ if getattr(self, n) != getattr(other, n))


class Book:
    """Sessions by id, under the rules of one ledger."""

    def __init__(self, terms: Terms, write: Write, flush: Callable[[], None]):
        self.terms, self.filter = terms, terms.filter
        self.sessions: dict[str, Session] = {}
        self._write, self._flush = write, flush

    def next_id(self, purpose: str) -> str:
        """The id of the next session for ``purpose``."""
        return f"{purpose}-{1 + sum(session.purpose == purpose for session in self.sessions.values())}"

    def add(self, registration: Registration) -> None:
        """Take a session in; :meth:`check` it before."""
        self.sessions[registration.id] = Session(registration, self._write, self._flush, self._released)

    def inside(self, share: str) -> list[Session]:
        """The sessions that are paid from ``share``, without those withdrawn in time."""
        return [one for one in self.sessions.values() if one.share == share and one.counts_in_plan]

    def _released(self, part: Part | None) -> bool:
        """Whether some session that shares records with ``part`` may have released something."""
        return any(one.reserved_queries and overlap(one.part, part) for one in self.sessions.values())

    # What it adds up to.

    def plan(self, before: Session | None = None) -> list[Charge]:
        """The shares, and the sessions that are in no share, in full; up to ``before``, if given."""
        ones = takewhile(lambda one: one is not before, self.sessions.values())
        return [planned(one) for one in ones if one.counts_in_plan and one.share is None]

    def spent(self) -> list[Charge]:
        """As :meth:`plan`, only with the queries that may have been released."""
        used_shares = {one.share for one in self.sessions.values() if one.queries_spent}
        spent: list[Charge] = []
        for one in self.sessions.values():
            queries = one.queries_spent if one.purpose != SHARE else int(one.id in used_shares)
            if queries and one.share is None:
                spent.append((one.part, Spend(one.event, queries if one.event.per_query else one.planned_queries)))
        return spent

    def conditions(self) -> tuple[str, ...]:
        """What nobody enforces and the plan rests on."""
        return _distinct(one.event.condition for one in self.sessions.values() if one.counts_in_plan)

    def assumptions(self) -> tuple[str, ...]:
        """What the library sees to and the plan rests on."""
        each = (one.event.assumptions for one in self.sessions.values() if one.counts_in_plan)
        return _distinct(assumption for assumptions in each for assumption in assumptions)

    # What may be added.

    def check(self, new: Registration) -> None:
        """The rules that need no accountant; a line that is read back must keep them, too.

        Raises:
            LedgerError, UnsupportedEventError: It may not be added, whatever it costs.
        """
        if new.event.relation != self.terms.neighboring_relation:
            raise LedgerError(
                f"an event under {new.event.relation} does not fit a ledger under {self.terms.neighboring_relation}: "
                "build both with one neighboring_relation."
            )
        if new.part is not None:
            check_part(new.part, self.terms.neighboring_relation)
        if new.share is not None:
            self._check_in_share(new, new.share)
        elif self.filter is not None:
            self.filter.divergence([planned(new)[1]])  # refuses what no filter takes
        elif self._released(new.part):
            raise LedgerError(TOO_LATE)

    def check_in_place_of(self, old: Session, new: Registration) -> None:
        """Both checks of ``new``, as they will be once ``old`` is withdrawn; nothing is changed."""
        counted = old._counts_in_plan
        old._counts_in_plan = self._released(old.part)
        try:
            self.check(new)
            self.check_budget(new)
        finally:
            old._counts_in_plan = counted

    def _check_in_share(self, new: Registration, name: str) -> None:
        share = self.sessions.get(name)
        if share is None or share.purpose != SHARE or new.purpose == SHARE:
            raise LedgerError(f"{name!r} is no share of this ledger: use what register_share returned.")
        if share.part is not None and new.part != share.part:
            raise LedgerError(f"{name} was set aside for one part of the records: register the session on that part.")
        if any(other.reserved_queries and overlap(other.part, new.part) for other in self.inside(name)):
            raise LedgerError(
                f"sessions of {name} have made queries already: sessions inside one share are registered together. "
                "Set one share aside for each."
            )

    def check_budget(self, new: Registration) -> None:
        """The rules that need an accountant: the share's piece, the filter's budget, the cap.

        Raises:
            BudgetExceededError: It would pass one of them.
        """
        terms, charge = self.terms, planned(new)
        if terms.max_epsilon is not None and new.event.condition is not None:
            raise BudgetExceededError(
                f"max_epsilon caps what is guaranteed; this event guarantees nothing unless {new.event.condition}."
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
    """What a session costs if it makes every query that it planned."""
    return session.part, Spend(session.event, session.planned_queries)


def as_share(session: Session) -> Share:
    """The share that a line of purpose "share" set aside."""
    if not isinstance(session.event, ApproximateDPEvent):
        raise LedgerError(f"{session.id} is not the line of a share.")
    return Share(session.id, session.event.epsilon, session.event.delta_share, session.part)


def worst_bound(charges: Sequence[Charge], delta: float) -> Bound:
    """The largest bound over the classes of records."""
    return max((accountant.epsilon(spends, delta) for spends in _classes(charges)), key=lambda bound: bound.epsilon)


def worst_delta(charges: Sequence[Charge], epsilon: float) -> float:
    """The largest delta over the classes of records."""
    return max(accountant.delta(spends, epsilon).delta for spends in _classes(charges))


def worst_divergence(charges: Sequence[Charge], rule: RenyiFilter) -> float:
    """The largest Rényi divergence over the classes of records."""
    return max(rule.divergence(spends) for spends in _classes(charges))


def _classes(charges: Sequence[Charge]) -> list[tuple[Spend, ...]]:
    """What is charged to each class of records; classes that are charged alike once."""
    classes = record_classes([part for part, _ in charges])
    return list(dict.fromkeys(tuple(charges[i][1] for i in members) for members in classes))


def _refuse(charges: Sequence[Charge], most: float, delta: float, name: str) -> None:
    epsilon = worst_bound(charges, delta).epsilon
    if not epsilon <= most:
        raise BudgetExceededError(
            f"epsilon {epsilon:.6g} at delta {delta:g} would pass {name}: epsilon {most:g}. "
            "Fewer queries or more noise."
        )


def _refuse_divergence(charges: Sequence[Charge], rule: RenyiFilter) -> None:
    divergence = worst_divergence(charges, rule)
    if not divergence <= rule.budget:
        raise BudgetExceededError(
            f"Rényi divergence {divergence:.6g} of order {rule.order:g} would pass the filter's budget "
            f"{rule.budget:.6g}. Fewer queries or more noise."
        )


def _distinct(words: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in words if word is not None))
