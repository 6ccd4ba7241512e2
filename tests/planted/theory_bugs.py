"""Bugs of plans: noise of the mean on the sum, a factor of the relation or of the steps forgotten."""

import math

from tacita.clipped_sgd import noise, planner
from tacita.clipped_sgd.plan_setting import PlanSetting
from tacita.error_feedback import published_noise as dicesgd
from tacita.federated import clip21_noise, secure_sum
from tacita.second_order import noisy_sgd, saddle
from tests.planted.plant import bug, put, swap

NOISE = "tests/clipped_sgd/test_noise.py::"
PLANNER = "tests/clipped_sgd/test_planner.py::"
INTO_AN_ORACLE = PLANNER + "test_the_plan_goes_into_an_oracle"


@bug(20, caught_by=[NOISE + "test_mean_and_sum", NOISE + "test_what_is_planned_is_what_the_ledger_charges"])
def noise_of_the_mean_taken_for_the_sum():
    """A plan's noise on the mean goes to the oracle as it is, without the divisor."""
    swap(noise.sum_noise_std, lambda mean_noise_std, *, divisor: mean_noise_std)


@bug(
    20, caught_by=[NOISE + "test_mean_and_sum", INTO_AN_ORACLE, PLANNER + "test_noise_of_the_mean_falls_with_the_batch"]
)
def mean_divided_twice():
    """The noise of the mean is that of the sum over the divisor squared."""
    swap(noise.mean_noise_std, lambda noise_std, *, divisor: noise_std / divisor**2)


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


@bug(11, caught_by=[INTO_AN_ORACLE])
def plan_charges_one_step():
    """A plan with every record in every step has the noise of a single step."""
    exact = planner.exact_noise_multiplier

    def of_one(setting):
        return exact(setting) / (math.sqrt(setting.steps) if setting.sampling == "full_batch" else 1)

    swap(exact, of_one)


@bug(12, caught_by=[INTO_AN_ORACLE])
def rough_noise_taken_for_exact():
    """The planned multiplier is that of the central limit theorem."""
    swap(planner.exact_noise_multiplier, planner.rough_noise_multiplier)


@bug(1, caught_by=[PLANNER + "test_settings_are_refused"])
def one_pass_planned_for_several():
    """A plan for one pass is made for more steps than the records fill."""
    whole = PlanSetting.__post_init__

    def lenient(self):
        sampling = self.sampling
        object.__setattr__(self, "sampling", "poisson" if sampling == "one_pass" else sampling)
        whole(self)
        object.__setattr__(self, "sampling", sampling)

    put(PlanSetting, "__post_init__", lenient)


@bug(2, caught_by=["tests/error_feedback/test_published_noise.py::test_rigorous_noise"])
def feedback_noise_forgets_the_relation():
    """DiceSGD's noise is that of one contribution under replace-one."""
    put(dicesgd, "moved", lambda relation: 1)


@bug(caught_by=["tests/federated/test_clip21.py::test_noise_of_a_message"])
def message_moves_by_its_norm():
    """A client's clipped message is given the sensitivity C, where it is 2 C."""
    whole = clip21_noise.message_noise_std
    swap(whole, lambda **settings: whole(**settings) / 2)


@bug(caught_by=["tests/second_order/test_noisy_sgd.py::test_the_honest_delta_is_two_plus_e_to_the_epsilon_times_delta"])
def conditional_delta_as_printed():
    """A guarantee on an event costs twice delta, as the paper prints."""
    swap(noisy_sgd.honest_delta, lambda epsilon, delta, event_delta=None, *, capped=True: 2 * delta)


@bug(
    17,
    caught_by=["tests/second_order/test_noisy_sgd.py::test_the_scales_of_above_threshold_follow_from_the_sensitivity"],
)
def selection_forgets_the_relation():
    """The query that chooses a point is given the sensitivity of one absent record under replace-one."""
    put(saddle, "moved", lambda relation: 1)


@bug(caught_by=["tests/federated/test_secure_sum.py::test_the_gap_bounds_the_ratio_of_masses"])
def sums_of_discrete_gaussians_taken_for_one():
    """A sum of discrete Gaussians is taken for a discrete Gaussian, which it is not."""
    swap(secure_sum.discrete_sum_gap, lambda noise_scale, messages: 0.0)


@bug(20, caught_by=["tests/federated/test_secure_sum.py::test_the_epsilon_of_one_sum_is_an_upper_bound"])
def rounding_to_the_grid_forgotten():
    """A message that is rounded to the grid is taken to be no longer than the threshold."""
    swap(secure_sum.secure_sum_contribution, lambda max_grad_norm, step, size: max_grad_norm)


@bug(20, caught_by=["tests/federated/test_secure_sum.py::test_what_is_accounted_for_is_rounded_against_the_claim"])
def a_secure_sum_rounded_towards_the_claim():
    """More noise, and a shorter message, are accounted for than there are: by a billionth."""
    put(secure_sum, "ROUNDED_UP", 1 - 1e-9)
