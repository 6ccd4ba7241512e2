"""Bugs that every test once let through: rounding margins, boundaries, shares of delta, the last coins of a range."""

import sys
from types import SimpleNamespace

import numpy as np
import torch

from tacita.accounting import (
    CoupledEvent,
    DisjointLaw,
    RenyiFilter,
    StableCountsEvent,
    accountant,
    renyi_filter,
)
from tacita.accounting.relations import moved
from tacita.error_feedback import bounded, error
from tacita.error_feedback.hidden_errors import HiddenErrorEvent
from tacita.gradients.rules import outer
from tacita.gradients.rules import uses as ghost
from tacita.gradients.rules.linear import LinearRule
from tacita.gradients.rules.rounding import add_radius, gamma
from tacita.gradients.rules.rule import LayerRule
from tacita.hardened import integer_noise
from tacita.oracles import ReleaseGate
from tacita.tables import best_of, budget, released_counts, units
from tacita.tables.budget import PurchasePlan
from tacita.testing import bounds
from tests.planted.plant import bug, put, swap

MARGINS = "tests/gradients/rules/test_margins.py::"
SHARED = MARGINS + "test_norms_of_a_shared_parameter_are_upper_bounds_where_its_uses_cancel"
ACCOUNTANT = "tests/accounting/test_accountant.py::"
FEEDBACK = "tests/error_feedback/test_guarantees.py::"
LINE = "tests/oracles/test_gate.py::"
BUDGET = "tests/tables/test_budget.py::"


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

    def once(squares, reach, positions, dtype, *, roundings=2):
        bounds = add_radius(squares, gamma(positions + 4, dtype) * reach)
        return torch.where(reach < torch.finfo(dtype).max / 4, bounds, torch.inf)

    swap(outer.with_margin, once)


@bug(39, 47, caught_by=[MARGINS + "test_the_radius_pays_for_the_norms_sum_of_products_and_for_the_sums"])
def radius_for_the_norm_alone():
    """The same for a linear layer that is used several times."""
    whole = LinearRule.radius
    put(LinearRule, "radius", lambda self, use: {name: radius / 2 for name, radius in whole(self, use).items()})


@bug(39, caught_by=[FEEDBACK + "test_the_stated_norm_is_never_below_the_errors"])
def norm_of_the_error_rounded_to_nearest():
    """The norm that an error is scaled by may be smaller than the error is."""
    put(error, "round_up", lambda norms, terms: norms)


@bug(caught_by=["tests/error_feedback/test_feedback.py::test_bias_under_sampling_and_noise"])
def residual_without_its_threshold():
    """What a record leaves in the error is as long as its gradient."""
    swap(
        bounded.bounded_residual_weights,
        lambda weights, norms, most: error.torch.where(norms.isfinite(), 1 - weights, 0),
    )


@bug(
    caught_by=[
        ACCOUNTANT + "test_parts_share_delta",
        ACCOUNTANT + "test_each_part_is_read_at_its_share_of_delta",
    ]
)
def delta_spent_by_every_part():
    """Where epsilons are added up, each part is read at the whole delta."""
    whole, tightest = accountant._in_parts, accountant._tightest

    def undivided(spends, delta):
        put(accountant, "_tightest", lambda part, share: tightest(part, delta))
        try:
            return whole(spends, delta)
        finally:
            put(accountant, "_tightest", tightest)

    put(accountant, "_in_parts", undivided)


@bug(1, caught_by=[ACCOUNTANT + "test_one_pass_sessions_are_not_one_session"])
def equal_passes_merged():
    """Two sessions of one pass each are charged as one pass of as many queries."""
    put(DisjointLaw, "per_query", True)


@bug(38, caught_by=["tests/hardened/test_integer_noise.py::test_the_last_coins_reject_however_small_the_chance"])
def rare_rejections_left_out():
    """A discrete Gaussian of a large scale is a rounded normal: its law is off by up to one part in 2^17."""
    whole = integer_noise._may_be_rejected_early

    def never(integers, units, scale):
        return np.zeros(len(integers), bool) if scale > 500 else whole(integers, units, scale)

    swap(whole, never)


@bug(
    34,
    48,
    caught_by=[LINE + "test_a_line_without_a_tag_takes_the_next_unused_number"],
)
def empty_tags_match():
    """Where no fingerprint was kept, other values get the noise of a number that has its line."""

    def commit(self, query, values, seen=None):
        tag, line = self._fingerprint(query, values), self.session.lookup(query)
        if line is None:
            self.session.spend(query, tag)
        elif line and line != tag:
            return False
        self._position, self._unreleased = query + 1, (query, dict(values))
        return True

    put(ReleaseGate, "commit", commit)


@bug(
    18,
    caught_by=["tests/tables/test_released_counts.py::test_a_text_is_released_from_the_threshold_on_and_not_one_below"],
)
def texts_one_below_the_threshold():
    """A text whose noisy count is one below the threshold is released."""
    whole = released_counts.survey_of
    swap(whole, lambda *args, threshold, **more: whole(*args, threshold=threshold - 1, **more))


@bug(18, caught_by=[BUDGET + "test_the_threshold_counts_what_rounding_adds"])
def threshold_before_rounding():
    """The threshold on rounded counts is that for counts as they are: half a count too low."""

    def low(noise_std, failure_probability, new_texts, rows=1):
        exact = budget.stable_threshold(noise_std, failure_probability, new_bins=new_texts, rows_per_unit=rows)
        return float(np.ceil(exact))

    swap(budget.text_threshold, low)


@bug(
    34,
    caught_by=[
        "tests/tables/test_best_of.py::test_a_saved_key_draws_no_selection_again_for_an_older_copy_of_the_ledger"
    ],
)
def selections_not_remembered():
    """That a selection has drawn from a key is not kept with the key: an older copy of the ledger may draw the same."""
    whole = best_of.best_of

    def forgetful(session, sweep, randomness, attempt, place):
        found = whole(session, sweep, randomness, attempt, place)
        randomness._drawn.discard(session.id)
        return found

    swap(whole, forgetful)


@bug(15, caught_by=["tests/tables/test_units.py::test_rows_without_a_person_are_nobodys"])
def rows_without_a_person_are_one():
    """Rows whose unit is an empty cell are taken for one person, and share a cap."""
    whole = units._persons

    def one(table, unit, missing):
        codes, names = table.column(unit).texts()
        absent = np.array([name in set(missing) for name in names] or [True], dtype=bool)
        return np.where(table.valid & ~absent[codes], codes, -1), names

    swap(whole, one)


@bug(34, caught_by=[LINE + "test_what_was_committed_is_released_once"])
def committed_query_released_again():
    """What was committed once can be had as often as one likes."""
    whole = ReleaseGate.release

    def again(self, dtypes=None):
        query, values = self._unreleased
        found = whole(self, dtypes)
        self._unreleased = (query, values)
        return found

    put(ReleaseGate, "release", again)


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


@bug(12, caught_by=["tests/testing/test_bounds.py::test_both_limits_of_an_event_hold_together"])
def two_limits_for_the_error_of_one():
    """Each of two limits is taken with the whole chance of failure."""
    whole = bounds.ScoreEvent.limits
    put(bounds.ScoreEvent, "limits", lambda self, error: whole(self, min(0.999, 2 * error)))


@bug(12, 17, caught_by=["tests/testing/test_bounds.py::test_the_runs_that_choose_an_event_do_not_judge_it"])
def choosing_runs_judge():
    """The runs that an event was chosen by count for it."""
    whole, choose = bounds._counted, bounds._best_event

    def remembered(present, absent, gain, choice):
        kept = present, absent
        put(bounds, "_counted", lambda p, a, *at: whole(np.append(kept[0], p), np.append(kept[1], a), *at))
        return choose(present, absent, gain, choice)

    put(bounds, "_best_event", remembered)


@bug(15, caught_by=["tests/error_feedback/test_hidden_errors.py::test_all_rows_of_a_unit_count_beside_the_error"])
def one_row_of_a_unit_beside_the_error():
    """With a hidden error, a person of several rows is charged as one row."""
    put(
        HiddenErrorEvent,
        "sensitivity",
        property(lambda self: moved(self.relation) * self.max_contribution + self.max_error_change),
    )


@bug(18, 20, caught_by=["tests/tables/test_purchases.py::test_each_purchase_has_the_noise_that_its_event_states"])
def refinement_with_the_noise_of_one_column():
    """The noise of the refinement does not grow with the columns that the survey found to be numeric."""
    whole = PurchasePlan.refinement_noise_std
    inside = "tacita.tables.plan"

    def one(self, num_columns, of=None):
        return whole(self, 1 if sys._getframe(1).f_globals["__name__"] == inside else num_columns, of)

    put(PurchasePlan, "refinement_noise_std", one)
