"""Reservations: how many flushes a run makes, what a kill over-reports, and that neither tells of the records."""

import pytest

from tacita.accounting import FullBatchGaussianEvent, Ledger, Reservations
from tacita.accounting.reservations import BLOCK
from tacita.errors import BudgetExceededError

EVENT = FullBatchGaussianEvent(relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,))


class Counted:
    """A session that remembers what was reserved."""

    def __init__(self, planned_queries):
        ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row = one patient")
        self.session = ledger.register(EVENT, planned_queries=planned_queries)
        self.session.open()
        self.blocks = []

    def __getattr__(self, name):
        return getattr(self.session, name)

    def reserve(self, first, last):
        self.blocks.append((first, last))
        self.session.reserve(first, last)


def run(planned_queries, queries=None):
    session = Counted(planned_queries)
    ahead = Reservations(session)
    for query in range(queries if queries is not None else planned_queries):
        ahead.cover(query)
        assert session.covered(query)
    return session


@pytest.mark.parametrize("planned", [1, 20, 400, BLOCK])
def test_a_short_run_is_one_flush(planned):
    assert run(planned).blocks == [(0, planned - 1)]


def test_a_long_run_is_a_flush_a_block():
    assert run(2 * BLOCK + 7).blocks == [(0, BLOCK - 1), (BLOCK, 2 * BLOCK - 1), (2 * BLOCK, 2 * BLOCK + 6)]


def test_a_kill_over_reports_at_most_one_block():
    session = run(10 * BLOCK, queries=BLOCK + 5)
    assert session.reserved_queries - (BLOCK + 5) < BLOCK


def test_numbers_left_behind_are_reserved_without_a_gap():
    session = run(10 * BLOCK, queries=3)
    Reservations(session).cover(2 * BLOCK + 1)
    assert session.blocks[-1] == (BLOCK, 3 * BLOCK - 1)


def test_past_the_plan_is_refused():
    session = run(5)
    with pytest.raises(BudgetExceededError, match="planned 5 queries"):
        Reservations(session).cover(5)
