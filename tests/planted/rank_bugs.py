"""Bugs of several ranks: who draws, who pays, who adds noise, and what is added up."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist

from tacita.convex import MedianOfMeans
from tacita.distributed import gates, process_group
from tacita.distributed.gates import LeaderGate, WorkerGate
from tacita.distributed.process_group import Ranks
from tacita.distributed.serving import ServingRanks
from tacita.oracles.query_draws import Plan
from tests.planted.plant import bug, put, swap

RANKS = "tests/distributed/test_process_group.py::"
GATES = "tests/distributed/test_gates.py::"

SAME = [GATES + "test_ranks_release_what_one_process_releases"]
NOISE = [GATES + "test_the_noise_is_one_draw_of_the_stated_size"]


@bug(36, caught_by=NOISE)
def noise_of_every_rank():
    """Every rank adds noise of the full size, and the release has the sum of them."""
    whole = LeaderGate._send

    def louder(self, released):
        for tensors in released.values():
            for x in tensors.values():
                x.add_(torch.randn_like(x), alpha=(self._ranks.size - 1) ** 0.5 * x.std().item())
        whole(self, released)

    put(LeaderGate, "_send", louder)


@bug(36, caught_by=NOISE)
def noise_divided_by_the_ranks():
    """Rank 0 alone adds noise, of the share that would be right if all ranks added theirs."""
    whole = LeaderGate.release

    def noisy(self, dtypes=None):
        self._gate.noise_std = {block: std / self._ranks.size**0.5 for block, std in self.noise_std.items()}
        return whole(self, dtypes)

    put(LeaderGate, "release", noisy)


@bug(36, caught_by=[*NOISE, *SAME])
def a_release_of_its_own_on_every_rank():
    """The other ranks draw noise themselves, with a key of their own, on the same sums."""
    whole = WorkerGate.release

    def noisy(self, dtypes=None):
        return {
            block: {name: x + torch.randn_like(x) for name, x in tensors.items()}
            for block, tensors in whole(self, dtypes).items()
        }

    put(WorkerGate, "release", noisy)


@bug(
    10,
    caught_by=[
        GATES + "test_one_record_moves_the_sum_over_all_ranks_by_at_most_the_threshold",
        GATES + "test_the_ranks_read_the_one_draw_of_rank_zero_each_row_once",
        *SAME,
    ],
)
def every_rank_reads_the_whole_batch():
    """A batch is not shared out, so that a record is added once for each rank."""
    put(Ranks, "share", lambda self, rows: rows)


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


@bug(10, caught_by=SAME)
def sums_of_rank_zero_alone():
    """The ranks' sums are not added up."""
    put(Ranks, "add_up", lambda self, values: [dict(one) for one in values])


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


@bug(75, caught_by=[RANKS + "test_each_rank_draws_dropout_of_its_own"])
def the_same_dropout_on_every_rank():
    """Every rank seeds the model alike, so that masks of records agree or not by where an absent one leaves them."""
    put(Ranks, "number", lambda self, chunk: chunk)


@bug(
    9,
    caught_by=[
        RANKS + "test_an_exception_on_one_rank_is_an_error_on_all_and_they_go_on",
        GATES + "test_an_exception_on_one_rank_stops_all_releases_nothing_and_can_be_mended",
    ],
)
def an_exception_stays_on_its_rank():
    """A rank that fails tells nobody, and the others wait for it or take its next query for this one."""
    put(Ranks, "fail_together", lambda self: nullcontext())


@bug(20, caught_by=[GATES + "test_ranks_that_differ_are_refused_before_anything_is_registered"])
def ranks_are_not_compared():
    """A rank with a larger clipping threshold, or with other records, takes part."""
    put(Ranks, "check_equal", lambda self, what, own: None)


@bug(11, caught_by=[GATES + "test_the_line_is_on_disk_before_its_release_leaves_rank_zero"])
def handed_out_before_the_line_is_on_disk():
    """Rank 0 gives its release to other machines while the line of the query is in a buffer."""
    whole = LeaderGate.release

    def noisy(self, dtypes=None):
        flush, self.session.flush = self.session.flush, lambda: None
        try:
            return whole(self, dtypes)
        finally:
            self.session.flush = flush

    put(LeaderGate, "release", noisy)


@bug(caught_by=[GATES + "test_a_query_from_within_a_query_is_refused_on_every_rank_and_they_go_on"])
def the_gate_hides_who_asks():
    """Rank 0's line takes the gate around it for the query that is under way, and serves one from within it."""

    def turn(self):
        with self._gate.turn():
            yield

    LeaderGate.turn = contextmanager(turn)


@bug(11, caught_by=[GATES + "test_only_rank_zero_has_a_ledger_and_a_session"])
def every_rank_has_a_ledger():
    """A rank that pays nothing is built with a ledger, whose statement would say so."""
    whole = ServingRanks._working

    def working(self, plan, mechanism):
        return whole(self, replace(plan, payment=replace(plan.payment, ledger=None, session=None)), mechanism)

    put(ServingRanks, "_working", working)


@bug(43, caught_by=[GATES + "test_another_number_of_ranks_continues_with_the_same_batches_and_noise"])
def ranks_resume_without_the_remembered_error():
    """After a resume the other ranks begin with an error of zero."""
    whole = WorkerGate.load_state_dict

    def load_state_dict(self, state):
        before = self.state
        whole(self, state)
        self.state = before

    put(WorkerGate, "load_state_dict", load_state_dict)


@bug(9, caught_by=[GATES + "test_parameters_that_drift_apart_are_refused_before_a_release"])
def points_are_not_compared():
    """The ranks' parameters may differ, so that a sum is of gradients at several points."""
    swap(gates.point_digest, lambda source, params: b"")


@bug(10, caught_by=[GATES + "test_an_estimator_that_sums_its_own_rows_alone_is_refused"])
def sums_of_one_rank_accepted():
    """An estimator's own sum, over the rows of rank 0 alone, is released as that of the batch."""
    put(Ranks, "check_added_up", lambda self: None)


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


@bug(caught_by=[RANKS + "test_sums_in_another_order_of_names_are_added_up_by_name"])
def sums_added_in_the_order_they_come():
    """Sums are taken in the order in which each rank's engine gives them."""

    def add_up(self, values):
        summed = iter(self._sent([tensor for one in values for tensor in one.values()], dist.all_reduce))
        return [{name: next(summed) for name in one} for one in values]

    put(Ranks, "add_up", add_up)


@bug(37, caught_by=[RANKS + "test_a_rank_that_fails_amid_a_step_never_goes_on"])
def status_amid_a_step():
    """A rank that fails while the others wait for its values sends them its status, which they add up."""
    Ranks._amid = property(lambda self: False, lambda self, value: None)


@bug(caught_by=[RANKS + "test_an_error_while_another_is_handled_is_told_too"])
def an_old_mark_is_believed():
    """An exception is taken for known to all ranks if any exception before it was."""
    whole = process_group._every_rank_knows
    swap(whole, lambda error, before: whole(error, 0))
