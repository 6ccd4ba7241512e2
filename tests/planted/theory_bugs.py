"""Bugs of plans: a factor of the relation or of the steps forgotten."""

from tacita.clipped_sgd import planner
from tests.planted.plant import bug, put

PLANNER = "tests/clipped_sgd/test_planner.py::"
INTO_AN_ORACLE = PLANNER + "test_the_plan_goes_into_an_oracle"


@bug(2, caught_by=[INTO_AN_ORACLE, PLANNER + "test_noise_of_the_mean_falls_with_the_batch"])
def planner_forgets_that_replaced_records_move_twice():
    """The planner's noise of the sum is the multiplier times the threshold, whatever the relation."""
    put(planner, "moved", lambda relation: 1)
