"""Bugs of error feedback: too little charged for what is remembered, and what is remembered seen from outside."""

import math
from dataclasses import replace

from tacita.accounting.events import participations
from tacita.error_feedback import (
    FeedbackSum,
    HiddenErrorSum,
    ReleasedErrorSum,
    bounded_residuals,
    hidden_errors,
    interleaved,
)
from tacita.ledger import Ledger
from tacita.oracles import GradientOracle
from tacita_reproductions import paper_noise
from tests.planted.plant import bug, put, swap

DICE = "tests/error_feedback/test_feedback.py::"
BOUNDS = "tests/error_feedback/test_guarantees.py::"
RESIDUALS = "tests/error_feedback/test_bounded_residuals.py::"
COMPOSED = "tests/accounting/events/test_composed.py::"
ORACLE = "tests/error_feedback/test_oracle.py::"
PAPER = "reproductions/tests/test_paper_noise.py::"


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


@bug(46, caught_by=[COMPOSED + "test_turns_say_all_that_either_kind_must_say"])
def turns_say_half():
    """Of queries that take turns only one kind's condition is told."""
    put(interleaved, "all_said", lambda words: next(filter(None, words), None))


@bug(caught_by=[PAPER + "test_what_the_paper_does_not_describe_is_refused"])
def other_algorithms_called_the_papers():
    """A claim of the paper is said to be false of an algorithm about which it claims nothing."""
    swap(paper_noise._check_published, lambda estimator, formula: None)


@bug(caught_by=[PAPER + "test_a_claim_that_holds_is_not_called_refuted"])
def true_claims_called_refuted():
    """A claim is said to be false because the error is charged where there is none yet."""
    swap(paper_noise._by_first_draw, lambda estimator: estimator)


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
