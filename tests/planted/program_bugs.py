"""Bugs of programs: what a list of operators may not hold, and what a query may not change."""

import torch

from tacita.gradients import engine_choice
from tacita.gradients.program import check, rows, run, unify, writer
from tests.planted.plant import bug, put, swap

KINDS = "tests/gradients/program/test_hostile_kinds.py::"
CHECK = "tests/gradients/program/test_check.py::"
ROWS = "tests/gradients/program/test_rows.py::"
DERIVED = "tests/gradients/rules/test_derived_weights.py::"


class AnyName(dict):
    def get(self, name):
        return super().get(name, rows._moved)


@bug(caught_by=[CHECK + "test_a_view_of_the_batch_may_not_be_written"])
def a_program_may_write_what_it_is_given():
    """A program writes the batch in place, which may be the data set's own memory."""
    put(check, "written_by", lambda node: [])


@bug(caught_by=[KINDS + "test_it_is_refused_before_a_record_is_read"])
def a_seed_may_be_set():
    """A seed that the model sets is of no effect, and nobody is told."""
    put(
        writer._Below,
        "__torch_dispatch__",
        lambda self, func, types, args=(), kwargs=None: func(*args, **kwargs or {}),
    )
    put(engine_choice.MethodChoice, "_obstacle", lambda *args, **more: "")


@bug(caught_by=[KINDS + "test_it_is_refused_before_a_record_is_read"])
def traces_may_differ_in_numbers():
    """A clock or a counter of the model's own stays what it was in the first trace."""
    put(unify, "_alike", lambda parts: True)
    put(engine_choice.MethodChoice, "_obstacle", lambda *args, **more: "")


@bug(83, caught_by=[KINDS + "test_modes_around_a_query_are_of_no_effect"])
def modes_reach_a_query():
    """A dispatch mode of whoever calls doubles every product of a query."""
    swap(run.plain_tensors_only, torch.no_grad)


@bug(caught_by=[ROWS + "test_records_that_meet_are_refused"])
def axes_of_records_are_not_looked_at():
    """A program sorts, sums up or shifts along the axis of the records."""
    put(rows, "_KINDS", {name: rows._moved if kind is rows._along else kind for name, kind in rows._KINDS.items()})


@bug(caught_by=[ROWS + "test_records_that_meet_are_refused"])
def a_reshape_may_group_rows_anew():
    """A record's positions become those of another by a transpose and a view."""
    put(rows, "_KINDS", {name: rows._moved if kind is rows._reshaped else kind for name, kind in rows._KINDS.items()})


@bug(caught_by=[ROWS + "test_records_that_meet_are_refused"])
def an_operator_that_nobody_knows_meets_rows():
    """A program has an operator of which it is not known what it does with the axis of the records."""
    put(rows, "_KINDS", AnyName(rows._KINDS))


@bug(caught_by=[ROWS + "test_records_that_meet_are_refused"])
def attention_reads_beyond_its_keys():
    """PyTorch's kernel of attention takes more values than keys, and reads the next record's keys."""
    put(rows, "_KINDS", rows._KINDS | dict.fromkeys(rows._TABLE[rows._attention].split(), rows._first_axis))


@bug(54, caught_by=[DERIVED + "test_rows_are_pulled_back_in_their_order"])
def a_pull_back_reads_what_the_pass_repeats():
    """A pull-back of a few rows takes what was computed for the rows of the whole pass."""
    pullback = run._pullback

    def of_the_gradients_alone(one, calls, number, following):
        kept, after = [], {one.given}
        for call in calls:
            if after & {*call.node.all_input_nodes}:
                kept.append(call)
                after.add(call.node)
        return pullback(one, kept, number, set())

    put(run, "_pullback", of_the_gradients_alone)
