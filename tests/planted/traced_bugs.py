"""Bugs of traced steps: what a line of operators no longer sees."""

import torch

from tacita.gradients import traced, traced_step
from tacita.gradients.ghost import rare_cases
from tests.planted.plant import bug, put, swap

TRACED = "tests/gradients/test_traced.py::"


@bug(caught_by=[TRACED + "test_what_changes_is_seen", TRACED + "test_what_the_loss_refers_to_is_seen"])
def a_line_is_never_made_anew():
    """The network changes, and the operators of the old one run on."""
    put(traced.TracedSteps, "_is_as_it_was", lambda self, tree: True)


@bug(caught_by=[TRACED + "test_a_norm_that_its_gram_matrix_hides_goes_the_ordinary_way"])
def rare_cases_give_no_flag():
    """A traced step takes every norm to be what its Gram matrix says, however much cancels in it."""
    swap(rare_cases.happens, lambda rare: False if rare_cases._FLAGS.get() is not None else bool(rare))


@bug(caught_by=[TRACED + "test_rows_are_added_that_count_for_nothing"])
def rows_that_are_added_count():
    """The copies of the first row that fill up a batch have its weight, too."""
    whole = traced.filled_up

    def filled_up(tensor, size, *, zeros=False):
        return whole(tensor, size)

    swap(whole, filled_up)


@bug(caught_by=[TRACED + "test_numbers_that_would_be_drawn_once_are_refused"])
def a_draw_is_made_once_for_all_steps():
    """Numbers that the code draws by itself are drawn when a step is traced, and stay the same."""
    put(traced_step, "_generators", lambda: ())


@bug(caught_by=[TRACED + "test_a_model_that_writes_its_batch_is_refused"])
def a_line_writes_what_it_was_given():
    """A model that writes its batch is traced, and halves it once more at each step."""
    put(traced_step, "_check", lambda graph: None)


@bug(caught_by=[TRACED + "test_rows_that_are_not_finite_go_the_ordinary_way"])
def a_row_that_is_not_finite_stays_in_the_line():
    """A row of weight 0 is multiplied by 0 whatever it holds, and 0 times NaN is NaN."""
    whole = traced.row_weights

    def plain(weights, dtype, norms=None):
        return [traced.RowWeights(one.values, plain=True) for one in whole(weights, dtype, torch.zeros_like(weights))]

    put(traced, "row_weights", plain)


@bug(caught_by=[TRACED + "test_autocast_around_a_query_is_seen"])
def lines_do_not_ask_for_autocast():
    """A step that was traced without autocast runs under it, or the other way round."""
    put(traced, "_switches", lambda device: ())
