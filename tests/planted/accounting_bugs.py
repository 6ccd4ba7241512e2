"""Bugs of accounting: an epsilon that is too small, or that nothing stands behind."""

import math

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as library

from tacita.accounting import (
    _mixture,
    _pld,
    _pld_accountant,
    _renyi,
    accountant,
    calibration,
    events,
    gaussian,
    gaussian_events,
    pure_events,
    relations,
    statement_text,
    wrapped_events,
)
from tacita.accounting.book import Book
from tacita.accounting.ledger import Ledger
from tacita.accounting.stable_counts import StableCountsEvent
from tacita.accounting.statement import Statement
from tacita.accounting.statement import statement as make_statement
from tests.planted.plant import bug, put, swap

GAUSSIAN = "tests/accounting/test_gaussian_events.py::"
ACCOUNTANT = "tests/accounting/test_accountant.py::"
READING = "tests/accounting/test_pld_accountant.py::"
DOMINATION = "tests/accounting/test_domination.py::"
STATEMENT = "tests/accounting/test_statement.py::"
LEDGER = "tests/accounting/test_ledger.py::"
EVENTS = "tests/accounting/test_events.py::"
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
    whole = gaussian_events._fixed_size_rdp
    swap(whole, lambda size, records, sensitivity, orders: whole(size, records, sensitivity / 2, orders))


@bug(3, caught_by=[GAUSSIAN + "test_full_batch", GAUSSIAN + "test_rdp_is_above_pld"])
def renyi_curve_of_another_convention():
    """The Rényi curve of a Gaussian takes C for the sensitivity where the other accountant takes 2C."""

    def rdp(self, queries, orders):
        return np.asarray(orders) * self.gaussian_queries(queries) * self.ratio**2 / 2

    put(gaussian_events.PlainGaussianEvent, "rdp", rdp)


@bug(
    caught_by=[
        GAUSSIAN + "test_poisson_at_rate_one_is_the_full_batch",
        GAUSSIAN + "test_sampling_all_records_is_the_full_batch",
    ]
)
def one_query_for_all_that_are_not_amplified():
    """Where sampling amplifies nothing, many queries are charged as one."""
    swap(gaussian_events.known_mu, lambda query_mu, queries, *, amplified: None if amplified else query_mu)


@bug(
    caught_by=[
        GAUSSIAN + "test_no_noise_is_not_private_and_not_an_error",
        "tests/accounting/test_composed_events.py::test_what_it_says",
    ]
)
def no_noise_taken_for_no_contribution():
    """Without noise a session costs nothing."""
    swap(events.over_noise, lambda moved, noise: moved / noise if noise > 0 else 0.0)


@bug(caught_by=[GAUSSIAN + "test_full_batch", GAUSSIAN + "test_rdp_is_above_pld"])
def curve_of_a_known_mu_halved():
    """The Rényi curve of a session that is a Gaussian query is half of what it is."""
    whole = events.Event.rdp

    def rdp(self, queries, orders):
        return whole(self, queries, orders) * (1 if self.gaussian_mu(queries) is None else 0.5)

    put(events.Event, "rdp", rdp)


@bug(
    3, caught_by=[GAUSSIAN + "test_rdp_of_the_replace_one_pair_against_a_plain_sum", GAUSSIAN + "test_rdp_is_above_pld"]
)
def replace_one_by_the_other_curve():
    """Poisson sampling under replace_one gets the Rényi curve of add_or_remove_one."""
    swap(gaussian_events._poisson_replace_one_rdp, gaussian_events._poisson_rdp)


@bug(3, caught_by=[GAUSSIAN + "test_poisson"])
def replace_one_by_the_other_pair():
    """Poisson sampling under replace_one gets the privacy loss distribution of add_or_remove_one."""
    whole = _pld.poisson_pld
    put(_pld, "poisson_pld", lambda rate, ratio, relation, *more: whole(rate, ratio, "add_or_remove_one", *more))


@bug(12, caught_by=[STATEMENT + "test_what_is_printed_is_still_a_bound"])
def epsilon_printed_to_the_nearest():
    """The epsilon of a statement is rounded to the nearest number of four digits."""
    swap(statement_text._up, lambda value: f"{value:.4g}")


@bug(12, caught_by=["tests/mechanisms/test_gaussian.py::test_calibrated_never_overshoots_beside_other_sessions"])
def calibration_overshoots():
    """Calibration returns the noise on the wrong side of the target."""
    swap(calibration._narrowed, lambda reached, target, low, high: low[0] * 0.999 + high[0] * 0.001)


@bug(12, caught_by=[GAUSSIAN + "test_poisson"])
def estimate_reported_as_a_bound():
    """Privacy losses are rounded down: an optimistic estimate is reported as the bound."""
    whole = library.from_gaussian_mechanism

    def optimistic(*args, use_connect_dots, value_discretization_interval, **settings):
        return whole(
            *args,
            pessimistic_estimate=False,
            value_discretization_interval=8 * value_discretization_interval,
            use_connect_dots=False,
            **settings,
        )

    put(library, "from_gaussian_mechanism", optimistic)


@bug(
    12,
    49,
    caught_by=[GAUSSIAN + "test_poisson", DOMINATION + "test_the_discretised_unit_pair_is_never_below_the_exact_one"],
)
def one_direction_of_a_pair():
    """Only adding a record is accounted for; removing one costs more."""
    whole = _pld.self_composed

    def one_way(one, queries):
        return whole(library.PrivacyLossDistribution(one._pmf_add), queries)

    swap(whole, one_way)
    pair = _mixture.mixture_distribution
    swap(pair, lambda *settings: library.PrivacyLossDistribution(pair(*settings)._pmf_add))


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
    put(accountant, "_rdp_epsilon", lambda curve, delta: float(curve[0]))
    put(accountant, "_closed_delta", lambda spend, epsilon: spend.event.delta(epsilon, spend.queries))


@bug(13, caught_by=[ACCOUNTANT + "test_tiny_deltas_stay_finite_and_grow"])
def grid_never_too_coarse():
    """A distribution is believed below the delta that Fourier transforms resolve."""
    put(accountant, "_rdp", lambda spends: None)


@bug(13, caught_by=[READING + "test_mass_that_went_missing_is_taken_off_delta"])
def missing_mass_ignored():
    """A distribution that has lost mass to rounding is read as if it were whole."""
    swap(_pld_accountant._read_epsilon, lambda pld, delta: float(pld.get_epsilon_for_delta(delta)))


@bug(13, caught_by=[READING + "test_nothing_is_read_below_what_transforms_resolve"])
def transforms_taken_for_exact():
    """The rounding of Fourier transforms is not taken off delta."""
    swap(_pld_accountant.slack, lambda spends: 0.0)


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
    whole = _renyi._log_moment
    swap(whole, lambda *pair: value if (value := whole(*pair)) > 1e-14 else 0.0)


@bug(13, caught_by=[ACCOUNTANT + "test_delta_of_one_query_that_costs_next_to_nothing"])
def delta_vanishes_with_the_divergence():
    """The delta of a divergence below the rounding of 1 is taken for 0."""
    put(accountant, "_rdp_delta", lambda curve, epsilon: math.sqrt(max(0.0, 1 - math.exp(-float(np.nanmin(curve))))))


@bug(14, caught_by=["tests/accounting/test_pure_events.py::test_laplace_delta_in_closed_form"])
def laplace_scale_inverted():
    """The scale of Laplace noise is handed on as its inverse."""
    whole = pure_events._pld.laplace_pld
    put(_pld, "laplace_pld", lambda scale, *more: whole(1 / scale, *more))


@bug(
    16,
    17,
    caught_by=["tests/accounting/test_wrapped_events.py::test_the_best_of_many_costs_more_than_one_and_less_than_all"],
)
def best_run_charged_as_one():
    """The best of several runs is charged as a single run."""
    put(wrapped_events.RepeatAndSelectEvent, "rdp", lambda self, queries, orders: self._inner_rdp(np.asarray(orders)))


@bug(16, caught_by=[LEDGER + "test_a_session_after_a_release_is_refused_and_both_ways_out_are_named"])
def settings_chosen_after_a_release():
    """A session whose settings may depend on releases composes as if they had been fixed before."""
    put(Book, "_released", lambda self, part: False)


@bug(18, caught_by=[STATEMENT + "test_delta_is_never_chosen"])
def delta_by_default():
    """A statement chooses its own delta."""
    swap(make_statement, lambda ledger, delta=1e-5, **more: Statement(ledger, delta))


@bug(18, caught_by=["tests/accounting/test_stable_counts.py::test_failure_is_added_to_delta_twice_under_replace_one"])
def texts_of_one_record_are_free():
    """The chance that a text of one record alone is released costs no delta."""
    put(StableCountsEvent, "additive_delta", lambda self, queries: 0.0)


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
        return max(map(gaussian_events.over_noise, self.max_contribution, self.noise_std))

    put(gaussian_events.GaussianSumEvent, "ratio", property(ratio))


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
    whole = statement_text._Text._guarantee

    def claiming(self):
        fields, self._fields = self._fields, {**self._fields, "sessions": ["any"]}
        whole(self)
        self._fields = fields

    put(statement_text._Text, "_guarantee", claiming)


@bug(49, caught_by=[DOMINATION + "test_one_direction_composed_with_itself_is_caught"])
def fixed_size_one_direction_at_a_time():
    """Fixed-size sampling gets a distribution whose directions are composed each with itself."""

    def pld(self, queries, interval=2.0**-13):
        one = library.from_gaussian_mechanism(
            1 / (2 * self.ratio),
            sampling_prob=self.batch_size / self.num_records,
            value_discretization_interval=interval,
            use_connect_dots=True,
        )
        return one.self_compose(queries)

    put(gaussian_events.FixedSizeGaussianEvent, "pld", pld)
