"""Bugs of linear models: second moments, closed-form sums, purchases, and the budget of a fit."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import scipy.sparse
import torch

from tacita import _validate
from tacita.clipping import flat
from tacita.estimators import clipped_sum
from tacita.linear import SecondMoment, SecondMomentEvent, row_blocks, second_moment
from tacita.linear import source as linear_source
from tacita.linear.losses import HessianRowLoss, LogisticLoss
from tacita.linear.row_blocks import DenseBlocks, SparseBlocks
from tacita.linear.source import LinearEngine
from tacita.linear_model import answers, budget, classification, mean, purchases, scaler
from tacita.linear_model.base import PrivateEstimator
from tacita.linear_model.budget import FitBudget
from tacita.linear_model.fitting import Paying
from tests.planted.plant import bug, put, swap

MOMENT = "tests/linear/test_second_moment.py::"
BLOCKS = "tests/linear/test_source.py::"
FITS = "tests/linear_model/test_estimators.py::"
CHARGED = FITS + "test_the_whole_budget_is_spent_and_no_more"
HESSIANS = "tests/linear/test_hessian_rows.py::"
SOLVERS = "tests/linear_model/test_solvers.py::"
MOVES = FITS + "test_one_record_moves_each_release_by_what_its_event_states"


@bug(
    20, caught_by=[MOMENT + "test_the_sensitivity_is_reached", MOMENT + "test_it_is_charged_as_a_sum_that_moves_as_far"]
)
def a_replaced_row_moves_one_matrix():
    """Under replace_one, second moments are released with the noise of one record's matrix."""
    put(SecondMoment, "sensitivity", lambda self, relation, shapes: {"second_moment": self.max_row_norm**2})


@bug(20, caught_by=[BLOCKS + "test_what_the_caller_writes_later_changes_nothing"])
def norms_of_rows_that_others_write():
    """Norms are taken once of rows that the caller goes on writing."""
    swap(row_blocks.owned_row_blocks, row_blocks.as_row_blocks)


@bug(20, caught_by=[BLOCKS + "test_a_share_too_small_to_be_rounded_well_is_absent[1e-05-2.5e+38]"])
def subnormal_shares_kept():
    """A subnormal share of a huge row is rounded up by percents."""
    put(linear_source, "F", SimpleNamespace(hardshrink=lambda shares, least: shares))


@bug(20, caught_by=[MOMENT + "test_it_is_charged_as_a_sum_that_moves_as_far"])
def replacing_is_charged_like_zeroing_out():
    """The event of second moments forgets the square root of 2 of replace_one."""
    put(SecondMomentEvent, "query_mu", property(lambda self: self.ratio))


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


@bug(20, caught_by=[MOMENT + "test_a_matrix_is_a_vector_of_the_same_norm"])
def the_upper_triangle_without_its_scale():
    """Off-diagonal entries are released without the square root of 2."""
    swap(second_moment._scales, lambda on_diagonal, like: torch.ones(len(on_diagonal), dtype=like.dtype))


@bug(20, caught_by=[BLOCKS + "test_sums_and_norms_equal_those_of_the_loop",
                    BLOCKS + "test_rounding_carries_no_row_past_the_threshold"])  # fmt: skip
def norms_without_the_constant():
    """The norm of a gradient leaves out the bias."""
    norms = DenseBlocks.norms
    put(DenseBlocks, "norms", lambda self, scale, constant: norms(self, scale, 0.0))


@bug(20, caught_by=[BLOCKS + "test_an_entry_that_is_stored_in_pieces_is_clipped_as_a_whole"])
def norms_of_the_pieces_of_an_entry():
    """An entry that a CSR matrix stores in k equal pieces counts in the norm as if it were sqrt(k) times smaller."""
    swap(row_blocks._summed, lambda table: table)


@bug(25, caught_by=[BLOCKS + "test_a_hostile_row_leaves_the_others_alone"])
def rows_that_are_not_finite_stay_in_products():
    """A row of NaN has weight 0, and 0 times NaN is NaN: the whole sum is."""
    put(DenseBlocks, "without", lambda self, rows: self)


@bug(20, 25, caught_by=[MOVES])
def a_row_that_one_source_forgets_is_a_constant_in_another():
    """Gradients put zeros for a row that is not finite, in the table of second moments too: they add its constant."""
    without = DenseBlocks.without

    def everywhere(self, rows):
        self.__dict__.update(without(self, rows).__dict__, _kept=None)  # norms that were kept would still leave it out
        return self

    put(DenseBlocks, "without", everywhere)


@bug(25, caught_by=[BLOCKS + "test_targets_that_are_not_finite_are_absent"])
def targets_that_are_not_finite_stay_in_sums():
    """A target of NaN spoils the whole sum."""
    add = LinearEngine._add

    def spoiled(self, total, rows, errors, *others):
        add(self, total, rows, errors, *others)
        total += errors.sum()  # 0 times NaN

    put(LinearEngine, "_add", spoiled)


@bug(20, caught_by=[BLOCKS + "test_rounding_of_a_float32_sum_hides_no_more_than_the_norms_pay_for"])
def float32_sums_over_all_rows():
    """A sum of float32 over 65,536 rows: one record moves what all later additions round, and so more than C."""
    put(row_blocks, "RUN", 2**16)


@bug(39, caught_by=[BLOCKS + "test_a_norm_counts_where_squares_underflow_before_they_are_scaled"])
def norms_that_underflow_before_they_are_scaled():
    """A row's squares become 0, and its norm with them, although the row is long once it is scaled."""
    put(row_blocks, "LARGEST_FACTOR", float("inf"))


@bug(3, caught_by=[CHARGED])
def every_query_gets_the_share_of_its_session():
    """A session of k queries has noise as if it made one."""
    noise = FitBudget.noise_multiplier
    put(FitBudget, "noise_multiplier", lambda self, share, queries=1: noise(self, share))


@bug(3, caught_by=[CHARGED])
def purchases_beside_the_budget():
    """The gradients get the whole budget, and what is bought before comes on top."""
    put(FitBudget, "rest", property(lambda self: 1.0))


@bug(20, caught_by=[MOVES])
def a_scale_is_bought_from_two_bins():
    """A record is counted in two bins of a histogram, and charged for one."""
    counts = purchases.scale_counts
    swap(counts, lambda values: 2 * counts(values))


@bug(3, caught_by=[FITS + "test_bought_classes_cost_a_share_of_delta"])
def every_class_is_released():
    """A label is released however rare it is, a label of one record alone included."""
    put(budget.FitBudget, "classes_threshold", lambda self, event: -math.inf)


@bug(3, caught_by=[FITS + "test_a_clone_is_paid_from_the_same_ledger"])
def a_clone_has_a_ledger_of_its_own():
    """A grid search clones the estimator, and each clone pays from a new ledger."""
    clone = PrivateEstimator.__sklearn_clone__

    def forgetful(self):
        made = clone(self)
        made.ledger = None
        return made

    put(PrivateEstimator, "__sklearn_clone__", forgetful)


@bug(1, caught_by=[FITS + "test_privacy_has_no_defaults"])
def the_number_of_rows_is_the_secret_and_the_divisor():
    """add_or_remove_one is offered, while sums are divided by the true number of rows."""
    from tacita.linear_model import base

    put(base, "RELATIONS", ("zero_out_one", "replace_one", "add_or_remove_one"))


@bug(3, caught_by=[FITS + "test_a_copy_that_left_its_ledger_behind_is_not_paid_from_another"])
def a_pickled_copy_pays_from_a_new_ledger():
    """Pickling drops the ledger, so that the processes of a grid search pay from ledgers that nobody sees."""
    put(PrivateEstimator, "__getstate__", lambda self: {**self.__dict__, "ledger": None, "ledger_": None})


@bug(3, caught_by=[FITS + "test_the_width_of_bought_classes_is_that_of_the_classes"])
def bought_classes_as_wide_as_the_longest_label():
    """The labels that were bought keep the width of an array that holds all labels."""
    put(classification, "named_classes", lambda y, found: (found, found))


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


@bug(3, caught_by=[FITS + "test_a_label_that_noise_leaves_below_the_threshold_is_not_released"])
def rounding_lifts_a_label_over_the_threshold():
    """A noisy count that is rounded up to a whole number passes a threshold that it was below."""

    def bought(self, paying, session, labels):
        names, counts = purchases.class_counts(labels)
        noisy = classification.buy_counts(session, {"classes": counts}, paying.randomness)["classes"]
        return names[noisy > paying.budget.classes_threshold(session.event)]

    put(classification.PrivateClassifier, "_bought_classes", bought)


@bug(3, caught_by=[FITS + "test_bought_classes_cost_a_share_of_delta"])
def a_replaced_record_brings_one_new_label():
    """Under replace_one the chance of a new label is that of one record, where two may differ."""
    event = FitBudget.classes_event

    def loose(self):
        return replace(event(self), failure_probability=budget.NEW_CLASSES * self.delta)

    put(FitBudget, "classes_event", loose)


@bug(20, caught_by=[MOVES])
def a_histogram_more_than_is_charged():
    """Every scale is bought from a histogram that is released twice, at the charge of one."""
    counts = purchases.buy_counts
    swap(counts, lambda session, each, key: counts(session, {**each, **{f"{n}'": x for n, x in each.items()}}, key))


@bug(caught_by=[FITS + "test_the_statement_names_what_was_bought"])
def purchases_are_not_named():
    """The statement of a fit does not say what was bought from the data."""
    said = PrivateEstimator._said
    put(PrivateEstimator, "_said", lambda self, paying, chosen: said(self, paying, []))


@bug(39, caught_by=[BLOCKS + "test_norms_of_rows_are_upper_bounds"])
def norms_of_rows_are_rounded_to_the_nearest():
    """The norm of a row may be below the exact one by its rounding."""
    put(row_blocks, "round_up", lambda norms, terms: norms)


@bug(20, caught_by=["tests/linear_model/test_purchases.py::test_bought_counts_have_the_noise_of_their_event"])
def noise_of_bought_counts_five_percent_too_small():
    """Scales and classes are bought with less noise than their event states."""
    before = purchases._noise_std
    put(purchases, "_noise_std", lambda session: 0.95 * before(session))


@bug(3, caught_by=["tests/linear_model/test_budget.py::test_a_budget_in_rho_is_that_of_its_gaussian",
                   FITS + "test_a_fit_in_rho_spends_what_its_gaussian_does"])  # fmt: skip
def rho_taken_for_the_square_of_mu():
    """A budget in rho gets the noise of mu = 2 sqrt(rho), which is twice rho."""
    mu = FitBudget.mu.fget
    put(FitBudget, "mu", property(lambda self: mu(self) * (1.0 if self.rho is None else math.sqrt(2))))


@bug(18, caught_by=["tests/linear_model/test_answers.py::test_one_entry_leaves_the_others_alone"])
def one_entry_chooses_the_dtype_of_a_list():
    """Labels in a list are read by NumPy, so that one None turns all others into objects."""
    put(answers, "_column", np.asarray)


@bug(20, caught_by=[MOVES])
def distances_from_the_exact_mean():
    """The widths of columns are bought from distances to their exact mean, which one record moves for all rows."""
    released = mean.released_mean

    def exact(paying, planned, rows):
        _, noise_std = released(paying, planned, rows)
        return rows.dense(slice(0, rows.shape[0])).nan_to_num().mean(dim=0).numpy(), noise_std

    put(mean, "released_mean", exact)


@bug(25, caught_by=["tests/estimators/test_clipped_sum.py::test_a_threshold_whose_sums_may_be_infinite_is_refused"])
def thresholds_near_the_largest_number():
    """A clipping threshold may be so large that a sum of two rows is infinite."""
    put(clipped_sum, "MOST_CONTRIBUTION", math.inf)


@bug(26, caught_by=["tests/clipping/test_flat.py::"
                    "test_a_weight_is_below_the_exact_quotient_and_one_exactly_up_to_the_threshold"])  # fmt: skip
def a_threshold_rounded_to_the_nearest_float32():
    """Norms of float32 are compared with a threshold that was rounded up: one just above it is not clipped."""
    put(flat, "_rounded_down", lambda value, dtype: value.to(dtype))


@bug(11, caught_by=[SOLVERS + "test_the_whole_budget_is_spent_and_no_more"])
def the_first_hessian_is_paid_and_the_others_are_not():
    """All Hessians of a fit get the noise that one of them would get alone, and one of them is registered."""
    plan = Paying.plan_moments
    put(Paying, "plan_moments", lambda self, queries=1: plan(self))


@bug(20, caught_by=[HESSIANS + "test_one_record_moves_the_sum_by_at_most_one"])
def hessians_of_rows_that_are_not_clipped():
    """The curvature multiplies the matrix of the row as it is, and not a row that is clipped to R."""

    def unclipped(self, engine):
        for chunk in engine.materialise():
            yield torch.cat([part.flatten(1) for part in chunk.values()], dim=1).nan_to_num(0.0, 0.0, 0.0)

    put(SecondMoment, "_clipped", unclipped)


@bug(25, caught_by=[HESSIANS + "test_a_target_that_is_missing_makes_its_row_absent"])
def a_row_without_a_target_counts_in_the_hessian():
    """A row whose target is missing adds to the Hessian, as if its curvature were the largest."""
    derivative = HessianRowLoss.derivative
    put(HessianRowLoss, "derivative", lambda self, outputs, targets: derivative(self, outputs, targets).nan_to_num(1.0))


@bug(45, caught_by=[HESSIANS + "test_the_quadratic_touches_the_loss_and_is_nowhere_below_it",
                    "tests/linear_model/test_newton.py::test_no_exact_step_increases_the_risk"])  # fmt: skip
def the_second_derivative_is_taken_for_a_bound():
    """Newton steps use the second derivative of the logistic loss, which falls to 0: steps overshoot."""

    def derivative(self, outputs, targets):
        share = outputs.squeeze(1).sigmoid()
        return share * (1 - share) + 0.0 * targets

    put(LogisticLoss, "majorant", derivative)


@bug(26, caught_by=["tests/test_validate.py::test_whatever_clips_refuses_a_threshold_that_float32_cannot_serve"])
def thresholds_among_subnormal_numbers():
    """A clipping threshold may be so small that float32 rounds what is clipped to it to a multiple of 1e-45."""
    put(_validate, "LEAST_THRESHOLD", 0.0)


@bug(20, caught_by=["tests/linear_model/test_scaler.py::test_no_row_is_longer_than_what_it_is_clipped_to"])
def squares_of_a_replaced_row_are_not_shifted():
    """Rows (u, u^2) are clipped to sqrt(d), the radius of the ball in which only (u, u^2 - 1) lies."""
    put(scaler, "SQUARES", {**scaler.SQUARES, "replace_one": (0.0, 1.0)})
