"""Reservations: what flushing costs, and what a kill over-reports, by a clock that is handed in."""

import pytest

from tacita.accounting import FullBatchGaussianEvent, Ledger, Reservations
from tacita.accounting.reservations import FIRST, LARGEST_SHARE
from tacita.errors import BudgetExceededError

EVENT = FullBatchGaussianEvent(relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,))


class Machine:
    """A session on a machine with a known price of a flush, and the clock of that machine."""

    def __init__(self, planned_queries, flush):
        ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row = one patient")
        self.session = ledger.register(EVENT, planned_queries=planned_queries)
        self.session.open()
        self.now, self.flush, self.flushes, self.flushing = 0.0, flush, 0, 0.0
        self.planned_queries = planned_queries

    def clock(self):
        return self.now

    def covered(self, query):
        return self.session.covered(query)

    @property
    def reserved_queries(self):
        return self.session.reserved_queries

    def reserve(self, first, last):
        self.session.reserve(first, last)
        cost = self.flush(self.flushes)
        self.now += cost
        self.flushing += cost
        self.flushes += 1


def run(machine, seconds, queries, clock=None):
    ahead = Reservations(machine, clock=clock or machine.clock)
    for query in range(queries):
        ahead.cover(query)
        assert machine.covered(query)
        machine.now += seconds(query)
    return machine


@pytest.mark.parametrize("flush", [1e-4, 5e-3, 0.1])
@pytest.mark.parametrize("query", [1e-5, 1e-3, 0.05, 2.0])
@pytest.mark.parametrize("queries", [1, 20, 33, 500, 5000])
def test_flushes_cost_two_per_cent_or_the_first_two(flush, query, queries):
    machine = run(Machine(queries, lambda _: flush), lambda _: query, queries)
    assert machine.flushing <= max(LARGEST_SHARE * machine.now * (1 + 1e-9), 2 * flush)


@pytest.mark.parametrize("seconds", [lambda q: 1.0 if q == 0 else 0.002, lambda q: 0.002 * (1 + q / 500)])
def test_a_slow_start_or_a_slowing_run_is_paid_off(seconds):
    machine = run(Machine(20_000, lambda n: 0.005 * (1 + n % 3)), seconds, 20_000)
    assert machine.flushing <= LARGEST_SHARE * machine.now * 1.1


def test_slow_queries_are_reserved_one_by_one_and_quick_ones_many_at_once():
    slow = run(Machine(200, lambda _: 1e-4), lambda _: 1.0, 100)
    assert slow.reserved_queries == 100
    quick = run(Machine(10**6, lambda _: 0.01), lambda _: 1e-4, 20_000)
    assert quick.flushes < 10


def test_nothing_is_reserved_past_the_plan_and_past_it_is_refused():
    machine = run(Machine(5, lambda _: 0.01), lambda _: 1e-6, 5)
    assert machine.reserved_queries == 5 < FIRST
    with pytest.raises(BudgetExceededError, match="planned 5 queries"):
        Reservations(machine.session).cover(5)


@pytest.mark.parametrize("step", [0.0, -1.0])
def test_a_clock_that_stands_still_or_goes_back_is_tolerated(step):
    ticks = iter(range(10**9))
    machine = run(Machine(300, lambda _: 0.0), lambda _: 0.0, 300, clock=lambda: step * next(ticks))
    assert machine.reserved_queries == 300


def test_a_clock_set_back_once_does_not_stop_the_flushes_from_paying_off():
    machine = Machine(5000, lambda _: 0.005)
    back = lambda: machine.now - (1e6 if machine.now > 2 else 0)  # noqa: E731
    run(machine, lambda _: 0.002, 5000, clock=back)
    assert machine.flushing <= LARGEST_SHARE * machine.now * 1.1
    assert machine.flushes > 20


def test_a_covered_query_costs_nothing():
    machine = Machine(100, lambda _: 0.01)
    ahead = Reservations(machine, clock=machine.clock)
    ahead.cover(0)
    ahead.cover(FIRST - 1)
    assert machine.flushes == 1
    ahead.cover(FIRST)
    assert machine.flushes == 2


def test_numbers_that_are_skipped_are_reserved_with_the_rest():
    machine = Machine(100, lambda _: 0.01)
    Reservations(machine, clock=machine.clock).cover(40)
    assert machine.covered(0)
    assert machine.covered(40)
