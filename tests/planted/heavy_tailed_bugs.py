"""Bugs of plans for heavy-tailed problems: too little noise, records used twice."""

from dataclasses import replace

from tacita.convex import LocalizedSubgradient, heavy_tailed, one_pass_bounds
from tests.planted.plant import bug, put

VALUES = "tests/convex/test_heavy_tailed.py::"
LOCALIZED = "tests/convex/test_localized.py::"


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
