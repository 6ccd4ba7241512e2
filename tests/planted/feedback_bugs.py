"""Bugs of error feedback: too little charged for what is remembered, and what is remembered seen from outside."""

import math

from tacita.accounting.events import participations
from tacita.error_feedback import (
    FeedbackSum,
    HiddenErrorSum,
    ReleasedErrorSum,
    bounded_residuals,
    hidden_errors,
    interleaved,
)
from tests.planted.plant import bug, put, swap

DICE = "tests/error_feedback/test_feedback.py::"
BOUNDS = "tests/error_feedback/test_guarantees.py::"
RESIDUALS = "tests/error_feedback/test_bounded_residuals.py::"
COMPOSED = "tests/accounting/events/test_composed.py::"
ORACLE = "tests/error_feedback/test_oracle.py::"


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


@bug(caught_by=[RESIDUALS + "test_participations_end_where_they_are_unlikely"])
def participations_counted_to_the_end():
    """Numbers of participations that never happen are summed up, one by one."""
    swap(participations._likely, lambda queries, chance: queries)
