"""The accountant: upper bounds that move the right way, whatever is composed and however extreme."""

import itertools
import math
import os

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st

from tacita import accounting as acc
from tacita.accounting import accountant
from tacita.accounting.events import Event
from tacita.accounting.pld_accountant import pairs_of
from tacita.accounting.renyi_curve import ORDERS, RenyiCurve
from tacita.error_feedback.first_draw import FirstDrawEvent
from tacita.errors import UnsupportedEventError

DELTA = 1e-5


def total(*spends, delta=DELTA):
    return acc.epsilon([acc.Spend(*spend) for spend in spends], delta).epsilon


def poisson(rate, std, relation="add_or_remove_one"):
    return acc.GaussianSumEvent(
        relation=relation, max_contribution=(1.0,), noise_std=(std,), sampling=acc.PoissonLaw(rate)
    )


# Metamorphic properties. The slack is the accountant's stated accuracy: two grids may differ by it.

ACCURACY = 1 + 2e-3
cases = {
    "rate": st.floats(0.005, 0.5),
    "std": st.floats(0.7, 20.0),
    "queries": st.integers(1, 300),
    "relation": st.sampled_from(acc.RELATIONS),
    "log_delta": st.floats(-20.0, -4.0),
}


@given(**cases)
@settings(max_examples=12, deadline=None)
def test_epsilon_moves_the_right_way(rate, std, queries, relation, log_delta):
    delta = math.exp(log_delta)
    here = total((poisson(rate, std, relation), queries), delta=delta)
    assert 0 <= here < math.inf
    assert total((poisson(rate, 1.5 * std, relation), queries), delta=delta) <= here * ACCURACY
    assert total((poisson(min(1.0, 1.5 * rate), std, relation), queries), delta=delta) * ACCURACY >= here
    assert total((poisson(rate, std, relation), 2 * queries), delta=delta) * ACCURACY >= here
    assert total((poisson(rate, std, relation), queries), delta=delta / 10) * ACCURACY >= here


@given(**cases)
@settings(max_examples=10, deadline=None)
def test_sampling_never_costs_more_than_the_full_batch(rate, std, queries, relation, log_delta):
    full = acc.GaussianSumEvent(
        sampling=acc.FullBatchLaw(), relation=relation, max_contribution=(1.0,), noise_std=(std,)
    )
    delta = math.exp(log_delta)
    assert total((poisson(rate, std, relation), queries), delta=delta) <= total((full, queries), delta=delta) * ACCURACY


@given(**cases)
@settings(max_examples=10, deadline=None)
def test_rdp_is_above_pld(rate, std, queries, relation, log_delta):
    event, delta = poisson(rate, std, relation), math.exp(log_delta)
    loose = RenyiCurve([event.guarantee(queries).rdp]).epsilon(delta)
    assert total((event, queries), delta=delta) <= loose * ACCURACY + 1e-9


@given(**cases)
@settings(max_examples=10, deadline=None)
def test_delta_inverts_epsilon(rate, std, queries, relation, log_delta):
    spend = acc.Spend(poisson(rate, std, relation), queries)
    epsilon = acc.epsilon([spend], math.exp(log_delta)).epsilon
    found = acc.delta([spend], epsilon).delta
    assert found <= math.exp(log_delta) * 1.05 + 1e-11


def test_strictly_where_it_matters():
    base = total((poisson(0.02, 1.0), 150))
    assert total((poisson(0.02, 1.1), 150)) < 0.95 * base
    assert total((poisson(0.025, 1.0), 150)) > 1.05 * base
    assert total((poisson(0.02, 1.0), 200)) > 1.05 * base
    assert total((poisson(0.02, 1.0), 150), delta=1e-6) > 1.05 * base


# Upper bounds: between dp_accounting's optimistic estimate and half a percent above it.


@pytest.mark.parametrize(
    ("rate", "std", "queries", "delta"),
    [(0.02, 1.0, 150, 1e-5), (0.3, 0.8, 4, 1e-6), (0.01, 5.0, 2000, 1e-7), (0.002, 0.7, 500, 1e-5)],
)
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_between_the_optimistic_estimate_and_half_a_percent_above(rate, std, queries, delta, relation):
    theirs = {"add_or_remove_one": "ADD_OR_REMOVE_ONE", "replace_one": "REPLACE_ONE"}[relation]
    interval = 2e-4 if queries < 1000 else 2e-5
    one = library.from_gaussian_mechanism(
        std,
        pessimistic_estimate=False,
        value_discretization_interval=interval,
        sampling_prob=rate,
        neighboring_relation=NeighboringRelation[theirs],
    )
    below = one.self_compose(queries).get_epsilon_for_delta(delta)
    found = total((poisson(rate, std, relation), queries), delta=delta)
    rounded_down = queries * interval  # what the optimistic rounding can lose at most
    assert below <= found <= (below + rounded_down) * 1.005


# Compositions.


def test_gaussian_sessions_together_are_one_gaussian(events):
    found = acc.epsilon([acc.Spend(events.full(2.0), 3), acc.Spend(events.full(5.0), 10)], DELTA)
    assert found.epsilon == pytest.approx(acc.gaussian_epsilon(math.sqrt(3 / 4 + 10 / 25), DELTA), rel=1e-12)
    assert "closed form" in found.accountant


def test_the_order_and_the_cutting_of_spends_change_nothing(events):
    training, bought = events.poisson(0.02, 1.0), events.full(10.0)
    whole = total((training, 150), (bought, 2))
    assert total((bought, 2), (training, 150)) == pytest.approx(whole, rel=1e-6)
    assert total((training, 100), (bought, 1), (training, 50), (bought, 1)) == pytest.approx(whole, rel=1e-6)


def test_registered_together_is_cheaper_than_shares(events):
    training, bought = (events.poisson(0.02, 1.0), 150), (events.full(10.0), 1)
    both = total(training, bought)
    assert (
        max(total(training), total(bought)) < both < total(training, delta=DELTA / 2) + total(bought, delta=DELTA / 2)
    )


def test_composition_with_nothing_is_the_same(events):
    assert total((events.poisson(0.02, 1.0), 150), (events.full(1.0), 0)) == total((events.poisson(0.02, 1.0), 150))
    assert acc.epsilon([], DELTA).epsilon == 0
    assert acc.delta([], 0.0).delta == 0


def test_every_pair_of_events_composes(events):
    """Never below its parts; and never an estimate, an exception or infinity. A third of the pairs; make audit, all."""
    each = [event for event in events.one_of_each() if event.relation == "add_or_remove_one"]
    alone = {number: total((event, 5)) for number, event in enumerate(each)}
    pairs = [*itertools.combinations(alone, 2)]
    for first, second in pairs if os.environ.get("TACITA_AUDIT") else pairs[::3]:
        both = total((each[first], 5), (each[second], 5))
        assert max(alone[first], alone[second]) * (1 - 2e-3) <= both < math.inf, (each[first], each[second])


def test_fixed_size_composes_with_purchases_and_shares(events):
    fixed, bought, share = events.fixed(2.0), events.full(10.0, "replace_one"), events.share(0.2, 1e-6, "replace_one")
    alone = total((fixed, 1000))
    with_purchase = total((fixed, 1000), (bought, 1))
    assert alone < with_purchase < total((fixed, 1000), (bought, 1), (share, 1)) < alone + 1.5


class DeltaOnly(Event):
    """A session-wide guarantee known as delta(epsilon) alone, as of bounded residuals."""

    sampler = "whole session"
    per_query = False

    def describe(self):
        return "delta only"

    def _guarantee(self, queries):
        return acc.Guarantee(
            delta=lambda epsilon: 0.5 * acc.gaussian_delta(0.5, epsilon) + 0.5 * acc.gaussian_delta(1.0, epsilon)
        )


class NoView(Event):
    sampler = "unknown"

    def describe(self):
        return "no view"

    def _guarantee(self, queries):
        return acc.Guarantee()


def test_an_event_with_a_closed_form_alone(events):
    event = DeltaOnly(relation="add_or_remove_one")
    alone = total((event, 10))
    assert acc.gaussian_epsilon(0.5, DELTA) < alone < acc.gaussian_epsilon(1.0, DELTA)
    assert event.guarantee(10).delta(alone) <= DELTA
    bought = (events.full(10.0), 1)
    assert alone < total((event, 10), bought) <= total((event, 10), delta=DELTA / 2) + total(bought, delta=DELTA / 2)
    together = [acc.Spend(event, 10), acc.Spend(*bought)]
    assert acc.delta(together, acc.epsilon(together, DELTA).epsilon).delta <= DELTA * 1.001


def test_an_event_without_any_view_cannot_be_built():
    with pytest.raises(UnsupportedEventError, match="NoView offers no guarantee"):
        NoView(relation="add_or_remove_one")


def test_failures_alone_are_no_guarantee():
    with pytest.raises(UnsupportedEventError, match="needs a form"):
        acc.Guarantee(additive_delta=1e-6, coupling_gap=1e-6, unsampled_mu=1.0)


class Disclosure(Event):
    """Everything is told with chance 0.01, once a session, and nothing otherwise."""

    sampler = "none"
    per_query = False

    def describe(self):
        return "disclosure"

    def _guarantee(self, queries):
        return acc.Guarantee(delta=lambda epsilon: 0.01)


@pytest.mark.parametrize("sessions", [2, 3, 5])
def test_parts_share_delta(sessions):
    """Several disclosures come to nearly the sum of their chances, so that less than that buys no epsilon."""
    spends = [acc.Spend(Disclosure(relation="add_or_remove_one"), 1)] * sessions
    assert acc.epsilon(spends, 0.0101 * sessions).epsilon == 0
    for chance in (0.0101, 0.0099 * sessions, 1 - 0.99**sessions - 1e-6):
        with pytest.raises(ArithmeticError, match="no accountant gives Disclosure"):
            acc.epsilon(spends, chance)
    with pytest.raises(ArithmeticError):
        acc.epsilon(spends[:1], 0.0099)


def test_each_part_is_read_at_its_share_of_delta(events):
    """A PLD, a curve and a closed form, of which each alone is exact."""
    event, curve = DeltaOnly(relation="replace_one"), acc.ZCDPEvent(relation="replace_one", rho=0.03)
    three = [(poisson(0.02, 1.0, "replace_one"), 100), (curve, 1), (event, 1)]
    each = [total(spend, delta=DELTA / 3) for spend in three]
    assert total(*three) == pytest.approx(sum(each), rel=1e-6)


def test_one_pass_sessions_are_not_one_session(events):
    """A record is in one query of each, however many queries they have: equal sessions must not be merged."""
    event = acc.GaussianSumEvent(
        sampling=acc.DisjointLaw(own_coin=True), relation="replace_one", max_contribution=(1.0,), noise_std=(4.0,)
    )
    assert total((event, 30)) == pytest.approx(acc.gaussian_epsilon(0.5, DELTA))
    for times in (2, 5):
        assert total(*[(event, 30)] * times) == pytest.approx(acc.gaussian_epsilon(0.5 * times**0.5, DELTA))
        assert acc.delta([acc.Spend(event, 30)] * times, 1.0).delta == pytest.approx(
            acc.gaussian_delta(0.5 * times**0.5, 1.0)
        )


class BrokenDelta(DeltaOnly):
    def _guarantee(self, queries):
        return acc.Guarantee(delta=lambda epsilon: math.nan)


class BrokenCurve(Event):
    sampler = "broken"

    def describe(self):
        return "broken"

    def _guarantee(self, queries):
        return acc.Guarantee(rdp=lambda orders: np.full(len(orders), math.nan))


def test_a_nan_is_raised_and_never_reported():
    for event in (BrokenDelta(relation="add_or_remove_one"), BrokenCurve(relation="add_or_remove_one")):
        with pytest.raises(ArithmeticError):
            total((event, 1))


def test_relations_do_not_mix(events):
    with pytest.raises(ValueError, match="one neighboring relation"):
        total((events.full(1.0), 1), (events.full(1.0, "replace_one"), 1))


# Extremes: finite or raised (a grid that overflows prints nonsense in silence elsewhere).


@pytest.mark.parametrize("relation", acc.RELATIONS)
@pytest.mark.parametrize(
    ("rate", "std", "queries"),
    [
        (0.01, 0.011, 10),
        (0.01, 0.005, 10),
        (1e-6, 1.0, 1000),
        (0.5, 1e5, 1000),
        (0.99999, 1.0, 10),
        (0.01, 30.0, 1_000_000),
    ],
)
def test_extreme_settings_stay_finite_and_below_the_full_batch(rate, std, queries, relation):
    found = total((poisson(rate, std, relation), queries))
    full = acc.GaussianSumEvent(
        sampling=acc.FullBatchLaw(), relation=relation, max_contribution=(1.0,), noise_std=(std,)
    )
    assert 0 <= found <= total((full, queries)) * ACCURACY + 1e-5


@pytest.mark.parametrize("delta", [1e-9, 1e-11, 1e-13, 1e-20, 1e-100])
def test_tiny_deltas_stay_finite_and_grow(delta):
    here = total((poisson(0.01, 1.0), 1000), delta=delta)
    assert total((poisson(0.01, 1.0), 1000), delta=100 * delta) < here < math.inf


def test_many_queries_are_no_cheaper_in_two_stages():
    """A million queries take another path of composition than a hundred thousand."""
    few, many = total((poisson(0.001, 3.0), 190_000)), total((poisson(0.001, 3.0), 210_000))
    assert few < many < 1.1 * few


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan, True])
def test_delta_is_a_probability_strictly_inside(events, delta):
    with pytest.raises(ValueError, match="delta must be in"):
        acc.epsilon([acc.Spend(events.full(1.0), 1)], delta)


@pytest.mark.parametrize("epsilon", [-0.1, math.inf, math.nan])
def test_epsilon_is_finite_and_not_negative(events, epsilon):
    with pytest.raises(ValueError, match="epsilon must be"):
        acc.delta([acc.Spend(events.full(1.0), 1)], epsilon)


def test_the_bound_says_by_which_accountant(events):
    for event, words in (
        (events.full(1.0), "closed form of the Gaussian"),
        (events.poisson(0.02, 1.0), "PLD (tilted, pessimistic, discretisation "),
        (events.fixed(1.0), "PLD (tilted"),
        (FirstDrawEvent(relation="add_or_remove_one", inner=events.hidden()), "RDP"),
        (events.full(0.0), "non-private"),
    ):
        assert words in acc.epsilon([acc.Spend(event, 3)], DELTA).accountant


# Tiny sampling rates: one query costs less than the rounding of 1, a great many do not.


@pytest.mark.parametrize("delta", [1e-5, 1e-8])
@pytest.mark.parametrize(
    ("rate", "ratio", "queries"), [(1e-6, 0.05, 10**6), (1e-7, 0.1, 10**10), (1e-8, 0.5, 10**12), (1e-6, 0.01, 10**10)]
)
def test_what_is_lost_in_one_query_is_not_lost_in_many(rate, ratio, queries, delta):
    """The losses add up to nearly a Gaussian query, whose mu^2 is their chi squared."""
    present, zeroed = (
        pairs_of([acc.Spend(poisson(rate, 1 / ratio, name), queries)]) for name in ("add_or_remove_one", "zero_out_one")
    )
    assert present == zeroed
    for relation, covariance in (
        ("replace_one", 4 * math.sinh(ratio**2)),
        ("add_or_remove_one", math.expm1(ratio**2)),
    ):
        event = poisson(rate, 1 / ratio, relation)
        mu = rate * math.sqrt(queries * covariance)
        assert total((event, queries), delta=delta) >= 0.99 * acc.gaussian_epsilon(mu, delta)
        assert acc.delta([acc.Spend(event, queries)], 0.0).delta >= 0.99 * acc.gaussian_delta(mu, 0.0)


@pytest.mark.parametrize("ratio", [1e-3, 0.05])
def test_delta_of_one_query_that_costs_next_to_nothing(ratio):
    """At epsilon 0 it is the total variation: of shifts by C with chance q, or of C and -C."""
    for relation, distance in (("replace_one", 2 * ratio), ("add_or_remove_one", ratio), ("zero_out_one", ratio)):
        exact = 1e-6 * math.erf(distance / 2 / math.sqrt(2))
        found = acc.delta([acc.Spend(poisson(1e-6, 1 / ratio, relation), 1)], 0.0).delta
        assert exact * (1 - 1e-9) <= found <= 1e-6


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_delta_of_a_curve_is_dp_accounting_s_where_that_is_accurate(epsilon):
    curve = poisson(0.02, 1.0, "replace_one").guarantee(150).rdp
    peer = rdp_privacy_accountant.compute_delta(ORDERS.tolist(), curve(ORDERS).tolist(), epsilon)[0]
    assert RenyiCurve([curve]).delta(epsilon) == pytest.approx(peer, rel=1e-9)


def test_a_curve_that_rounding_took_to_nothing_is_not_free():
    lost = np.where(ORDERS < 3, -1e-17, 1e-15)
    assert RenyiCurve([lambda _: lost]).delta(0.0) > 1e-9
    assert RenyiCurve([np.zeros_like]).delta(0.0) == 0


# Several sessions: what cannot be convolved is added up form by form.


def test_curves_of_several_sessions_add_up():
    zcdp = [acc.Spend(acc.ZCDPEvent(relation="zero_out_one", rho=rho), 1) for rho in (0.1, 0.2, 0.3)]
    assert accountant._rdp(zcdp[:2]).values == pytest.approx(accountant._rdp(zcdp[2:]).values)
    apart, whole = (acc.epsilon(spends, DELTA).epsilon for spends in (zcdp[:2], zcdp[2:]))
    assert whole <= apart <= 1.01 * whole  # the second has a closed form, the first is read on a grid of orders


def test_additive_deltas_of_several_sessions_add_up():
    failing = [
        acc.Spend(
            acc.StableCountsEvent(
                relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(std,), failure_probability=failure
            ),
            1,
        )
        for std, failure in ((20.0, 1e-6), (30.0, 3e-6))
    ]
    assert acc.delta(failing, 50.0).delta == pytest.approx(4e-6)
    mu = math.hypot(1 / 20, 1 / 30)
    assert acc.epsilon(failing, DELTA).epsilon == pytest.approx(acc.gaussian_epsilon(mu, DELTA - 4e-6))


def test_sessions_read_without_their_sampling_are_one_gaussian(monkeypatch):
    """Where no grid resolves the distributions. A rate next to 1 makes the exact Gaussian better than the curve."""
    monkeypatch.setattr(accountant, "has_pld", lambda spend: False)
    spends = tuple(acc.Spend(poisson(0.999999, std, "replace_one"), 4) for std in (3.0, 4.0))
    value, name = min(accountant._epsilons(spends, DELTA))
    assert value == pytest.approx(acc.gaussian_epsilon(math.hypot(4 / 3, 4 / 4), DELTA))
    assert name == accountant.UNSAMPLED
