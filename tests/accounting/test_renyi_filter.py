"""The Rényi filter: its budget converts back to the cap, and the conversion is a bound."""

import dataclasses
import math

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st

from tacita.accounting import (
    CoupledEvent,
    FullBatchLaw,
    GaussianSumEvent,
    PoissonLaw,
    RenyiFilter,
    Spend,
    StableCountsEvent,
    gaussian_delta,
)
from tacita.errors import UnsupportedEventError
from tacita.ledger import Ledger


def gaussian(mu):
    return Spend(
        GaussianSumEvent(
            sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(1 / mu,)
        ),
        1,
    )


@settings(max_examples=100, deadline=None)
@given(order=st.floats(1.5, 200), epsilon=st.floats(0.1, 20), log_delta=st.floats(-30, -3))
def test_the_whole_budget_is_the_cap(order, epsilon, log_delta):
    delta = math.exp(log_delta)
    try:
        rule = RenyiFilter(order=order, max_epsilon=epsilon, max_delta=delta)
    except ValueError as error:
        assert "leaves no budget" in str(error)  # noqa: PT017 - only some draws are refused
        return
    assert rule.epsilon(delta) == pytest.approx(epsilon)
    assert rule.delta(epsilon) == pytest.approx(delta)


@pytest.mark.parametrize("order", [2.0, 8.0, 64.0])
def test_the_conversion_is_that_of_dp_accounting_at_one_order(order):
    rule = RenyiFilter(order=order, max_epsilon=50.0, max_delta=1e-5)
    for divergence in (0.5, 3.0, 20.0):
        peer = rdp_privacy_accountant.compute_epsilon(np.array([order]), np.array([divergence]), 1e-6)[0]
        assert rule.epsilon(1e-6, divergence) == pytest.approx(peer, rel=1e-9)


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
def test_it_never_promises_less_than_the_exact_delta(mu):
    """A Gaussian that spends the whole budget: its exact delta is below the filter's, everywhere."""
    for order in (3.0, 10.0, 40.0):
        rule = RenyiFilter(order=order, max_epsilon=30.0, max_delta=1e-5)
        divergence = rule.divergence([gaussian(mu)])
        assert divergence == pytest.approx(order * mu**2 / 2)
        for delta in (1e-3, 1e-8):
            assert gaussian_delta(mu, rule.epsilon(delta, divergence)) <= delta


def test_a_forgotten_price_of_converting_is_caught():
    """The twin: divergence alone, taken for epsilon, promises too much."""
    rule = RenyiFilter(order=10.0, max_epsilon=30.0, max_delta=1e-5)
    assert gaussian_delta(0.5, rule.divergence([gaussian(0.5)])) > 1e-5


def test_the_refusal_of_a_small_order_names_one_that_works():
    with pytest.raises(ValueError, match="leaves no budget") as caught:
        RenyiFilter(order=2.0, max_epsilon=1.0, max_delta=1e-5)
    named = float(str(caught.value).rstrip(".").rsplit(" ", 1)[1])
    assert RenyiFilter(order=named, max_epsilon=1.0, max_delta=1e-5).budget > 0


def test_nothing_spent_is_nothing():
    rule = RenyiFilter(order=8.0, max_epsilon=3.0, max_delta=1e-5)
    assert rule.epsilon(1e-5, rule.divergence([])) == 0.0
    assert rule.divergence([gaussian(1.0), gaussian(2.0)]) == pytest.approx(8 * 5 / 2)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_a_session_of_tiny_queries_is_charged(relation):
    """1e12 queries, each of a divergence below the rounding of 1."""
    event = GaussianSumEvent(relation=relation, max_contribution=(0.5,), noise_std=(1.0,), sampling=PoissonLaw(1e-8))
    covariance = 4 * math.sinh(0.25) if relation == "replace_one" else math.expm1(0.25)
    rule = RenyiFilter(order=8.0, max_epsilon=3.0, max_delta=1e-5)
    assert rule.divergence([Spend(event, 10**12)]) == pytest.approx(10**12 * 8 / 2 * 1e-16 * covariance, rel=1e-4)


FAILING = {
    "additive": StableCountsEvent(
        relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(9.0,), failure_probability=1e-7
    ),
    "coupled": CoupledEvent(relation="add_or_remove_one", inner=gaussian(0.1).event, failure_probability=1e-9),
}


@pytest.mark.parametrize("event", FAILING.values(), ids=FAILING)
def test_what_may_fail_passes_no_filter(event):
    """Its curve says nothing of the failure, which a filter of divergences cannot pay for."""
    assert event.guarantee(1).rdp is not None
    rule = RenyiFilter(order=8.0, max_epsilon=3.0, max_delta=1e-5)
    with pytest.raises(UnsupportedEventError, match="cannot pass a filter"):
        rule.divergence([gaussian(0.1), Spend(event, 1)])


class Undefined(GaussianSumEvent):
    """Its curve came out as no number."""

    def _guarantee(self, queries):
        return dataclasses.replace(super()._guarantee(queries), rdp=lambda orders: np.full(len(orders), np.nan))


def test_a_divergence_that_is_no_number_is_never_free():
    event = Undefined(sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(1.0,))
    rule = RenyiFilter(order=8.0, max_epsilon=3.0, max_delta=1e-5)
    assert rule.divergence([Spend(event, 1)]) == math.inf


@pytest.mark.parametrize("order", [1.5, 2.7, 17.3, 300.25])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one", "zero_out_one"])
def test_a_filter_of_any_order_admits_sampled_sessions(relation, order):
    """And charges them no more than the whole order above, and more than the one below."""
    event = GaussianSumEvent(relation=relation, max_contribution=(1.0,), noise_std=(2.0,), sampling=PoissonLaw(0.01))
    rules = [RenyiFilter(order=a, max_epsilon=60.0, max_delta=1e-5) for a in (order, math.ceil(order))]
    one, above = (rule.divergence([Spend(event, 100)]) for rule in rules)
    assert 0 < one < above < math.inf
    if math.floor(order) > 1:
        below = RenyiFilter(order=math.floor(order), max_epsilon=60.0, max_delta=1e-5).divergence([Spend(event, 100)])
        assert below < one


def test_a_ledger_with_a_cap_and_a_small_order_admits_a_session():
    ledger = Ledger(
        neighboring_relation="add_or_remove_one",
        privacy_unit="one row",
        max_epsilon=30.0,
        max_delta=1e-5,
        filter_order=1.5,
    )
    event = GaussianSumEvent(
        relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(1.0,), sampling=PoissonLaw(0.01)
    )
    ledger.register(event, planned_queries=100)
    assert math.isfinite(ledger.epsilon(1e-5))
