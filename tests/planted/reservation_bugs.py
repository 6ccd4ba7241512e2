"""Bugs of reservations: what was released is not counted, or a client pays for what it never made."""

from dataclasses import replace

from tacita._lock import HeldLock
from tacita.ledger import Ledger, Reservations, Session
from tacita.ledger.records import GiveBack
from tacita.oracles.payment import Payment
from tests.planted.plant import bug, put

RESERVATIONS = "tests/ledger/test_reservations.py::"
CLAIMS = "tests/oracles/test_every_claim.py::test_every_oracle_has_reservations_and_restarts"
TEST = "tests/second_order/test_stationary_test.py::"


def give_back_after(first):
    """Give back all reserved numbers from ``first(session)`` on."""

    def give_back(self):
        start = max(first(self), self.last_query + 1)
        if self.state == "open" and start < self.reserved_queries:
            self._change(GiveBack(session=self.id, first=start, last=self.reserved_queries - 1))

    put(Session, "give_back", give_back)


@bug(11, 74, caught_by=[RESERVATIONS + "test_what_was_begun_is_not_given_back"])
def begun_number_given_back():
    """A number whose batch was drawn is given back, though nobody knows whether its noise was."""
    give_back_after(lambda session: session._carried)


@bug(
    11,
    74,
    caught_by=[
        RESERVATIONS + "test_what_a_killed_process_reserved_is_not_given_back",
        "tests/faults/test_power_loss.py::test_what_is_given_back_was_never_released",
    ],
)
def reservation_of_a_killed_process_given_back():
    """What a process had reserved that was killed is given back by the next one, released or not."""

    def left(self):
        self._begun = 0

    put(Session, "_left_by_another_process", left)


@bug(74, caught_by=[RESERVATIONS + "test_a_clean_close_gives_back_what_was_not_begun"])
def client_pays_for_a_thousand():
    """A client that lives for one query has spent a whole reservation, each time."""
    put(Session, "give_back", lambda self: None)


@bug(74, caught_by=[RESERVATIONS + "test_the_size_is_a_public_number"])
def size_of_a_reservation_ignored():
    """Whatever size was asked for, a thousand queries are reserved."""
    put(Reservations, "__init__", lambda self, session, size=1024: self.__dict__.update(_session=session, _size=1024))


@bug(11, caught_by=[RESERVATIONS + "test_a_line_that_gives_back_what_was_used_is_no_ledger"])
def used_number_given_back_by_a_line():
    """A ledger is believed that gives back queries which have lines."""
    check = Session._check
    put(Session, "_check", lambda self, change: None if isinstance(change, GiveBack) else check(self, change))


@bug(
    11,
    caught_by=["tests/training/test_progress.py::test_shows_queries_made_where_a_killed_process_had_reserved_more"],
)
def bar_shows_reservations():
    """The epsilon on the bar jumps with each reservation."""
    put(Ledger, "made_epsilon", Ledger.epsilon_spent)


@bug(11, caught_by=["tests/test_lock.py::test_one_holder_at_a_time"])
def lock_that_nobody_takes():
    """Two processes write one ledger at a time, and neither counts what the other spends."""
    put(HeldLock, "_lock_descriptor", lambda self, path, wait, handle: self.forget())
    put(HeldLock, "_lock_beside", lambda self, path, wait: None)


@bug(11, caught_by=[CLAIMS + f"[{name}]" for name in ("clipped", "released-residuals", "unclipped")])
def options_of_a_session_lost():
    """An oracle reserves a thousand queries and registers no restart, whatever its caller asked for."""
    made = Payment.__init__

    def forgetful(self, *terms, **named):
        made(self, *terms[:6], **{name: given for name, given in named.items() if name == "randomness"})

    put(Payment, "__init__", forgetful)


@bug(11, caught_by=[TEST + "test_a_test_that_was_interrupted_has_the_restart_that_was_paid_for_with_it"])
def restart_of_a_test_not_registered():
    """The restarts of a test are promised, and neither registered nor charged."""
    whole = Payment.session_for
    put(
        Payment,
        "session_for",
        lambda self, *args, **more: whole(replace(self, planned_restarts=0), *args, **more),
    )
