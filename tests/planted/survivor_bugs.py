"""Bugs that every test once let through: rounding margins, boundaries, shares of delta, the last coins of a range."""

import sys
from types import SimpleNamespace

import numpy as np

from tacita.accounting import (
    CoupledEvent,
    RenyiFilter,
    StableCountsEvent,
    renyi_filter,
)
from tacita.error_feedback import error
from tacita.gradients.rules import outer
from tacita.gradients.rules import uses as ghost
from tacita.gradients.rules.linear import LinearRule
from tacita.gradients.rules.rounding import gamma
from tacita.gradients.rules.rule import LayerRule
from tacita.tables.budget import PurchasePlan
from tacita.testing import bounds
from tests.planted.plant import bug, put, swap

MARGINS = "tests/gradients/rules/test_margins.py::"
SHARED = MARGINS + "test_norms_of_a_shared_parameter_are_upper_bounds_where_its_uses_cancel"
FEEDBACK = "tests/error_feedback/test_guarantees.py::"


@bug(47, 56, caught_by=[SHARED])
def shared_parameters_without_margin():
    """The norm of a parameter with several uses is what rounding left of it."""
    put(ghost, "add_radius", lambda squares, radius: squares)


@bug(47, 56, caught_by=[MARGINS + "test_the_radius_of_a_held_gradient_pays_for_weighing_and_adding_it"])
def shared_scales_without_margin():
    """A scale or shift that is used several times has the norm of its sum, and weighing the uses rounds nothing."""
    own = LayerRule.radius
    put(LayerRule, "radius", lambda self, use: {name: 0 * radius for name, radius in own(self, use).items()})


@bug(39, 47, caught_by=[MARGINS + "test_the_margin_of_a_product_is_twice_its_rounding"])
def margin_for_the_norm_alone():
    """The rounding of the sum of products is paid for once, in the norm, and not in the sum that is released."""
    swap(outer.radius, lambda positions, dtype, *, roundings=2: gamma(positions + 4, dtype))


@bug(39, 47, caught_by=[MARGINS + "test_the_radius_pays_for_the_norms_sum_of_products_and_for_the_sums"])
def radius_for_the_norm_alone():
    """The same for a linear layer that is used several times."""
    whole = LinearRule.radius
    put(LinearRule, "radius", lambda self, use: {name: radius / 2 for name, radius in whole(self, use).items()})


@bug(39, caught_by=[FEEDBACK + "test_the_stated_norm_is_never_below_the_errors"])
def norm_of_the_error_rounded_to_nearest():
    """The norm that an error is scaled by may be smaller than the error is."""
    put(error, "round_up", lambda norms, terms: norms)


@bug(12, caught_by=["tests/accounting/test_renyi_filter.py::test_what_may_fail_passes_no_filter"])
def failures_pass_a_filter():
    """A Rényi filter takes sessions whose delta it cannot see."""
    for kind in (StableCountsEvent, CoupledEvent):
        whole = RenyiFilter.divergence

        def blind(self, spends, whole=whole, kind=kind):
            return whole(self, [s for s in spends if not isinstance(s.event, kind)])

        put(RenyiFilter, "divergence", blind)


@bug(13, caught_by=["tests/accounting/test_renyi_filter.py::test_a_divergence_that_is_no_number_is_never_free"])
def undefined_divergences_are_free():
    """A curve that came out as NaN costs a filter nothing."""
    put(renyi_filter, "np", SimpleNamespace(array=np.array, isnan=lambda value: False))
    whole = RenyiFilter.divergence
    put(RenyiFilter, "divergence", lambda self, spends: float(np.nan_to_num(whole(self, spends))))


@bug(12, 17, caught_by=["tests/testing/test_bounds.py::test_the_runs_that_choose_an_event_do_not_judge_it"])
def choosing_runs_judge():
    """The runs that an event was chosen by count for it."""
    whole, choose = bounds._counted, bounds._best_event

    def remembered(present, absent, gain, choice):
        kept = present, absent
        put(bounds, "_counted", lambda p, a, *at: whole(np.append(kept[0], p), np.append(kept[1], a), *at))
        return choose(present, absent, gain, choice)

    put(bounds, "_best_event", remembered)


@bug(18, 20, caught_by=["tests/tables/test_purchases.py::test_each_purchase_has_the_noise_that_its_event_states"])
def refinement_with_the_noise_of_one_column():
    """The noise of the refinement does not grow with the columns that the survey found to be numeric."""
    whole = PurchasePlan.refinement_noise_std
    inside = "tacita.tables.plan"

    def one(self, num_columns, of=None):
        return whole(self, 1 if sys._getframe(1).f_globals["__name__"] == inside else num_columns, of)

    put(PurchasePlan, "refinement_noise_std", one)
