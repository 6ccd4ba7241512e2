"""Bugs of error feedback: too little charged for what is remembered, and what is remembered seen from outside."""

import math
import sys
from dataclasses import replace

import torch

from tacita.accounting import RELATIONS, SampledEvent
from tacita.accounting.events import participations
from tacita.clipped_sgd import noise
from tacita.error_feedback import (
    FeedbackSum,
    HiddenErrorSum,
    ReleasedErrorSum,
    bounded_residuals,
    error,
    hidden_errors,
    interleaved,
    proved_events,
)
from tacita.ledger import Ledger
from tacita.oracles import GradientOracle
from tacita_reproductions import paper_noise
from tests.planted.plant import bug, put, swap

DICE = "tests/error_feedback/test_feedback.py::"
BOUNDS = "tests/error_feedback/test_guarantees.py::"
RESIDUALS = "tests/error_feedback/test_bounded_residuals.py::"
COMPOSED = "tests/accounting/events/test_composed.py::"
PROVED = "tests/accounting/test_proved_events.py::"
ORACLE = "tests/error_feedback/test_oracle.py::"
PAPER = "reproductions/tests/test_paper_noise.py::"


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


@bug(caught_by=[BOUNDS + "test_one_record_moves_a_hidden_sum_by_its_sensitivity_at_most"])
def error_injected_whole():
    """The error is not clipped before it is injected."""
    swap(error.share_within, lambda norm, bound, dtype: torch.ones_like(norm, dtype=dtype))


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
    put(interleaved.InterleavedEvent, "_parts", lambda self, queries: iter([(self.between, queries)]))


@bug(46, caught_by=[COMPOSED + "test_turns_say_all_that_either_kind_must_say"])
def turns_say_half():
    """Of queries that take turns only one kind's condition is told."""
    put(interleaved, "all_said", lambda words: next(filter(None, words), None))


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


@bug(caught_by=[RESIDUALS + "test_participations_end_where_they_are_unlikely"])
def participations_counted_to_the_end():
    """Numbers of participations that never happen are summed up, one by one."""
    swap(participations._likely, lambda queries, chance: queries)
