"""Bugs of error feedback: too little charged for what is remembered, and what is remembered seen from outside."""

import math
import sys
from dataclasses import replace

import numpy as np
import torch

from tacita.accounting import RELATIONS, SampledEvent
from tacita.accounting.events import composed, participations
from tacita.clipped_sgd import noise
from tacita.error_feedback import (
    BoundedErrorSum,
    FeedbackSum,
    HiddenErrorSum,
    ReleasedErrorSum,
    bounded,
    bounded_residuals,
    error,
    feedback,
    first_draw,
    hidden_errors,
    participation_sensitivity,
    proved_events,
)
from tacita.ledger import Ledger
from tacita.oracles import GradientOracle
from tacita_reproductions import paper_noise
from tests.planted.plant import bug, put, swap

DICE = "tests/error_feedback/test_feedback.py::"
BOUNDS = "tests/error_feedback/test_guarantees.py::"
HIDDEN = "tests/error_feedback/test_hidden_errors.py::"
FIRST_DRAW = "tests/error_feedback/test_first_draw.py::"
RESIDUALS = "tests/error_feedback/test_bounded_residuals.py::"
COMPOSED = "tests/accounting/events/test_composed.py::"
PROVED = "tests/accounting/test_proved_events.py::"
ORACLE = "tests/error_feedback/test_oracle.py::"
MOVED = "tests/error_feedback/test_participation_sensitivity.py::"
PAPER = "reproductions/tests/test_paper_noise.py::"

INJECTED = BOUNDS + "test_what_is_injected_is_bounded_whatever_the_error"
TRANSCRIPT = BOUNDS + "test_a_record_moves_the_transcript_by_its_participations"


@bug(
    caught_by=[BOUNDS + "test_sensitivities", BOUNDS + "test_one_record_moves_a_hidden_sum_by_its_sensitivity_at_most"]
)
def error_moves_by_its_norm():
    """A record is taken to change the injected error by its norm, not by twice that."""
    put(
        HiddenErrorSum,
        "sensitivity",
        lambda self, relation, shapes: {
            "gradient": hidden_errors.moved(relation) * self.contribution(shapes) + self.max_feedback
        },
    )


@bug(caught_by=[ORACLE + "test_numbers_of_the_event_are_at_the_level_of_the_sum"])
def error_of_the_mean_charged_to_the_sum():
    """The bound on the error of the mean stands in the event of the sum."""
    whole = proved_events.hidden_error_event

    def smaller(law, relation, *, max_error_change, **more):
        return whole(law, relation, max_error_change=max_error_change / 18, **more)

    swap(whole, smaller)


@bug(caught_by=[HIDDEN + "test_epsilon_of_a_session", HIDDEN + "test_noise_for_epsilon_2"])
def error_amplified_by_sampling():
    """The remembered error is charged only in queries that draw the record."""
    whole = hidden_errors.mixture_guarantee

    def amplified(mixture, *mu_and_queries, amplified):
        def without_the_error():
            shifts, chances = mixture()
            return (0.0, *shifts[1:]), chances

        return whole(without_the_error, *mu_and_queries, amplified=amplified)

    put(hidden_errors, "mixture_guarantee", amplified)


@bug(caught_by=[HIDDEN + "test_nothing_is_amplified_under_replace_one"])
def replace_one_amplified():
    """Poisson amplification is claimed for a hidden error under replace_one."""
    put(hidden_errors, "AMPLIFIED", ("add_or_remove_one", "zero_out_one", "replace_one"))


@bug(caught_by=[DICE + "test_the_error_never_contains_the_noise"])
def error_of_the_noisy_update():
    """The error is what the noisy sum left over, so that the noise is fed back with the opposite sign."""
    whole = HiddenErrorSum.__call__

    def call(self, engine, state):
        values, following = whole(self, engine, state)
        return values, {**following, "given": {name: x.clone() for name, x in values["gradient"].items()}}

    def after(self, state, release):
        noise = {name: release["gradient"][name] - x for name, x in state.pop("given").items()}
        return {**state, "error": {name: e - noise[name] for name, e in state["error"].items()}}

    put(HiddenErrorSum, "__call__", call)
    HiddenErrorSum.after = after


@bug(
    41,
    caught_by=[
        BOUNDS + "test_a_hidden_error_is_not_for_sharing",
        ORACLE + "test_a_hidden_error_is_never_public",
    ],
)
def hidden_error_shared():
    """The hidden error passes for public state."""
    FeedbackSum.shareable = lambda self, state: state


@bug(41, caught_by=[BOUNDS + "test_released_feedback_remembers_releases_alone"])
def public_error_of_private_residuals():
    """The error that is called public remembers the residuals themselves, not their release."""
    whole, after = ReleasedErrorSum.__call__, ReleasedErrorSum.after

    def call(self, engine, state):
        values, state = whole(self, engine, state)
        return values, {**state, "raw": {name: x.clone() for name, x in values["residual"].items()}}

    def remember(self, state, release):
        return after(self, state, {**release, "residual": state.pop("raw")})

    put(ReleasedErrorSum, "__call__", call)
    put(ReleasedErrorSum, "after", remember)


@bug(
    25,
    caught_by=[
        BOUNDS + "test_a_row_that_is_not_finite_is_absent_from_both_sums",
        ORACLE + "test_rows_of_nan_are_rows_that_are_not_there",
    ],
)
def nan_in_the_residuals():
    """A row that is not finite is absent from the clipped sum, and whole in the residuals."""
    swap(feedback.residual_weights, lambda weights, norms: 1 - weights)


@bug(25, caught_by=[INJECTED, BOUNDS + "test_a_huge_row_leaves_everything_finite"])
def error_overflows():
    """An error that passed the largest number stays infinite."""
    swap(error._saturated, lambda part: part)


@bug(caught_by=[BOUNDS + "test_one_record_moves_a_hidden_sum_by_its_sensitivity_at_most"])
def error_injected_whole():
    """The error is not clipped before it is injected."""
    swap(error.share_within, lambda norm, bound, dtype: torch.ones_like(norm, dtype=dtype))


@bug(26, caught_by=[INJECTED])
def injected_share_rounded_up():
    """The factor of what is injected leaves no room for rounding in float32."""
    swap(error.bounded_quotient, lambda most, norms, dtype: (most / norms * (1 + 1e-7)).to(dtype))


@bug(caught_by=[TRANSCRIPT, BOUNDS + "test_no_residual_passes_its_threshold"])
def residual_not_clipped():
    """What one sample adds to the error is not bounded."""
    swap(bounded.bounded_residual_weights, lambda weights, norms, most: feedback.residual_weights(weights, norms))


@bug(26, caught_by=[BOUNDS + "test_no_residual_passes_its_threshold"])
def residual_rounded_up():
    """The weight of a residual is rounded to the nearest number, not down."""

    def nearest(weights, norms, most):
        quotient = (most / norms.double()).to(norms.dtype)
        return torch.minimum(feedback.residual_weights(weights, norms), quotient)

    swap(bounded.bounded_residual_weights, nearest)


@bug(
    caught_by=[
        DICE + "test_leak_forgets_what_is_left",
        BOUNDS + "test_one_participation_reaches_its_residual_threshold",
    ]
)
def leak_before_the_clip():
    """The leak is (1 - lambda) e - clip(e), which is not non-expansive."""
    put(FeedbackSum, "kept", lambda self, share: (1 - self.feedback.leak) - share)


@bug(caught_by=[BOUNDS + "test_the_error_of_bounded_residuals_is_held_in_float64"])
def bounded_error_in_float32():
    """The error of bounded residuals is held in float32, and its rounding adds up."""
    put(BoundedErrorSum, "initial_state", FeedbackSum.initial_state)


@bug(caught_by=[BOUNDS + "test_settings_are_refused"])
def any_clipper_for_bounded_residuals():
    """Automatic clipping, which is no projection, is accepted where the proof needs one."""
    swap(feedback.check_projection, lambda clipper, feedback: None)


@bug(48, caught_by=[BOUNDS + "test_a_query_changes_no_state_that_it_was_given"])
def error_changed_in_place():
    """Calling an estimator writes into the error that it was given, so that a second call sees it twice."""
    swap(error.copied, lambda state: state)


@bug(
    caught_by=[RESIDUALS + "test_noise_of_bounded_residuals", RESIDUALS + "test_bounded_residuals_cost_once_a_session"]
)
def residuals_add_up_like_noise():
    """k residuals of one record are charged as their root, as if they were independent."""
    put(
        bounded_residuals.BoundedResidualEvent,
        "session_mu",
        lambda self, k: (
            hidden_errors.moved(self.relation)
            * math.sqrt(k)
            * (self.max_contribution + self.max_residual)
            / self.noise_std
        ),
    )


@bug(48, caught_by=[ORACLE + "test_a_session_charged_as_a_whole_cannot_be_continued_beside_itself"])
def bounded_residuals_redone():
    """A session of bounded residuals is continued from a restored error beside what it released."""
    put(bounded_residuals.BoundedResidualEvent, "per_query", property(lambda self: True))


@bug(caught_by=[FIRST_DRAW + "test_both_directions_of_the_first_draw_against_quadrature"])
def first_draw_backwards_too_small():
    """The direction without the record forgets the variance of what the record moves."""
    whole = first_draw.backward_divergences
    swap(whole, lambda *key: 0.3 * whole(*key))


@bug(
    caught_by=[
        FIRST_DRAW + "test_divergences_of_the_first_draw",
        FIRST_DRAW + "test_noise_by_the_first_draw_and_whole_orders",
    ]
)
def first_draw_forgets_draws_again():
    """Records that are drawn again are not charged with what they add to the batch."""
    whole = first_draw._transitions
    swap(whole, lambda chance, jump, step, order: whole(chance, jump, 0.0, order))


@bug(caught_by=[DICE + "test_every_third_query_injects_all_that_was_kept"])
def injected_in_every_query():
    """The error is injected in every query, and charged in every m-th."""
    whole = HiddenErrorSum._share
    put(
        HiddenErrorSum,
        "_share",
        lambda self, state, query, dtype: whole(self, state, query * self.feedback.every, dtype),
    )


@bug(caught_by=[COMPOSED + "test_turns_compose_both_events"])
def turns_charged_as_the_cheaper():
    """Of queries that take turns all are charged as the cheaper kind."""
    put(composed.InterleavedEvent, "_parts", lambda self, queries: iter([(self.between, queries)]))


@bug(46, caught_by=[COMPOSED + "test_turns_say_all_that_either_kind_must_say"])
def turns_say_half():
    """Of queries that take turns only one kind's condition is told."""
    put(composed, "all_said", lambda words: next(filter(None, words), None))


@bug(
    caught_by=[
        BOUNDS + "test_cells_without_a_proof_are_refused",
        PROVED + "test_each_cell_has_an_event_and_each_refusal_none",
    ]
)
def every_cell_served():
    """A combination of feedback, sampler and relation without a proof is not refused."""
    put(SampledEvent, "charges", classmethod(lambda cls, law: dict.fromkeys(RELATIONS, "anything")))


@bug(43, caught_by=[ORACLE + "test_killed_and_resumed_is_uninterrupted_bit_for_bit"])
def error_forgotten_on_resume():
    """A resumed run begins with no error."""
    whole = GradientOracle.load_state_dict

    def load(self, state):
        whole(self, {**state, "estimator_state": self.estimator.initial_state(self.source.shapes)})

    put(GradientOracle, "load_state_dict", load)


@bug(caught_by=[PAPER + "test_the_statement_begins_with_the_refuted_claim"])
def refuted_claim_not_mentioned():
    """The statement of a run with the paper's noise does not say that the paper's claim is false."""
    put(sys.modules["tacita.ledger.statement"], "_disclaimers", lambda ledger: [])


@bug(caught_by=[PAPER + "test_the_rigorous_epsilon_stands_beside_the_nominal_one"])
def published_noise_of_the_mean_on_the_sum():
    """The paper's noise of the mean is added to the sum, not even multiplied by the divisor."""
    swap(noise.sum_noise_std, lambda mean_noise_std, *, divisor: mean_noise_std)


@bug(caught_by=[PAPER + "test_what_the_paper_does_not_describe_is_refused"])
def other_algorithms_called_the_papers():
    """A claim of the paper is said to be false of an algorithm about which it claims nothing."""
    swap(paper_noise._check_published, lambda estimator, formula: None)


@bug(caught_by=[PAPER + "test_a_claim_that_holds_is_not_called_refuted"])
def true_claims_called_refuted():
    """A claim is said to be false because the error is charged where there is none yet."""
    swap(paper_noise._by_first_draw, lambda estimator: estimator)


@bug(
    caught_by=[
        PAPER + "test_a_refused_replacement_leaves_the_session_as_it_was",
        PAPER + "test_a_release_made_meanwhile_refuses_it",
    ]
)
def withdrawn_before_the_other_is_accepted():
    """The old session is gone when the new one is refused."""
    whole = Ledger._replace

    def hasty(self, session, event, settings):
        check = self._registry.check_in_place_of
        self._registry.check_in_place_of = lambda old, new: session.withdraw() or check(old, new)
        return whole(self, session, event, settings)

    put(Ledger, "_replace", hasty)


@bug(caught_by=[PAPER + "test_the_share_pays_for_the_new_session"])
def share_lost_with_the_old_session():
    """The session in the place of one that a share pays for is paid from outside it."""

    def replace(self, session, event, settings):
        session.withdraw()
        return self.register(
            event,
            planned_queries=session.planned_queries,
            part=session.part,
            settings=settings,
            secure_randomness=False,
        )

    put(Ledger, "_replace", replace)


@bug(caught_by=[PAPER + "test_settings_of_the_user_are_bound_to_the_new_session"])
def settings_lost_with_the_old_session():
    """The session in the place of another is not bound to the user's settings."""
    build = GradientOracle._build

    def built(self, *args, **more):
        build(self, *args, **more)
        self._payment = replace(self._payment, settings={})

    put(GradientOracle, "_build", built)


@bug(caught_by=[RESIDUALS + "test_moments_of_many_queries_are_those_of_the_full_sum"])
def rare_participations_left_out():
    """Moments of bounded residuals end where participations become unlikely."""
    whole = participations._intervals

    def cut(queries, chance):
        counts, log_chances = whole(queries, chance)
        likely = counts <= participations.EXACT
        return counts[likely], log_chances[likely]

    swap(whole, cut)


@bug(caught_by=[RESIDUALS + "test_moments_of_many_queries_are_those_of_the_full_sum"])
def intervals_at_their_lower_ends():
    """An interval of participations is charged as its smallest."""
    whole = participations._intervals

    def lower(queries, chance):
        counts, log_chances = whole(queries, chance)
        return np.concatenate([counts[:1], counts[:-1] + 1]), log_chances

    swap(whole, lower)


@bug(caught_by=[RESIDUALS + "test_participations_end_where_they_are_unlikely"])
def participations_counted_to_the_end():
    """Numbers of participations that never happen are summed up, one by one."""
    swap(participations._likely, lambda queries, chance: queries)


@bug(caught_by=[MOVED + "test_no_record_moves_more_wherever_it_is_in_its_epochs"])
def participations_that_do_not_overlap():
    """Shares of a record's residuals from several participations are charged as if no query held two of them."""
    whole = participation_sensitivity.moved_by_shares
    swap(whole, lambda k, *norms, **how: math.sqrt(k) * whole(1, *norms, **how))


@bug(caught_by=[MOVED + "test_no_record_moves_more_wherever_it_is_in_its_epochs"])
def epochs_always_far_apart():
    """Two participations are taken to be a whole epoch apart: the end of one and the beginning of the next are not."""
    whole = participation_sensitivity.moved_by_shares

    def far(k, *norms, queries_per_epoch, **how):
        return (
            math.sqrt(k) * whole(1, *norms, queries_per_epoch=1, **how)
            if queries_per_epoch > 1
            else whole(k, *norms, queries_per_epoch=1, **how)
        )

    swap(whole, far)


@bug(caught_by=[BOUNDS + "test_a_fixed_share_moves_the_transcript_by_what_is_charged"])
def smaller_share_charged():
    """The event is told a smaller share than what a query injects."""
    whole = BoundedErrorSum._fixed_share.fget
    put(BoundedErrorSum, "_fixed_share", property(lambda self: (whole(self) or 0.0) / 4 or None))


@bug(caught_by=[BOUNDS + "test_an_error_that_is_clipped_is_charged_as_such"])
def clipped_error_charged_as_linear():
    """The bound for a fixed share is claimed for an error whose length decides what is injected."""
    put(BoundedErrorSum, "_fixed_share", property(lambda self: self.feedback.injected_share))


@bug(caught_by=[BOUNDS + "test_settings_are_refused"])
def any_share_of_a_clipped_error():
    """A share below 1 is taken with an error that is clipped first."""
    put(bounded.BoundedFeedback, "__post_init__", feedback.Feedback.__post_init__)
