"""Bugs of couplings, and of the private choice of a stationary point."""

from tacita.accounting import ConditionalEvent
from tacita.second_order import AboveThresholdEvent
from tacita.second_order.above_threshold import AboveThreshold
from tests.planted.plant import bug, put, reform

COUPLED = "tests/accounting/events/test_coupled.py::"
THRESHOLD = "tests/second_order/test_above_threshold.py::"
TEST = "tests/second_order/test_stationary_test.py::"


# -- couplings


@bug(caught_by=[COUPLED + "test_the_failure_is_of_the_session_not_of_a_query"])
def condition_hides_the_failure():
    """A condition around an event forgets the failure inside it."""
    reform(ConditionalEvent, coupling_gap=lambda event, queries: 0.0)


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


# -- the private choice


@bug(
    caught_by=[COUPLED + "test_it_is_charged_once", TEST + "test_one_session_is_charged_once_however_many_are_rejected"]
)
def above_threshold_counts_as_queries():
    """The event says that it composes query by query: a part of the session is charged as a part."""
    put(AboveThresholdEvent, "per_query", True)
    reform(AboveThresholdEvent, pure_epsilon=lambda event, queries: queries * event.epsilon / 8)
