"""Bugs of reservations: what was released is not counted, or a client pays for what it never made."""

from tacita._lock import HeldLock
from tacita.ledger import Ledger
from tacita.oracles.payment import Payment
from tests.planted.plant import bug, put

CLAIMS = "tests/oracles/test_every_claim.py::test_every_oracle_has_reservations"


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


@bug(11, caught_by=[CLAIMS + f"[{name}]" for name in ("clipped", "released-residuals")])
def options_of_a_session_lost():
    """An oracle reserves a thousand queries, whatever its caller asked for."""
    made = Payment.__init__

    def forgetful(self, *terms, **named):
        made(self, *terms[:6], **{name: given for name, given in named.items() if name == "randomness"})

    put(Payment, "__init__", forgetful)
