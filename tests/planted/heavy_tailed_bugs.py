"""Bugs of plans for heavy-tailed problems: too little noise, records used twice."""

import math
import sys
from dataclasses import replace

from tacita.convex import LocalizedSubgradient, heavy_tailed, localized_phases, one_pass_bounds
from tacita.convex.heavy_tailed_setting import HeavyTailedSetting
from tests.planted.plant import bug, put

VALUES = "tests/convex/test_heavy_tailed.py::"
BOUNDS = "tests/convex/test_heavy_tailed_bounds.py::"
LOCALIZED = "tests/convex/test_localized.py::"


@bug(3, caught_by=[VALUES + "test_v1_the_noise_of_the_mean", BOUNDS + "test_the_planned_run_keeps_its_bound"])
def rho_taken_for_epsilon():
    """The ratio of a run is rho itself, not the square root of twice it."""
    put(HeavyTailedSetting, "mu", property(lambda self: self.rho))


@bug(
    20,
    caught_by=[
        VALUES + "test_v12_economy",
        LOCALIZED + "test_the_economy_schedule_finds_the_minimum",
    ],
)
def every_query_of_a_phase_has_the_whole_budget():
    """The noise of a phase does not grow with its number of queries."""
    phase = localized_phases._phase

    def cheap(*args, **settings):
        made = phase(*args, **settings)
        return replace(made, noise_multiplier=made.noise_multiplier / math.sqrt(made.steps))

    put(localized_phases, "_phase", cheap)


@bug(5, caught_by=[VALUES + "test_v10_theorem_34", VALUES + "test_v11_the_batch_rule_of_algorithm_6"])
def as_many_batches_as_the_paper_says():
    """Algorithm 6 makes T + 1 queries on batches of n / T records, which do not exist."""
    batch = one_pass_bounds._batch

    def larger(setting, batches, *rest):
        one_more = sys._getframe(1).f_code.co_name == "strongly_convex_bound"
        return batch(setting, batches - one_more, *rest)

    put(one_pass_bounds, "_batch", larger)


@bug(17, caught_by=[LOCALIZED + "test_all_oracles_are_built_before_the_first_query"])
def a_phase_registers_when_it_begins():
    """Sessions of later phases are registered after releases of earlier ones."""
    build = LocalizedSubgradient.__init__

    def late(self, make_oracle, parts, phases, params, *, domain):
        class Late:
            def __init__(self, part, phase):
                self._of, self._made = (part, phase), None

            def query(self, params, /):
                self._made = self._made or make_oracle(*self._of)
                return self._made.query(params)

        build(self, Late, parts, phases, params, domain=domain)

    put(LocalizedSubgradient, "__init__", late)


@bug(20, caught_by=[VALUES + "test_v7_theorem_31_and_its_bounds", VALUES + "test_v8_the_planner_finds_the_least_bound"])
def a_replaced_record_moves_the_mean_once():
    """The planned noise of the mean is C / (s mu), not 2C / (s mu)."""
    clipped = heavy_tailed.clipped_mean_error

    def halved(setting, **settings):
        error = clipped(setting, **settings)
        spread = setting.dim * error.mean_noise_std**2
        return replace(error, mean_noise_std=error.mean_noise_std / 2, variance=error.variance - 3 / 4 * spread)

    put(one_pass_bounds, "clipped_mean_error", halved)
