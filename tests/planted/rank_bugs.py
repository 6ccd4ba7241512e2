"""Bugs of several ranks: who draws, who pays, who adds noise, and what is added up."""

from contextlib import contextmanager

import torch

from tacita.convex import MedianOfMeans
from tacita.distributed.gates import LeaderGate, WorkerGate
from tacita.distributed.process_group import Ranks
from tacita.oracles.query_draws import Plan
from tests.planted.plant import bug, put

RANKS = "tests/distributed/test_process_group.py::"
GATES = "tests/distributed/test_gates.py::"

SAME = [GATES + "test_ranks_release_what_one_process_releases"]


@bug(10, caught_by=[GATES + "test_the_ranks_read_the_one_draw_of_rank_zero_each_row_once", *SAME])
def every_rank_draws_its_own_batch():
    """The other ranks draw Poisson samples of their own, beside the share of rank 0."""
    whole = WorkerGate.planned

    def planned(self, last, params):
        plan = whole(self, last, params)
        coins = torch.rand(self._source.num_rows, generator=torch.Generator().manual_seed(plan.query + 1))
        return Plan(plan.query, torch.nonzero(coins < 0.3).flatten().numpy(), plan.seed)

    put(WorkerGate, "planned", planned)


@bug(9, caught_by=[GATES + "test_ranks_without_rows_stay_in_step"])
def a_rank_without_rows_sits_out():
    """A rank whose share is empty takes no part in the sum, and is out of step from then on."""
    whole = Ranks.add_up

    def add_up(self, values):
        nothing = not any(bool(x.any()) for one in values for x in one.values())
        return [dict(one) for one in values] if nothing else whole(self, values)

    put(Ranks, "add_up", add_up)


@bug(20, caught_by=SAME)
def sums_averaged_over_the_ranks():
    """The ranks' sums are averaged, as data parallelism does with gradients."""
    whole = Ranks.add_up
    put(
        Ranks,
        "add_up",
        lambda self, values: [
            {name: x / self.size if x.is_floating_point() else x for name, x in one.items()}
            for one in whole(self, values)
        ],
    )


@bug(caught_by=[GATES + "test_a_query_from_within_a_query_is_refused_on_every_rank_and_they_go_on"])
def the_gate_hides_who_asks():
    """Rank 0's line takes the gate around it for the query that is under way, and serves one from within it."""

    def turn(self):
        with self._gate.turn():
            yield

    LeaderGate.turn = contextmanager(turn)


@bug(10, caught_by=[GATES + "test_a_median_is_taken_of_the_groups_sums_over_all_ranks"])
def medians_added_over_the_ranks():
    """Every rank takes the median of the groups of its own rows, and these medians are added up."""
    whole = MedianOfMeans.__call__

    class Alone:
        def __init__(self, engine):
            self.shapes, self.labels, self.labelled = engine.shapes, engine.labels, engine.labelled
            self.materialise = engine.materialise

        def over_ranks(self, values):
            return values

    def call(self, engine, state):
        values, state = whole(self, Alone(engine), state)
        return {"all": engine.over_ranks([values["all"]])[0]}, state

    put(MedianOfMeans, "__call__", call)


@bug(37, caught_by=[RANKS + "test_a_rank_that_fails_amid_a_step_never_goes_on"])
def status_amid_a_step():
    """A rank that fails while the others wait for its values sends them its status, which they add up."""
    Ranks._amid = property(lambda self: False, lambda self, value: None)
