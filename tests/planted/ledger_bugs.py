"""Bugs of the ledger: something is released that it does not hold, or holds too late, or too little of."""

from tacita.accounting import Ledger, Session, parts
from tacita.accounting.book import Book
from tacita.accounting.events import Spend
from tacita.accounting.gaussian_events import OnePassGaussianEvent
from tacita.oracles import Line
from tests.planted.plant import bug, put, swap

ORACLE = "tests/oracles/test_gradient_oracle.py::"
LINE = "tests/oracles/test_line.py::"
LEDGER = "tests/accounting/test_ledger.py::"
JOURNAL = "tests/accounting/test_journal.py::"
EVENTS = "tests/accounting/test_events.py::"

LINE_FIRST = LINE + "test_the_ledger_has_the_line_before_the_release_is_returned"
ONE_PASS = LINE + "test_a_one_pass_session_refuses_a_line_that_does_not_match"


def pay_nothing(self, query, values):
    """``Line.pay`` without a line in the ledger."""
    self._position, self._paid = query + 1, (query, dict(values))
    return True


@bug(11, caught_by=[ORACLE + "test_plan_is_fixed_and_counted_down", LINE_FIRST])
def query_not_recorded():
    """Noise is drawn without a line in the ledger."""

    put(Line, "pay", pay_nothing)


@bug(11, caught_by=[LINE_FIRST])
def line_after_the_release():
    """The ledger's line is written once the noise has been used."""

    noisy = Line.noisy

    def late(self, dtypes=None):
        query, values = self._paid
        tag = self._fingerprint(query, values)
        released = noisy(self, dtypes)
        self.session.spend(query, tag)
        return released

    put(Line, "pay", pay_nothing)
    put(Line, "noisy", late)


@bug(11, caught_by=[LINE + "test_a_query_is_reserved_before_its_batch_is_read"])
def reservation_after_the_noise():
    """A query is reserved when it is released, not before its batch is read."""
    pay = Line.pay

    def begin(self):
        if not self.session.opened:
            self.session.open()
        return self._position

    def late(self, query, values):
        self._reservations.cover(query)
        return pay(self, query, values)

    put(Line, "begin", begin)
    put(Line, "pay", late)


@bug(11, caught_by=[JOURNAL + "test_a_reservation_is_on_disk_and_anchored_when_reserve_returns"])
def reservation_not_flushed():
    """A reservation is written, and not flushed to disk."""

    def write(self, kind, session, fields, then):
        self._journal.append(kind, session, fields)
        then()

    put(Ledger, "_write", write)


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
    whole = Book.spent
    put(Book, "spent", lambda self: [(part, Spend(spend.event, 1)) for part, spend in whole(self)])


@bug(11, caught_by=[ORACLE + "test_plan_is_fixed_and_counted_down", LEDGER + "test_the_plan_is_the_end"])
def plan_without_an_end():
    """A session goes on past the queries that its guarantee is for."""
    put(Line, "remaining_queries", property(lambda self: 1))
    put(Session, "planned_queries", property(lambda self: 10**9))


@bug(48, caught_by=[LINE + "test_a_line_that_does_not_match_takes_the_next_unused_number"])
def other_values_under_the_same_noise():
    """A redone query whose values differ is released under its old number: the difference is free of noise."""

    def pay(self, query, values):
        if self.session.lookup(query) is None:
            self.session.spend(query, self._fingerprint(query, values))
        return pay_nothing(self, query, values)

    put(Line, "pay", pay)


@bug(48, caught_by=[ONE_PASS])
def one_pass_redone_under_the_next_number():
    """A session that is one guarantee, not one a query, goes on under the next number after a redo."""

    def leave(self):
        self._position = max(self._position, self.session.last_query + 1)

    put(Line, "_leave_used_numbers", leave)


@bug(48, caught_by=[ONE_PASS, EVENTS + "test_events_that_do_not_compose_query_by_query"])
def one_pass_composes_by_query():
    """The event of disjoint batches says that it composes query by query."""
    put(OnePassGaussianEvent, "per_query", property(lambda self: True))


@bug(48, caught_by=[LINE + "test_a_resumed_session_is_refused_without_its_checkpoint"])
def resumed_without_its_checkpoint():
    """A session that was opened before starts again at its first query."""
    whole = Line.__init__

    def built(self, *args):
        whole(self, *args)
        self._must_resume = False

    put(Line, "__init__", built)


@bug(11, caught_by=[LEDGER + "test_the_same_part_twice_adds_up_and_so_do_two_splits"])
def sessions_on_one_part_charged_as_one():
    """Sessions on the same records are taken to be on different ones."""
    swap(parts.record_classes, lambda charged: [(i,) for i in range(len(charged))] or [()])


@bug(11, caught_by=[ORACLE + "test_calibrated_noise_meets_the_target_beside_what_is_registered"])
def calibrated_as_if_alone():
    """Noise is calibrated as if nothing else had been registered."""
    put(Ledger, "spends", lambda self, part=None, **more: [])
