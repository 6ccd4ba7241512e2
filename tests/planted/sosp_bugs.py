"""Bugs of the unclipped sum, of couplings, and of the private choice of a stationary point."""

import math

import numpy as np
import torch

from tacita.accounting import AboveThresholdEvent, ConditionalEvent, CoupledEvent, accountant, moved
from tacita.gradients import randomness_check
from tacita.methods import RandomIterate
from tacita.random import Randomness, Stream
from tacita.second_order import (
    StationarityQuery,
    StationaryTest,
    UnclippedSum,
    hessian,
    lanczos_error,
    stationarity_query,
    stationary_test,
    unclipped_oracle,
)
from tacita.second_order.above_threshold import AboveThreshold
from tacita.second_order.threshold_answer import ThresholdAnswer
from tacita_reproductions import noisy_sgd_noise
from tests.planted.plant import bug, put, reform, swap

COUPLED = "tests/accounting/events/test_coupled.py::"
UNCLIPPED = "tests/second_order/test_unclipped_sum.py::"
ORACLE = "tests/second_order/test_unclipped.py::"
HESSIAN = "tests/second_order/test_hessian.py::"
THRESHOLD = "tests/second_order/test_above_threshold.py::"
TEST = "tests/second_order/test_stationary_test.py::"
ITERATE = "tests/methods/test_random_iterate.py::"
FORMULA = "reproductions/tests/test_noisy_sgd_noise.py::"


# -- couplings


@bug(
    caught_by=[
        COUPLED + "test_the_honest_delta_of_equal_failures",
        COUPLED + "test_the_claim_holds_and_twice_delta_does_not",
    ]
)
def failure_swapped_out_in_one_world():
    """The failure is added to delta once, as in the paper: 2 delta where (2 + e^epsilon) delta is right."""
    swap(accountant._swapped, lambda epsilon, gap: gap)


@bug(caught_by=[COUPLED + "test_failures_of_sessions_add_up"])
def failures_of_equal_sessions_counted_once():
    """Two sessions with the same event are merged, and fail once."""
    whole = accountant._gap
    swap(whole, lambda spends: whole(list({spend.event: spend for spend in spends}.values())))


@bug(
    caught_by=[
        COUPLED + "test_epsilon_is_the_least_that_pays_for_both_swaps",
        COUPLED + "test_too_large_a_failure_leaves_no_guarantee",
    ]
)
def failure_forgotten_in_epsilon():
    """Delta knows of the failure, epsilon does not."""
    swap(accountant._coupled_epsilon, accountant._epsilon)


@bug(16, caught_by=[COUPLED + "test_what_cannot_take_a_failure_refuses_it"])
def failure_hidden_from_selection():
    """The best of many runs is charged as if none of them could fail."""
    reform(CoupledEvent, coupling_gap=lambda event, queries: 0.0)


@bug(caught_by=[COUPLED + "test_the_failure_is_of_the_session_not_of_a_query"])
def condition_hides_the_failure():
    """A condition around an event forgets the failure inside it."""
    reform(ConditionalEvent, coupling_gap=lambda event, queries: 0.0)


# -- the unclipped sum


@bug(
    46,
    caught_by=[
        UNCLIPPED + "test_nothing_is_claimed_without_the_condition",
        ORACLE + "test_the_statement_prints_the_condition_and_no_epsilon",
        ORACLE + "test_a_capped_ledger_refuses_it",
    ],
)
def unclipped_sum_without_its_condition():
    """The unclipped sum is accounted as if gradients were clipped."""
    whole = UnclippedSum.event
    put(UnclippedSum, "event", lambda self, *args: whole(self, *args).inner)


@bug(caught_by=[UNCLIPPED + "test_the_failure_costs_both_swaps", ORACLE + "test_calibration_pays_for_the_failure"])
def unclipped_sum_without_its_failure():
    """The declared failure probability of the bound costs nothing."""

    def event(self, sampler, noise_std, relation, shapes):
        found = whole(self, sampler, noise_std, relation, shapes)
        inner = found.inner.inner if isinstance(found.inner, CoupledEvent) else found.inner
        return ConditionalEvent(relation=relation, inner=inner, condition_text=found.condition_text)

    whole = put(UnclippedSum, "event", event)


@bug(25, caught_by=[UNCLIPPED + "test_a_row_that_is_not_finite_counts_as_zero"])
def unclipped_sum_takes_infinite_rows():
    """A row that is not finite enters the unclipped sum."""

    def call(self, engine, state):
        sums = engine.weighted_sums(torch.ones_like, {"all": tuple(engine.shapes)})
        return {"all": sums.values[0]}, state

    put(UnclippedSum, "__call__", call)


@bug(
    42,
    caught_by=[
        UNCLIPPED + "test_an_exact_monitor_is_not_private",
        ORACLE + "test_the_exact_monitor_is_for_debugging_only",
    ],
)
def exact_monitor_said_to_be_private():
    """Whether the bound held is shown without noise, and the statement still has an epsilon."""

    def event(self, *args):
        object.__setattr__(self, "debug_monitor", False)
        found = whole(self, *args)
        object.__setattr__(self, "debug_monitor", True)
        return found

    whole = put(UnclippedSum, "event", event)


@bug(
    42,
    caught_by=[
        UNCLIPPED + "test_one_record_moves_the_monitor_by_its_stated_bound",
        UNCLIPPED + "test_a_bought_monitor_is_paid_for",
    ],
)
def monitor_not_paid_for():
    """The noisy count of long gradients is released beside the sum, and not accounted."""
    whole = UnclippedSum.event

    def event(self, *args):
        bounds = type(self)._bounds
        type(self)._bounds = property(lambda one: {"all": one.declared_max_grad_norm})
        found = whole(self, *args)
        type(self)._bounds = bounds
        return found

    put(UnclippedSum, "event", event)


@bug(caught_by=[ORACLE + "test_noise_that_alone_may_pass_the_bound_is_told"])
def large_noise_not_told():
    """Noise that alone makes gradients longer than declared is not told."""
    swap(unclipped_oracle._warn_of_noise, lambda *args: None)


# -- Hessians


@bug(25, caught_by=[HESSIAN + "test_a_row_of_nan_that_does_not_count_leaves_the_others_alone"])
def rows_silenced_by_a_zero():
    """Rows that do not count are left in the batch."""
    swap(hessian._selected, lambda chunk, kept: (chunk.batch, chunk.size))


@bug(
    caught_by=[
        HESSIAN + "test_the_error_bound_holds_with_its_probability",
        HESSIAN + "test_steps_are_the_least_that_suffice",
    ]
)
def eigenvalue_error_forgets_its_square():
    """The error of the eigen-solver is stated as its square."""
    whole = lanczos_error
    swap(whole, lambda *args: whole(*args) ** 2)


# -- AboveThreshold


@bug(
    20,
    caught_by=[
        THRESHOLD + "test_no_answer_tells_more_than_epsilon",
        THRESHOLD + "test_audit_the_claim_is_consistent",
        TEST + "test_the_recommended_scales",
    ],
)
def scales_of_the_paper():
    """Noise of scale s / epsilon on threshold and values: the factors 2 and 4 are forgotten."""
    for name in ("threshold_scale", "query_scale"):
        put(AboveThreshold, name, property(lambda self: self.sensitivity / self.epsilon))


@bug(20, caught_by=[THRESHOLD + "test_the_scales", TEST + "test_the_recommended_scales"])
def query_noise_of_the_threshold():
    """Values get the smaller noise of the threshold."""
    put(AboveThreshold, "query_scale", property(lambda self: 2 * self.sensitivity / self.epsilon))


@bug(34, caught_by=[TEST + "test_answers_are_the_mechanism_s_with_the_secret_draws"])
def threshold_noise_redrawn_for_every_value():
    """The threshold's noise is drawn anew for every value."""
    compare = ThresholdAnswer.__call__

    def redrawn(self, values, noise_std, noise):
        self.threshold_draw = float(noise.stream("threshold").laplaces(1)[0])
        return compare(self, values, noise_std, noise)

    put(ThresholdAnswer, "__call__", redrawn)


@bug(34, caught_by=[TEST + "test_answers_are_the_mechanism_s_with_the_secret_draws"])
def one_noise_for_all_values():
    """All values of a session get the same noise."""

    class First:
        def __init__(self, noise):
            self.query_stream = noise.stream.func

        def stream(self, block):
            return self.query_stream("noise", 0, block)

    compare = ThresholdAnswer.__call__
    put(
        ThresholdAnswer,
        "__call__",
        lambda self, values, noise_std, noise: compare(self, values, noise_std, First(noise)),
    )


@bug(34, 43, caught_by=[TEST + "test_the_threshold_s_draw_survives_a_ratchet"])
def threshold_noise_known_to_everybody():
    """The threshold's noise comes from a fixed seed."""
    build = StationaryTest.__init__

    def built(self, *args, **settings):
        build(self, *args, **settings)
        self._answering.threshold_draw = float(Randomness.insecure(12345).key.stream("threshold").laplaces(1)[0])

    put(StationaryTest, "__init__", built)


@bug(
    caught_by=[THRESHOLD + "test_laplace_draws_have_their_law", THRESHOLD + "test_laplace_draws_are_made_of_the_words"]
)
def laplace_noise_a_percent_too_small():
    """Laplace noise has 99 % of its scale."""
    whole = Stream.laplaces
    put(Stream, "laplaces", lambda self, count, offset=0: 0.99 * whole(self, count, offset))


@bug(caught_by=[THRESHOLD + "test_laplace_tails_reach_36", THRESHOLD + "test_laplace_draws_are_made_of_the_words"])
def laplace_noise_of_24_bits():
    """The tail of Laplace noise ends at 16.6 scales."""

    def coarse(self, count, offset=0):
        words = self.words(count, offset)
        lengths = -np.log(((words >> np.uint64(40)).astype(np.float64) + 1) * 2.0**-24)
        return np.where(words & np.uint64(1), lengths, -lengths)

    put(Stream, "laplaces", coarse)


# -- the private choice


@bug(
    2,
    20,
    caught_by=[
        TEST + "test_the_sensitivity_by_the_formula",
        TEST + "test_one_record_moves_the_value_by_just_the_stated_sensitivity",
        TEST + "test_the_relation_sets_the_noise",
    ],
)
def a_replaced_record_moves_the_value_once():
    """The sensitivity under replace_one is that of an added record."""
    whole = StationarityQuery.sensitivity
    put(StationarityQuery, "sensitivity", lambda self, relation, rows=1: whole(self, "add_or_remove_one", rows))


@bug(
    caught_by=[
        TEST + "test_the_sensitivity_by_the_formula",
        TEST + "test_one_record_moves_the_value_by_just_the_stated_sensitivity",
    ]
)
def curvature_left_out_of_the_sensitivity():
    """Only the gradient's sensitivity is counted."""

    def sensitivity(self, relation, rows=1):
        return moved(relation) * rows * self.max_grad_norm / (self.num_records * self.alpha)

    put(StationarityQuery, "sensitivity", sensitivity)


@bug(15, caught_by=[TEST + "test_units_of_several_rows_have_more_noise"])
def rows_of_a_unit_forgotten():
    """A person with several rows is protected as one row."""
    whole = StationarityQuery.sensitivity
    put(StationarityQuery, "sensitivity", lambda self, relation, rows=1: whole(self, relation, 1))


@bug(
    21,
    caught_by=[
        TEST + "test_the_value_is_the_definition",
        TEST + "test_a_hostile_gradient_needs_no_condition",
    ],
)
def gradients_of_the_test_not_clipped():
    """The tested gradient is that of unclipped records."""

    put(stationarity_query.FlatClipper, "weights", lambda self, norms: norms.isfinite().to(norms.dtype))


@bug(
    11,
    17,
    caught_by=[
        TEST + "test_one_session_is_charged_once_however_many_are_rejected",
        TEST + "test_every_answer_has_its_line_before_it_is_known",
    ],
)
def only_acceptance_is_recorded():
    """A rejected point leaves no line."""

    def test(self, params):
        number = self._gate.begin()
        value = torch.tensor([self._value(params, number)], dtype=torch.float64)
        answer = self._gate._mechanism({"answer": {"passes": value}}, {}, self._gate._normals(number))
        passes = bool(answer["answer"]["passes"])
        if passes:
            self.session.spend(number)
            self._accepted = number
        self._gate._position += 1
        return passes

    put(StationaryTest, "test", test)


@bug(caught_by=[TEST + "test_the_first_accepted_point_ends_the_session"])
def tests_go_on_after_acceptance():
    """The session answers more values after one passed."""
    whole = StationaryTest.test

    def test(self, params):
        self._accepted = None
        self.session.close = lambda: None
        return whole(self, params)

    put(StationaryTest, "test", test)


@bug(48, caught_by=[TEST + "test_a_test_is_not_resumed"])
def a_test_is_continued():
    """A session that rejected points is continued by the next process."""
    swap(stationary_test._check_unopened, lambda session: None)


@bug(
    caught_by=[COUPLED + "test_it_is_charged_once", TEST + "test_one_session_is_charged_once_however_many_are_rejected"]
)
def above_threshold_counts_as_queries():
    """The event says that it composes query by query: a part of the session is charged as a part."""
    put(AboveThresholdEvent, "per_query", True)
    reform(AboveThresholdEvent, pure_epsilon=lambda event, queries: queries * event.epsilon / 8)


@bug(46, caught_by=[TEST + "test_the_statement_has_the_condition_and_no_unconditional_epsilon"])
def stationary_test_without_its_condition():
    """The declared Hessian bound is not told as a condition."""
    whole = StationaryTest._event
    put(StationaryTest, "_event", lambda self: whole(self).inner)


@bug(
    25,
    caught_by=[
        TEST + "test_a_model_that_draws_is_refused_whatever_the_data",
        TEST + "test_a_model_put_back_into_training_mode_is_refused_and_spends_nothing",
    ],
)
def masks_shifted_by_rows_that_are_not_finite():
    """A model with dropout is tested, though gradient and Hessian of a record get different masks."""
    swap(randomness_check.check_draws_nothing, lambda model, loss_fn, probe: None)


@bug(caught_by=[TEST + "test_a_model_that_draws_is_refused_whatever_the_data"])
def draws_of_the_loss_not_seen():
    """Only modules are asked whether they draw, not the loss."""
    swap(randomness_check.draws_at_random, lambda model, loss_fn, probe: False)


@bug(48, caught_by=[TEST + "test_a_second_test_on_the_same_session_is_refused"])
def two_tests_on_one_session():
    """A second test on one session asks under numbers that are used."""
    put(StationaryTest, "_check_alone", lambda self, number: None)


@bug(caught_by=[TEST + "test_failures_of_the_solver_are_paid_for_in_delta"])
def solver_failures_are_free():
    """A random eigen-solver's failures are not charged to delta."""

    def event(self):
        inner = self.mechanism.event(self.ledger.neighboring_relation)
        return ConditionalEvent(relation=inner.relation, inner=inner, condition_text=self._condition)

    put(StationaryTest, "_event", event)


@bug(caught_by=[TEST + "test_the_certificate_counts_the_solver_s_error_and_failure"])
def certificate_forgets_the_solver():
    """The certificate takes the computed eigenvalue for the true one."""
    whole = StationaryTest.certificate

    def certificate(self):
        found = whole(self)
        object.__setattr__(found, "eigenvalue", found.eigenvalue + self.query.eigenvalue_error)
        return found

    put(StationaryTest, "certificate", certificate)


@bug(caught_by=[TEST + "test_the_certificate_says_what_is_bounded_and_what_was_assumed"])
def certificate_without_slack():
    """The certificate promises what was asked for, not what noise allows."""
    whole = StationaryTest.certificate

    def certificate(self):
        found = whole(self)
        object.__setattr__(found, "gradient_norm", found.alpha)
        object.__setattr__(found, "eigenvalue", -math.sqrt(found.alpha * found.hessian_lipschitz))
        return found

    put(StationaryTest, "certificate", certificate)


# -- the random iterate


@bug(
    17,
    caught_by=[
        ITERATE + "test_it_keeps_the_iterate_of_its_index",
        ITERATE + "test_the_iterates_do_not_change_the_index",
    ],
)
def iterate_chosen_by_what_it_is():
    """The iterate is the one with the largest entry."""

    def update(self, params):
        self.seen += 1
        best = max(float(p.max()) for p in params.values())
        if best > getattr(self, "best", 0.0) or math.isnan(best):
            self.best, self.index = best, self.seen
            for name, kept in self._kept.items():
                kept.copy_(params[name].detach())

    put(RandomIterate, "update", update)


@bug(17, caught_by=[ITERATE + "test_the_index_is_uniform"])
def late_iterates_preferred():
    """One of twenty runs takes the last iterate, whatever the coin says."""
    build = RandomIterate.__init__

    def built(self, params, *, num_steps, stream=None):
        build(self, params, num_steps=num_steps, stream=stream)
        if stream is not None and int(stream.integers(1, 20, offset=1)[0]) == 0:
            self.index = num_steps - 1

    put(RandomIterate, "__init__", built)


@bug(
    17,
    43,
    caught_by=[
        ITERATE + "test_a_resumed_run_keeps_the_iterate_that_was_chosen",
        ITERATE + "test_a_checkpoint_holds_what_the_method_needs",
    ],
)
def iterate_chosen_anew_after_a_resume():
    """A resumed run throws the coin again."""
    whole = RandomIterate.load_state_dict

    def load(self, state):
        index = self.index
        whole(self, state)
        self.index = index

    put(RandomIterate, "load_state_dict", load)


@bug(17, caught_by=[ITERATE + "test_an_iterate_not_reached_is_no_other_one"])
def iterate_at_hand_taken():
    """A run that stopped before the chosen iterate gives the one it has."""

    def copy_to(self, params):
        for name, kept in self._kept.items():
            params[name].data.copy_(kept)

    put(RandomIterate, "copy_to", copy_to)


@bug(caught_by=[ITERATE + "test_a_run_that_left_numbers_behind_has_its_iterate"])
def iterates_counted_without_the_numbers_left_behind():
    """A resumed run counts steps: an index among the last ones is never reached."""
    whole = RandomIterate.update
    put(RandomIterate, "update", lambda self, params, used=None: whole(self, params) if used != 12 else None)


@bug(caught_by=[ITERATE + "test_numbers_left_behind_stand_for_the_iterate_before_them"])
def iterate_behind_the_gap():
    """Numbers left behind stand for an iterate that the run came to later."""
    whole = RandomIterate.update

    def update(self, params, used=None):
        late = used is not None and self.seen < self.index <= used
        whole(self, params, used)
        if late:
            for name, kept in self._kept.items():
                kept.copy_(params[name].detach())

    put(RandomIterate, "update", update)


@bug(20, caught_by=[TEST + "test_answers_with_less_noise_than_is_paid_for_are_not_given"])
def scales_not_compared_with_the_event():
    """Answers have whatever noise the test's mechanism names, whether or not the session's event promises more."""
    put(ThresholdAnswer, "check_paid", lambda self, *_: None)


# -- the paper's noise


@bug(caught_by=[FORMULA + "test_a_claim_that_holds_is_not_called_refuted"])
def true_claims_of_formula_1_called_refuted():
    """The noise of formula (1) is said to be too little where it is more than enough."""
    put(noisy_sgd_noise, "MARGIN", 0.0)


@bug(caught_by=[FORMULA + "test_what_the_theorems_are_not_about_is_refused"])
def formula_1_for_any_sampling():
    """The claim is said to be false of batches and relations for which nobody proved or claimed it."""
    swap(noisy_sgd_noise._claim, lambda oracle, nominal_delta: ("the paper's Theorem 3.1", nominal_delta))


@bug(caught_by=[FORMULA + "test_without_clipping_no_epsilon_is_stated"])
def conditional_claim_of_formula_1_called_unconditional():
    """What is printed of an unclipped oracle does not say that its epsilon rests on the declared bound."""
    swap(noisy_sgd_noise._unclipped, lambda oracle: False)
    swap(noisy_sgd_noise._claim, lambda oracle, nominal_delta: ("the paper's Theorem 3.3", 2 * nominal_delta))
