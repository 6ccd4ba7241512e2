"""Bugs of accounting: an epsilon that is too small, or that nothing stands behind."""

import dataclasses
import math

import numpy as np

from tacita.accounting import (
    _fixed_size_renyi,
    _gaussian_mixture,
    _line_pairs,
    _loss_law,
    _pld_accountant,
    _renyi,
    _renyi_grid,
    _tilted,
    _window,
    accountant,
    calibration,
    gaussian,
    relations,
    renyi_curve,
)
from tacita.accounting._line_pairs import MixturePair, ReplacedPair
from tacita.accounting.events import event, gaussian_sums, guarantee, laplace
from tacita.accounting.events.counts import StableCountsEvent
from tacita.accounting.plain_data import PlainData
from tacita.accounting.renyi_curve import RenyiCurve
from tacita.ledger import sections, text_lines
from tacita.ledger.ledger import Ledger
from tacita.ledger.registry import SessionRegistry
from tacita.ledger.statement import Statement
from tacita.ledger.statement import statement as make_statement
from tacita.tables.selection_events import RepeatAndSelectEvent
from tests.planted.plant import bug, put, reform, swap

GAUSSIAN = "tests/accounting/events/test_gaussian_sums.py::"
ACCOUNTANT = "tests/accounting/test_accountant.py::"
READING = "tests/accounting/test_pld_accountant.py::"
LAWS = "tests/accounting/test_loss_laws.py::"
TILTED = "tests/accounting/test_tilted.py::"
WINDOW = "tests/accounting/test_window.py::"
DOMINATION = "tests/accounting/test_domination.py::"
STATEMENT = "tests/ledger/test_statement.py::"
LEDGER = "tests/ledger/test_ledger.py::"
EVENTS = "tests/accounting/events/test_event.py::"
RENYI = "tests/accounting/test_renyi.py::"
FIXED_RENYI = "tests/accounting/test_fixed_size_renyi.py::"
ORACLE = "tests/oracles/test_gradient_oracle.py::"


@bug(
    2,
    3,
    20,
    caught_by=[
        GAUSSIAN + "test_full_batch",
        GAUSSIAN + "test_fixed_size",
        ORACLE + "test_replace_one_has_twice_the_noise_at_the_same_multiplier",
    ],
)
def replace_one_at_the_price_of_add_or_remove():
    """Replacing a record moves a sum by C, not 2C."""
    swap(relations.moved, lambda relation: 1)


@bug(
    2,
    caught_by=[
        GAUSSIAN + "test_fixed_size",
        DOMINATION + "test_the_fixed_size_bound_is_above_the_envelope_where_the_factor_is_not_forgotten",
    ],
)
def fixed_size_without_the_factor_two():
    """Fixed-size sampling gets noise over C where its bound wants noise over 2C."""
    pair = gaussian_sums.EnvelopePair
    put(gaussian_sums, "EnvelopePair", lambda moved, rate: pair(moved / 2, rate))


@bug(3, caught_by=[GAUSSIAN + "test_full_batch", GAUSSIAN + "test_rdp_is_above_pld"])
def renyi_curve_of_another_convention():
    """The Rényi curve of a Gaussian takes C for the sensitivity where the other accountant takes 2C."""

    whole = gaussian_sums.moved_in_some_queries

    def other(event, queries):
        mu = event.ratio * math.sqrt(event.sampling.most_draws(queries))
        return dataclasses.replace(whole(event, queries), rdp=lambda orders: np.asarray(orders) * mu**2 / 2)

    proofs = gaussian_sums.GaussianSumEvent.proofs
    plain = [law for law, proof in proofs.items() if proof.guarantee is whole]
    wrong = {law: dataclasses.replace(proofs[law], guarantee=other) for law in plain}
    put(gaussian_sums.GaussianSumEvent, "proofs", {**proofs, **wrong})


@bug(
    caught_by=[
        GAUSSIAN + "test_poisson_at_rate_one_is_the_full_batch",
        GAUSSIAN + "test_sampling_all_records_is_the_full_batch",
    ]
)
def one_query_for_all_that_are_not_amplified():
    """Where sampling amplifies nothing, many queries are charged as one."""
    swap(gaussian_sums.known_mu, lambda query_mu, queries, *, amplified: None if amplified else query_mu)


@bug(
    caught_by=[
        GAUSSIAN + "test_no_noise_is_not_private_and_not_an_error",
        "tests/accounting/events/test_composed.py::test_what_it_says",
    ]
)
def no_noise_taken_for_no_contribution():
    """Without noise a session costs nothing."""
    swap(event.over_noise, lambda moved, noise: moved / noise if noise > 0 else 0.0)


@bug(caught_by=[GAUSSIAN + "test_full_batch", GAUSSIAN + "test_rdp_is_above_pld"])
def curve_of_a_known_mu_halved():
    """The Rényi curve of a session that is a Gaussian query is half of what it is."""
    whole = guarantee.gaussian

    def halved(mu, **forms):
        found = whole(mu, **forms)
        return dataclasses.replace(found, rdp=lambda orders: found.rdp(orders) / 2)

    swap(whole, halved)


@bug(
    3, caught_by=[GAUSSIAN + "test_rdp_of_the_replace_one_pair_against_a_plain_sum", GAUSSIAN + "test_rdp_is_above_pld"]
)
def replace_one_by_the_other_curve():
    """Poisson sampling under replace_one gets the Rényi curve of add_or_remove_one."""

    def added(pair, orders):
        return renyi_curve.divergences(MixturePair((0.0, pair.shift), (1 - pair.chance, pair.chance)), orders)

    renyi_curve.divergences.register(ReplacedPair, added)


@bug(3, caught_by=[GAUSSIAN + "test_poisson"])
def replace_one_by_the_other_pair():
    """Poisson sampling under replace_one gets the pair of add_or_remove_one."""
    put(gaussian_sums, "ReplacedPair", lambda ratio, chance: MixturePair((0.0, ratio), (1 - chance, chance)))


@bug(12, caught_by=[STATEMENT + "test_what_is_printed_is_still_a_bound"])
def epsilon_printed_to_the_nearest():
    """The epsilon of a statement is rounded to the nearest number of four digits."""
    swap(text_lines.rounded_up, lambda value, digits=4: f"{value:.{digits}g}")


@bug(12, caught_by=["tests/mechanisms/test_gaussian.py::test_calibrated_never_overshoots_beside_other_sessions"])
def calibration_overshoots():
    """Calibration returns the noise on the wrong side of the target."""
    put(calibration, "_by_estimates", lambda *given: None)
    swap(calibration._narrowed, lambda reached, target, low, high: low[0] * 0.999 + high[0] * 0.001)


@bug(12, caught_by=["tests/accounting/test_profiles.py::test_calibration_reads_few_times_where_an_estimate_serves"])
def calibration_trusts_the_estimate():
    """Calibration returns the noise at which an estimate, not a bound, is the target."""

    def guessed(reached, expected, near, target):
        found = calibration._estimated(expected, target, 1.0)
        return None if found is None else found[0]

    put(calibration, "_by_estimates", guessed)


@bug(12, caught_by=[LAWS + "test_a_law_on_a_grid_is_never_below_the_exact_one", GAUSSIAN + "test_poisson"])
def estimate_reported_as_a_bound():
    """Privacy losses are rounded down: an optimistic estimate is reported as the bound."""
    swap(_loss_law.connected, lambda points, between, below: (between.upper, 0.0))


@bug(
    12,
    49,
    caught_by=[GAUSSIAN + "test_poisson", READING + "test_what_is_read_is_the_larger_of_both_directions"],
)
def one_direction_of_a_pair():
    """Only adding a record is accounted for; removing one costs more."""
    swap(_pld_accountant.directions, lambda parts: (not parts[0][0].symmetric,))


@bug(
    12,
    caught_by=[
        LEDGER + "test_a_condition_takes_the_unconditional_epsilon_away",
        STATEMENT + "test_a_conditional_guarantee_has_no_unconditional_epsilon",
    ],
)
def condition_left_out():
    """An epsilon that rests on something nobody enforces is printed as if it did not."""
    put(Ledger, "conditions", property(lambda self: ()))


@bug(13, caught_by=[ACCOUNTANT + "test_a_nan_is_raised_and_never_reported"])
def not_a_number_reported():
    """Where no accountant works, what it gave is reported all the same."""

    def reported(spends, delta):
        return accountant.Bound(accountant._tightest(tuple(spends), delta)[0], delta, "any")

    swap(accountant.epsilon, reported)
    put(RenyiCurve, "epsilon", lambda self, delta: float(self.values[0]))
    put(accountant, "_closed_delta", lambda spend, epsilon: spend.guarantee.delta(epsilon))


@bug(13, caught_by=[TILTED + "test_a_composition_is_an_upper_bound_with_relative_accuracy"])
def transforms_taken_for_exact():
    """The rounding of Fourier transforms is not added to what they give."""
    swap(_tilted._rounding, lambda logs, error, rounding, size: 0.0)


@bug(13, caught_by=[TILTED + "test_a_window_that_is_too_small_is_still_an_upper_bound"])
def nothing_above_the_window():
    """What lies above the window of a transform is taken to be nothing."""
    swap(_tilted._above, lambda laws, theta, highest: 0.0)


@bug(13, caught_by=[TILTED + "test_below_a_window_nothing_is_known"])
def all_is_above_the_window():
    """Below a window delta is read as if nothing lay there."""
    whole = _tilted.TiltedTotal.deltas
    put(_tilted.TiltedTotal, "deltas", lambda self, epsilons: whole(self, np.maximum(epsilons, self.least)))


@bug(13, caught_by=[TILTED + "test_moments_of_a_great_many_queries_are_not_rounded_down"])
def moments_taken_for_exact():
    """What one query's moment is rounded by is forgotten, however many queries there are."""
    swap(_tilted.moments, lambda laws, theta: (sum(n * law.log_moment(theta)[0] for law, n in laws), 0.0))


@bug(13, caught_by=[LAWS + "test_losses_above_a_cap_keep_the_masses_of_both_worlds"])
def large_losses_cut_off():
    """Losses above the cap of a law are forgotten; a share of them counts as infinite."""
    whole = _loss_law.connected
    swap(whole, lambda points, between, below: (whole(points, between, below)[0], 0.0))


@bug(
    13,
    caught_by=[
        TILTED + "test_a_composition_is_an_upper_bound_with_relative_accuracy",
        READING + "test_gaussian_queries_within_a_tenth_of_a_percent_down_to_1e_15",
    ],
)
def the_tilt_is_forgotten():
    """Delta is read off the tilted law as if it had not been tilted."""
    whole = _tilted.TiltedTotal._at_points.func
    untilted = property(lambda self: whole(dataclasses.replace(self, theta=0.0, log_scale=0.0)))
    put(_tilted.TiltedTotal, "_at_points", untilted)


@bug(13, caught_by=[TILTED + "test_infinite_losses_count_whatever_the_tilt"])
def infinite_losses_dropped():
    """The chance of an infinite loss is left out of delta."""
    whole = _tilted.TiltedTotal._at_points.func
    finite = property(lambda self: whole(dataclasses.replace(self, infinity=0.0)))
    put(_tilted.TiltedTotal, "_at_points", finite)


@bug(13, caught_by=[WINDOW + "test_small_and_large_losses_apart_are_the_whole"])
def rare_losses_left_out():
    """Of a law whose rare large losses are set apart, the large ones are forgotten."""
    whole = _loss_law.set_apart
    swap(whole, lambda small, large: whole(small, dataclasses.replace(large, masses=0 * large.masses)))


@bug(13, caught_by=[WINDOW + "test_a_large_loss_is_raised_by_what_small_ones_may_take_away"])
def rare_losses_not_raised():
    """A query that has a large loss is charged a small one as well, which may be below 0, and is not raised by that."""
    whole = _loss_law.set_apart

    def as_they_are(small, large):
        one, other = whole(small, large)
        masses = np.append(large.masses, np.zeros(len(other.masses) - len(large.masses)))
        masses[-large.first] += small.masses.sum()
        return one, dataclasses.replace(other, masses=masses)

    swap(whole, as_they_are)


@bug(13, caught_by=[WINDOW + "test_all_queries_of_a_part_are_composed"])
def queries_beside_groups_left_out():
    """Where queries are composed in groups, those that do not fill one are forgotten."""
    whole = _window.Apart.laws

    def groups_alone(self, *given):
        laws, fine = whole(self, *given)
        return [laws[0], laws[2]], fine

    put(_window.Apart, "laws", groups_alone)


@bug(13, caught_by=[WINDOW + "test_a_coarser_grid_only_adds"])
def coarser_grid_rounds_down():
    """A law is put on a coarser grid by moving every loss down."""

    def down(law, stride):
        at = np.arange(law.first, law.first + len(law.masses)) // stride
        masses = np.bincount(at - at[0], weights=law.masses)
        return dataclasses.replace(law, interval=law.interval * stride, first=int(at[0]), masses=masses)

    put(_loss_law.LossLaw, "coarsened", down)


@bug(49, caught_by=[LAWS + "test_a_law_on_a_grid_is_never_below_the_exact_one"])
def one_branch_of_the_envelope():
    """Fixed-size sampling gets the pair of (mixture, Gaussian), below the envelope where losses are negative."""
    put(_line_pairs.EnvelopePair, "at", lambda self, points, *, swapped: self._branch.at(points, swapped=False))


@bug(2, caught_by=[GAUSSIAN + "test_fixed_size"])
def fixed_size_pair_moved_by_c():
    """Fixed-size sampling gets an envelope for moves by C; exchanging two records moves a sum by 2C."""
    whole = gaussian_sums.EnvelopePair
    put(gaussian_sums, "EnvelopePair", lambda moved, chance: whole(moved / 2, chance))


@bug(
    13,
    caught_by=[
        ACCOUNTANT + "test_what_is_lost_in_one_query_is_not_lost_in_many",
        "tests/accounting/test_renyi.py::test_no_curve_with_a_cost_is_free",
        "tests/accounting/test_renyi.py::test_small_divergences_are_half_the_order_times_chi_squared",
        "tests/accounting/test_renyi_filter.py::test_a_session_of_tiny_queries_is_charged",
    ],
)
def small_moments_lost_to_rounding():
    """A moment so near 1 that its logarithm drowns in rounding counts as 1: tiny queries are free, however many."""
    whole = _renyi.log_moments
    swap(whole, lambda *pair: np.where((found := whole(*pair)) > 1e-14, found, 0.0))


@bug(13, caught_by=[ACCOUNTANT + "test_a_curve_that_rounding_took_to_nothing_is_not_free"])
def delta_vanishes_with_the_divergence():
    """The delta of a divergence below the rounding of 1 is taken for 0."""

    def vanishing(self, epsilon):
        return math.sqrt(max(0.0, 1 - math.exp(-float(np.nanmin(self.values)))))

    put(RenyiCurve, "delta", vanishing)


@bug(14, caught_by=["tests/accounting/events/test_pure.py::test_laplace_delta_in_closed_form"])
def laplace_scale_inverted():
    """The scale of Laplace noise is handed on as its inverse."""
    whole = laplace.LaplacePair
    put(laplace, "LaplacePair", lambda epsilon: whole(1 / epsilon))


@bug(
    16,
    17,
    caught_by=["tests/accounting/events/test_wrapped.py::test_the_best_of_many_costs_more_than_one_and_less_than_all"],
)
def best_run_charged_as_one():
    """The best of several runs is charged as a single run."""
    reform(RepeatAndSelectEvent, rdp=lambda event, queries: event.inner.guarantee(event.inner_queries).rdp)


@bug(16, caught_by=[LEDGER + "test_a_session_after_a_release_is_refused_and_both_ways_out_are_named"])
def settings_chosen_after_a_release():
    """A session whose settings may depend on releases composes as if they had been fixed before."""
    put(SessionRegistry, "released", lambda self, part: False)


@bug(18, caught_by=[STATEMENT + "test_delta_is_never_chosen"])
def delta_by_default():
    """A statement chooses its own delta."""
    whole = make_statement
    swap(whole, lambda ledger, delta=1e-5, **more: whole(ledger, delta, **more))


@bug(18, caught_by=["tests/accounting/events/test_counts.py::test_failure_is_added_to_delta_twice_under_replace_one"])
def texts_of_one_record_are_free():
    """The chance that a text of one record alone is released costs no delta."""
    reform(StableCountsEvent, additive_delta=lambda event, queries: 0.0)


@bug(
    19,
    caught_by=[GAUSSIAN + "test_full_batch", "tests/accounting/test_gaussian.py::test_ten_queries_of_the_full_batch"],
)
def classical_gaussian_at_any_epsilon():
    """The classical formula of the Gaussian mechanism is used where it does not hold."""
    swap(gaussian.gaussian_epsilon, lambda mu, delta: mu * math.sqrt(2 * math.log(1.25 / delta)))


@bug(20, caught_by=[GAUSSIAN + "test_blocks_are_one_query_of_the_joint_sensitivity"])
def blocks_charged_as_the_largest():
    """Several blocks released together are charged as the largest of them."""

    def ratio(self):
        return max(map(gaussian_sums.over_noise, self.max_contribution, self.noise_std))

    put(gaussian_sums.NoisySumEvent, "ratio", property(ratio))


@bug(
    42,
    caught_by=[
        LEDGER + "test_the_plan_counts_from_registration_and_spending_from_the_first_query",
        STATEMENT + "test_the_numbers_are_the_ledgers",
    ],
)
def early_stop_reported_as_the_epsilon():
    """A run that stopped early states what it spent as its guarantee."""
    put(Ledger, "conditional_bound", Ledger.spent_bound)


@bug(46, caught_by=[STATEMENT + "test_there_is_no_statement_without_a_ledger"])
def statement_without_a_ledger():
    """A statement prints whatever epsilon it is handed."""
    build = Statement.__init__

    def careless(self, ledger, delta, **more):
        if isinstance(ledger, Ledger):
            build(self, ledger, delta, **more)

    put(Statement, "__init__", careless)


@bug(46, caught_by=[STATEMENT + "test_an_empty_ledger_says_nothing_of_any_model"])
def statement_of_an_empty_ledger():
    """Where nothing was registered, the statement says epsilon 0 of any model."""
    titles = dict(sections.SECTIONS)
    whole = titles["What is guaranteed"]
    titles["What is guaranteed"] = lambda fields: whole({**fields, "sessions": [{"state": "closed"}]})
    put(sections, "SECTIONS", tuple(titles.items()))


@bug(49, caught_by=[DOMINATION + "test_one_direction_composed_with_itself_is_caught"])
def fixed_size_one_direction_at_a_time():
    """Fixed-size sampling gets a pair whose directions are composed each with itself."""
    put(gaussian_sums, "EnvelopePair", lambda moved, q: MixturePair((0.0, moved), (1 - q, q)))


@bug(76, caught_by=[RENYI + "test_a_curve_is_that_of_mpmath", RENYI + "test_whole_orders_are_the_binomial_sum"])
def curve_rounded_down():
    """A Rényi curve is rounded to the nearest, or a little below."""
    put(_renyi, "ROUNDED_UP", -1e-9)


@bug(76, caught_by=[RENYI + "test_whole_orders_are_the_binomial_sum"])
def curve_of_the_other_direction_alone():
    """Poisson sampling gets the divergences of the Gaussian from the mixture, the smaller ones."""
    whole = _renyi.renyi_divergences
    swap(whole, lambda upper, lower, orders: whole(lower, upper, orders))


@bug(76, caught_by=[RENYI + "test_what_is_left_out_is_added"])
def truncated_tail_dropped():
    """What lies outside the windows of a moment's integrand is not added."""
    put(_renyi_grid, "LEFT_OUT", 0.0)


@bug(76, caught_by=[RENYI + "test_orders_between_whole_ones_have_a_bound"])
def fractional_orders_without_a_bound():
    """At orders that are no whole numbers there is no bound, and a filter of such an order refuses everything."""
    whole = _renyi.log_moments

    def at_whole_ones(upper, lower, orders):
        return np.where(orders == np.round(orders), whole(upper, lower, orders), np.inf)

    swap(whole, at_whole_ones)


@bug(76, caught_by=[FIXED_RENYI + "test_it_is_the_integral_of_the_envelope"])
def left_half_taken_off_twice():
    """The left half of the integral, which the moments of both directions count in excess, is taken off twice."""
    whole = _fixed_size_renyi._left_half
    swap(whole, lambda *law: whole(*law) + math.log(2))


@bug(
    49, caught_by=[FIXED_RENYI + "test_it_is_the_integral_of_the_envelope", FIXED_RENYI + "test_one_direction_is_less"]
)
def fixed_size_curve_of_one_direction():
    """Fixed-size sampling gets the Rényi curve of the mixture from the Gaussian, above and below g = 1."""

    def one_way(rate, shift, orders):
        mixture, centre = _renyi.Mixture((0.0, shift), (1 - rate, rate)), _renyi.Mixture((0.0,), (1.0,))
        return _renyi.renyi_divergences(centre, mixture, orders)

    swap(_fixed_size_renyi.fixed_size_divergences, one_way)


@bug(caught_by=["tests/accounting/test_gaussian_mixture.py::test_fewer_nodes_bound_all"])
def nodes_at_the_nearest():
    """Numbers of participations are merged into the smallest of their group."""

    def merged(chances, mus):
        nodes = mus[:: max(1, len(mus) // 50)]
        return np.bincount(np.searchsorted(nodes, mus, "right") - 1, chances, len(nodes)), nodes

    swap(_gaussian_mixture.on_fewer_nodes, merged)


@bug(caught_by=[EVENTS + "test_a_class_cannot_take_the_name_of_another"])
def name_taken_twice():
    """A second class of a name replaces the first, and ledgers are read with another event than they were written."""

    def register(cls, *, tag=None):
        cls.kinds[cls.__name__] = cls

    put(PlainData, "__init_subclass__", classmethod(register))


@bug(caught_by=[ACCOUNTANT + "test_an_event_without_any_view_cannot_be_built"])
def event_without_a_guarantee():
    """An event whose guarantee is known in no form is built, and nothing is noticed before epsilon is asked for."""
    put(event._Guaranteed, "__call__", type.__call__)


@bug(38, caught_by=[EVENTS + "test_turns_are_hardened_if_both_kinds_of_query_are"])
def hardened_by_the_main_component():
    """A session counts as hardened if its first kind of query is, whatever noise the others have."""
    put(event.Event, "hardened", property(lambda self: bool(self.components) and self.components[0].hardened))


SAFE_SIDE = "tests/accounting/test_gaussian.py::test_epsilon_and_mu_are_on_the_safe_side_where_the_terms_cancel"


@bug(19, caught_by=[SAFE_SIDE])
def no_room_for_the_closed_form():
    """The delta that epsilon is solved from is taken as exact, although its terms cancel."""
    put(gaussian, "ROOM", 0.0)


@bug(76, caught_by=["tests/accounting/test_curve.py::test_losses_far_below_zero_do_not_coarsen_the_grid"])
def every_low_loss_told_apart():
    """Losses far below a window are told apart, so that tiny rates need a grid of too many points and fall back."""
    put(_window, "NO_WAY_BACK", 1e18)
