"""Bugs of the ledger: something is released that it does not hold, or holds too late, or too little of."""

from tacita.accounting import DisjointLaw, parts
from tacita.accounting.events import Spend
from tacita.ledger import Ledger, Session
from tacita.ledger.journal import Journal
from tacita.ledger.registry import SessionRegistry
from tacita.mechanisms import CalibratedGaussian
from tacita.oracles import ReleaseGate
from tests.planted.plant import bug, put, swap

ORACLE = "tests/oracles/test_gradient_oracle.py::"
LINE = "tests/oracles/test_gate.py::"
LEDGER = "tests/ledger/test_ledger.py::"
JOURNAL = "tests/ledger/test_journal.py::"
EVENTS = "tests/accounting/events/test_event.py::"

LINE_FIRST = LINE + "test_the_ledger_has_the_line_before_the_release_is_returned"
ONE_PASS = LINE + "test_a_one_pass_session_refuses_a_line_that_does_not_match"


def commit_nothing(self, query, values, seen=None):
    """``ReleaseGate.commit`` without a line in the ledger."""
    self._position, self._unreleased = query + 1, (query, dict(values))
    return True


@bug(11, caught_by=[ORACLE + "test_plan_is_fixed_and_counted_down", LINE_FIRST])
def query_not_recorded():
    """Noise is drawn without a line in the ledger."""

    put(ReleaseGate, "commit", commit_nothing)


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


@bug(11, caught_by=[JOURNAL + "test_a_reservation_is_on_disk_and_anchored_when_reserve_returns"])
def reservation_not_flushed():
    """A reservation is written, and not flushed to disk."""
    append = Journal.append

    def unflushed(self, fields, *args, sync=False):
        append(self, fields, *args, sync=sync and fields["kind"] != "reserve")

    put(Journal, "append", unflushed)


@bug(
    11,
    caught_by=[LEDGER + "test_a_running_session_counts_lines_a_closed_one_queries_made_and_a_lost_one_its_reservation"],
)
def reservation_of_a_dead_process_forgotten():
    """What a killed process had reserved, and may have released, is not counted."""
    put(Session, "_left_by_another_process", lambda self: None)


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


@bug(48, caught_by=[LINE + "test_a_line_that_does_not_match_takes_the_next_unused_number"])
def other_values_under_the_same_noise():
    """A redone query whose values differ is released under its old number: the difference is free of noise."""

    def commit(self, query, values, seen=None):
        if self.session.lookup(query) is None:
            self.session.spend(query, self._fingerprint(query, values))
        return commit_nothing(self, query, values)

    put(ReleaseGate, "commit", commit)


@bug(48, caught_by=[ONE_PASS])
def one_pass_redone_under_the_next_number():
    """A session that is one guarantee, not one a query, goes on under the next number after a redo."""

    def leave(self):
        self._position = max(self._position, self.session.last_query + 1)

    put(ReleaseGate, "_leave_used_numbers", leave)


@bug(48, caught_by=[ONE_PASS, EVENTS + "test_events_that_do_not_compose_query_by_query"])
def one_pass_composes_by_query():
    """The event of disjoint batches says that it composes query by query."""
    put(DisjointLaw, "per_query", property(lambda self: True))


@bug(48, caught_by=[LINE + "test_a_resumed_session_is_refused_without_its_checkpoint"])
def resumed_without_its_checkpoint():
    """A session that was opened before starts again at its first query."""
    whole = ReleaseGate.__init__

    def built(self, *args, **memory):
        whole(self, *args, **memory)
        self._must_resume = False

    put(ReleaseGate, "__init__", built)


@bug(11, caught_by=[LEDGER + "test_the_same_part_twice_adds_up_and_so_do_two_splits"])
def sessions_on_one_part_charged_as_one():
    """Sessions on the same records are taken to be on different ones."""
    swap(parts.record_classes, lambda charged: [(i,) for i in range(len(charged))] or [()])


@bug(11, caught_by=[ORACLE + "test_calibrated_noise_meets_the_target_beside_what_is_registered"])
def calibrated_as_if_alone():
    """Noise is calibrated as if nothing else had been registered."""
    put(Ledger, "spends", lambda self, part=None, **more: [])


@bug(11, caught_by=[LEDGER + "test_a_restart_costs_a_whole_session_more_and_no_less"])
def restarts_for_free():
    """A session that takes the place of another is not charged, as if that one had released nothing."""
    whole = SessionRegistry.plan
    put(
        SessionRegistry,
        "plan",
        lambda self, before=None: [
            charge
            for charge, one in zip(whole(self, before), (s for s in self.all if s.counts_in_plan), strict=False)
            if one.restart_of is None
        ],
    )


@bug(11, caught_by=[LEDGER + "test_a_crashed_session_is_written_off_and_its_restart_goes_on"])
def restart_for_whoever_asks():
    """A session may be registered late, as long as it is called a restart."""
    put(SessionRegistry, "restart_for", lambda self, session: self.all[-1])


@bug(11, caught_by=[ORACLE + "test_calibrated_noise_pays_for_the_planned_restarts"])
def calibrated_without_the_restarts():
    """Noise is calibrated for one session, and the restarts that were planned beside it are on top."""
    whole = CalibratedGaussian.resolve

    def resolve(self, *args, sessions):
        return whole(self, *args)

    put(CalibratedGaussian, "resolve", resolve)
