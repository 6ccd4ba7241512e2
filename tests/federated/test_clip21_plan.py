"""The numbers of a federated plan follow from its noise, and its bounds are called vacuous where they are."""

import math
from dataclasses import replace

import pytest

from tacita.federated.clip21_plan import EXACT, PRIVATE, STOCHASTIC, FederatedSetting, plan_clip21, theorem_rules

SETTING = FederatedSetting(num_clients=9, rounds=100, dim=5, epsilon=2.0, delta=1e-5, smoothness=1.0,
                           initial_gap=1.0, largest_grad=1.0, gradient_noise=0.1, max_grad_norm=0.5)  # fmt: skip


def test_the_numbers_follow_from_the_noise():
    plan = plan_clip21(SETTING)
    assert plan.mean_noise == pytest.approx(plan.noise_std * math.sqrt(100 * 5 / 9))
    assert plan.sum_mu == pytest.approx(2 * 0.5 * math.sqrt(100) / (plan.noise_std * 3))


def test_a_start_cannot_pass_either_of_two_squares():
    assert replace(SETTING, largest_grad=0.5).trivial == 0.25
    assert replace(SETTING, largest_grad=5.0).trivial == 2.0


def test_the_theorems_ask_for_gradients_beyond_the_threshold():
    for largest, served in ((0.5, set()), (1.5, {PRIVATE}), (1.6, {EXACT, STOCHASTIC, PRIVATE})):
        rules = theorem_rules(replace(SETTING, largest_grad=largest))
        assert {name for name, rule in rules.items() if rule is not None} == served


@pytest.mark.parametrize("change", [{"max_grad_norm": 1e-200}, {"max_grad_norm": None, "largest_grad": 1e-200}])
def test_a_threshold_that_no_clipper_takes_is_refused(change):
    with pytest.raises(ValueError, match=r"must be >= 2\^-40"):
        replace(SETTING, **change)
