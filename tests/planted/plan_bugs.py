"""Bugs of what plans promise, and of what a run's average is made of."""

import dataclasses

import numpy as np
import torch

import tacita
from tacita import _domains
from tacita.clipped_sgd import NonConvexProblem, plan_setting, planner
from tacita.clipping import FlatClipper
from tacita.estimators import ClippedSum
from tacita.methods import ExponentialAverage
from tacita.second_order import noisy_sgd_plan
from tacita.tables.plan import TablePlan
from tests.planted.plant import bug, put, swap

PLANNER = "tests/clipped_sgd/test_planner.py::"
PLAN = "tests/cli/test_plan.py::"
NOISY = "tests/second_order/test_noisy_sgd.py::"
VARIANTS = "tests/training/test_fit_variants.py::"
FEEDBACK = "tests/tables/test_feedback.py::"
CONTRACT = "tests/clipped_sgd/test_contract.py::"


@bug(
    caught_by=[
        PLANNER + "test_the_theorem_stands_only_where_it_is_proved",
        PLAN + "test_a_poisson_plan_prints_no_bound",
        PLAN + "test_a_poisson_plan_draws_no_bound",
    ]
)
def bound_for_poisson_batches():
    """A plan with Poisson sampling prints the bound for batches of a fixed size, with its probability."""
    proved = plan_setting.no_theorem
    swap(proved, lambda setting: "" if setting.sampling == "poisson" else proved(setting))


@bug(caught_by=[PLANNER + "test_the_theorem_stands_only_where_it_is_proved"])
def bound_for_batches_by_coin():
    """One pass by each record's coin, whose batches have random sizes, is given the bound of one pass by index."""
    proved = plan_setting.no_theorem
    swap(proved, lambda setting: "" if setting.sampling == "one_pass" else proved(setting))


@bug(caught_by=[PLANNER + "test_a_non_convex_bound_holds_with_the_probability_that_was_asked"])
def uncharged_event_of_non_convex_problems():
    """A non-convex plan hands the whole failure probability to the theorem: 0.95 is printed, 0.90 is proved."""
    put(NonConvexProblem, "union_factor", 1)


@bug(
    caught_by=[
        PLANNER + "test_an_iterate_drawn_beforehand_is_good_in_half_of_what_the_event_leaves",
        PLAN + "test_what_a_non_convex_plan_promises_and_how_surely",
    ]
)
def conditional_probability_taken_for_the_whole():
    """An iterate drawn beforehand is said to be good with probability 1/2, which holds given the event only."""
    whole = planner._theorem

    def conditional(*args):
        found = whole(*args)
        random = found is not None and found.settings.skip is None
        return dataclasses.replace(found, output_probability=0.5) if random else found

    swap(whole, conditional)


@bug(
    caught_by=[
        PLANNER + "test_no_average_is_planned_by_the_theorem_of_a_non_convex_problem",
        PLAN + "test_what_a_non_convex_plan_promises_and_how_surely",
    ]
)
def average_planned_where_none_has_a_guarantee():
    """The theorem's settings of a non-convex plan ask for the average of the iterates."""
    whole = planner._settings
    swap(whole, lambda *args, skip: whole(*args, skip=skip or 0))


@bug(
    caught_by=[
        NOISY + "test_the_real_epsilon_stands_beside_the_nominal_one",
        PLAN + "test_second_order_prints_the_real_epsilon_beside_the_nominal_one",
    ]
)
def nominal_epsilon_printed_as_the_real_one():
    """The plan of noisy SGD states the epsilon of the paper's formula as the accountant's."""
    swap(noisy_sgd_plan._real_epsilon, lambda setting, bound, noise, steps: setting.epsilon)


@bug(caught_by=[NOISY + "test_the_closed_form_is_where_the_loop_ends"])
def closed_form_without_the_dimension():
    """The noise of d coordinates is taken for that of one in the steps that it asks for."""
    whole = noisy_sgd_plan._Loop.noise_variance

    def narrow(self, steps, accuracy):
        setting, self.setting = self.setting, dataclasses.replace(self.setting, dim=1)
        try:
            return whole(self, steps, accuracy)
        finally:
            self.setting = setting

    put(noisy_sgd_plan._Loop, "noise_variance", narrow)


@bug(caught_by=[CONTRACT + "test_bad_input_is_refused_by_its_name"])
def nan_passes_for_a_number():
    """Arguments of theory are refused where they are too small or too large, and NaN is neither."""

    def lenient(name, value, domain, arrays):
        array = np.asarray(value, dtype=np.float64)
        if not np.all(domain.holds(array) | np.isnan(array)):
            raise ValueError(f"{name} must be {domain.words}, got {value!r}.")

    swap(_domains.check, lenient)


@bug(caught_by=[VARIANTS + "test_what_a_run_ends_at_is_a_function_of_its_releases"])
def average_of_values_above_the_line():
    """The fading average leans towards the batch's clipped sum without its noise."""
    private, commit, update = {}, tacita.oracles.ReleaseGate.commit, ExponentialAverage.update

    def seeing(self, query, values, seen=None):
        private.update({name: value.detach().clone() for name, value in values["gradient"].items()})
        return commit(self, query, values, seen)

    def leaning(self, params):
        update(self, {name: p.detach() - 0.01 * torch.sign(private[name]) for name, p in params.items()})

    put(tacita.oracles.ReleaseGate, "commit", seeing)
    put(ExponentialAverage, "update", leaning)


@bug(caught_by=[VARIANTS + "test_every_average_resumes_bit_for_bit"])
def average_begun_anew_on_resume():
    """A resumed run's average begins where the checkpoint stands."""
    put(ExponentialAverage, "load_state_dict", lambda self, state: None)


@bug(2, caught_by=[FEEDBACK + "test_a_run_with_feedback_spends_what_was_asked"])
def feedback_planned_as_a_plain_sum():
    """The training with released residuals is registered as one of plain clipped sums: one block is paid for."""
    put(
        TablePlan,
        "estimator",
        lambda self: ClippedSum(FlatClipper(max_grad_norm=self.training.max_grad_norm)),
    )
