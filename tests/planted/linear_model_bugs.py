"""Bugs of linear models: second moments, closed-form sums, purchases, and the budget of a fit."""

import numpy as np
import scipy.sparse
import torch

from tacita import _validate
from tacita.linear import SecondMoment
from tacita.linear.row_blocks import SparseBlocks
from tacita.linear_model import purchases
from tests.planted.plant import bug, put, swap

MOMENT = "tests/linear/test_second_moment.py::"
BLOCKS = "tests/linear/test_source.py::"
FITS = "tests/linear_model/test_estimators.py::"
HESSIANS = "tests/linear/test_hessian_rows.py::"
MOVES = FITS + "test_one_record_moves_each_release_by_what_its_event_states"


@bug(
    20,
    caught_by=[
        MOMENT + "test_the_sensitivity_is_reached",
        MOMENT + "test_an_audit_nearly_reaches_the_claim_and_refutes_half_of_it",
    ],
)
def the_bound_on_rows_taken_for_that_on_matrices():
    """The sensitivity of second moments is R, not R^2; and R is half as long as the rows."""
    call = SecondMoment.__call__

    def longer(self, engine, state):
        return call(SecondMoment(max_row_norm=2 * self.max_row_norm), engine, state)

    put(SecondMoment, "__call__", longer)


@bug(1, caught_by=[FITS + "test_privacy_has_no_defaults"])
def the_number_of_rows_is_the_secret_and_the_divisor():
    """add_or_remove_one is offered, while sums are divided by the true number of rows."""
    from tacita.linear_model import base

    put(base, "RELATIONS", ("zero_out_one", "replace_one", "add_or_remove_one"))


@bug(18, caught_by=[BLOCKS + "test_an_entry_that_is_stored_in_pieces_is_one_number"])
def an_entry_in_pieces_has_their_norm():
    """The norm of a sparse row is that of the numbers it stores, several of which may stand for one entry."""
    init = SparseBlocks.__init__

    def in_pieces(self, table):
        init(self, table)
        stored = scipy.sparse.csr_matrix(table)
        self._data = np.asarray(stored.data, np.float64)
        self._indices, self._starts = stored.indices, stored.indptr

    put(SparseBlocks, "__init__", in_pieces)


@bug(20, caught_by=[MOVES])
def a_histogram_more_than_is_charged():
    """Every scale is bought from a histogram that is released twice, at the charge of one."""
    counts = purchases.buy_counts
    swap(counts, lambda session, each, key: counts(session, {**each, **{f"{n}'": x for n, x in each.items()}}, key))


@bug(20, caught_by=[HESSIANS + "test_one_record_moves_the_sum_by_at_most_one"])
def hessians_of_rows_that_are_not_clipped():
    """The curvature multiplies the matrix of the row as it is, and not a row that is clipped to R."""

    def unclipped(self, engine):
        for chunk in engine.materialise():
            yield torch.cat([part.flatten(1) for part in chunk.values()], dim=1).nan_to_num(0.0, 0.0, 0.0)

    put(SecondMoment, "_clipped", unclipped)


@bug(26, caught_by=["tests/test_validate.py::test_whatever_clips_refuses_a_threshold_that_float32_cannot_serve"])
def thresholds_among_subnormal_numbers():
    """A clipping threshold may be so small that float32 rounds what is clipped to it to a multiple of 1e-45."""
    put(_validate, "LEAST_THRESHOLD", 0.0)
