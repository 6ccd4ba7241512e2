"""Bugs of the ledger: something is released that it does not hold, or holds too late, or too little of."""

from tacita.accounting.events import Spend
from tacita.ledger import Session
from tacita.ledger.registry import SessionRegistry
from tacita.oracles import ReleaseGate
from tests.planted.plant import bug, put

ORACLE = "tests/oracles/test_gradient_oracle.py::"
LINE = "tests/oracles/test_gate.py::"
LEDGER = "tests/ledger/test_ledger.py::"

LINE_FIRST = LINE + "test_the_ledger_has_the_line_before_the_release_is_returned"


def commit_nothing(self, query, values, seen=None):
    """``ReleaseGate.commit`` without a line in the ledger."""
    self._position, self._unreleased = query + 1, (query, dict(values))
    return True


@bug(11, caught_by=[LINE_FIRST])
def line_after_the_release():
    """The ledger's line is written once the noise has been used."""

    noisy = ReleaseGate.release

    def late(self, dtypes=None):
        query, values = self._unreleased
        tag = self._fingerprint(query, values)
        released = noisy(self, dtypes)
        self.session.spend(query, tag)
        return released

    put(ReleaseGate, "commit", commit_nothing)
    put(ReleaseGate, "release", late)


@bug(11, caught_by=[LINE + "test_a_query_is_reserved_before_its_batch_is_read"])
def reservation_after_the_noise():
    """A query is reserved when it is released, not before its batch is read."""
    commit = ReleaseGate.commit

    def begin(self):
        if not self.session.opened:
            self.session.open()
        return self._position

    def late(self, query, values, seen=None):
        self._reservations.prepare(query)
        return commit(self, query, values, seen)

    put(ReleaseGate, "begin", begin)
    put(ReleaseGate, "commit", late)


@bug(11, caught_by=[LEDGER + "test_the_plan_counts_from_registration_and_spending_from_the_first_query"])
def sessions_counted_for_queries():
    """What is spent counts the sessions, not their queries."""
    whole = SessionRegistry.spent
    put(SessionRegistry, "spent", lambda self: [(part, Spend(spend.event, 1)) for part, spend in whole(self)])


@bug(11, caught_by=[ORACLE + "test_plan_is_fixed_and_counted_down", LEDGER + "test_the_plan_is_the_end"])
def plan_without_an_end():
    """A session goes on past the queries that its guarantee is for."""
    put(ReleaseGate, "remaining_queries", property(lambda self: 1))
    put(Session, "planned_queries", property(lambda self: 10**9))
