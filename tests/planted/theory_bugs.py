"""Bugs of plans: noise of the mean on the sum, a factor of the relation or of the steps forgotten."""

from tacita.clipped_sgd import noise, planner
from tacita.federated import secure_sum
from tests.planted.plant import bug, put, swap

NOISE = "tests/clipped_sgd/test_noise.py::"
PLANNER = "tests/clipped_sgd/test_planner.py::"
INTO_AN_ORACLE = PLANNER + "test_the_plan_goes_into_an_oracle"


@bug(
    2,
    caught_by=[
        NOISE + "test_mean_and_sum",
        NOISE + "test_full_participation",
        NOISE + "test_one_pass_has_no_factor_for_the_steps",
    ],
)
def plan_forgets_that_replaced_records_move_twice():
    """Noise is planned for one contribution under replace-one."""
    put(noise, "moved", lambda relation: 1)


@bug(2, caught_by=[INTO_AN_ORACLE, PLANNER + "test_noise_of_the_mean_falls_with_the_batch"])
def planner_forgets_that_replaced_records_move_twice():
    """The planner's noise of the sum is the multiplier times the threshold, whatever the relation."""
    put(planner, "moved", lambda relation: 1)


@bug(caught_by=["tests/federated/test_secure_sum.py::test_the_gap_bounds_the_ratio_of_masses"])
def sums_of_discrete_gaussians_taken_for_one():
    """A sum of discrete Gaussians is taken for a discrete Gaussian, which it is not."""
    swap(secure_sum.discrete_sum_gap, lambda noise_scale, messages: 0.0)


@bug(20, caught_by=["tests/federated/test_secure_sum.py::test_what_is_accounted_for_is_rounded_against_the_claim"])
def a_secure_sum_rounded_towards_the_claim():
    """More noise, and a shorter message, are accounted for than there are: by a billionth."""
    put(secure_sum, "ROUNDED_UP", 1 - 1e-9)
