"""Discrete Gaussian noise: its bound against direct summation of the law, in both directions; refused cells."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from tacita.accounting import (
    DisjointLaw,
    Event,
    FixedSizeLaw,
    FullBatchLaw,
    GaussianSumEvent,
    HardenedEvent,
    HistogramGaussianEvent,
    PoissonLaw,
    PoissonUnitLaw,
    ShuffledEpochsLaw,
    Spend,
    StableCountsEvent,
    epsilon,
    hardening,
)
from tacita.errors import UnsupportedEventError
from tacita.hardened import DiscreteGaussianEvent, discrete
from tacita.hardened.discrete_event import log_moment
from tests.accounting.library_pld import library_pld

ORDERS = (1.01, 1.5, 2.0, 2.7, 3.0, 5.0, 8.5, 16.0, 64.0)


def log_law(sigma, shift, reach):
    k = np.arange(-reach, reach + 1, dtype=float)
    exponents = -((k - shift) ** 2) / (2 * sigma**2)
    return exponents - logsumexp(exponents)


def true_moment(upper, lower, order):
    """log of the sum of p^a q^(1-a)."""
    return logsumexp(order * upper + (1 - order) * lower)


def both_directions(q, sigma, shift, order):
    reach = math.ceil(shift * (order + 2) + 45 * sigma)
    without, with_one = log_law(sigma, 0, reach), log_law(sigma, shift, reach)
    mixture = np.logaddexp(math.log1p(-q) + without, math.log(q) + with_one) if q < 1 else with_one
    return true_moment(mixture, without, order), true_moment(without, mixture, order)


def poisson(q, ratio, relation="add_or_remove_one"):
    inner = GaussianSumEvent(relation=relation, sampling=PoissonLaw(q), max_contribution=(ratio,), noise_std=(1.0,))
    return DiscreteGaussianEvent(relation=relation, inner=inner)


@pytest.mark.parametrize("q", [1e-3, 0.02, 0.3, 0.9])
@pytest.mark.parametrize(("sigma", "shift"), [(0.5, 1), (0.8, 2), (1.0, 1), (3.0, 2), (40.0, 50)])
def test_the_bound_is_above_the_sampled_truth_in_both_directions(q, sigma, shift):
    curve = poisson(q, shift / sigma).guarantee(1).rdp(np.array(ORDERS))
    for order, bound in zip(ORDERS, curve, strict=True):
        forth, back = both_directions(q, sigma, shift, order)
        assert back <= forth * (1 + 1e-9) + 1e-13
        assert forth / (order - 1) <= bound * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(("q", "order"), [(0.02, 2.0), (0.3, 5.0), (0.9, 16.0)])
def test_the_bound_is_reached_at_whole_orders_and_a_smaller_one_is_not_one(q, order):
    """At sigma 40 the discrete law is the Gaussian's for all that shows: 0.6 percent off is seen."""
    forth, _ = both_directions(q, 40.0, 50, order)
    assert log_moment(q, 50 / 40, int(order)) == pytest.approx(forth, rel=1e-6)
    assert log_moment(q, 50 / 40 * 0.994, int(order)) < forth


@pytest.mark.parametrize(("sigma", "shift"), [(0.4, 1), (1.0, 3), (20.0, 7)])
@pytest.mark.parametrize("order", ORDERS)
def test_without_sampling_the_gaussian_bounds_it(sigma, shift, order):
    event = discrete(
        GaussianSumEvent(
            sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(float(shift),), noise_std=(sigma,)
        )
    )
    forth, back = both_directions(1.0, sigma, shift, order)
    bound = event.guarantee(1).rdp(np.array([order]))[0]
    assert max(forth, back) / (order - 1) <= bound * (1 + 1e-9)
    if order == 2.0:  # equal where a x is whole
        assert forth / (order - 1) == pytest.approx(bound, rel=1e-9)


def test_in_two_dimensions_the_euclidean_norm_counts():
    sigma, reach = 1.3, 60
    one, other = log_law(sigma, 0, reach), log_law(sigma, 1, reach)
    upper, lower = (np.add.outer(law, law).ravel() for law in (other, one))
    event = discrete(
        GaussianSumEvent(
            sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(math.sqrt(2),), noise_std=(sigma,)
        )
    )
    for order in (2.0, 3.0, 4.5):
        assert true_moment(upper, lower, order) / (order - 1) <= event.guarantee(1).rdp(np.array([order]))[0] * (
            1 + 1e-9
        )


def test_sampled_at_whole_orders_it_is_the_curve_of_the_gaussian():
    orders = np.array([2.0, 3.0, 8.0, 32.0, 256.0])
    event = poisson(0.02, 0.7)
    np.testing.assert_allclose(event.guarantee(5).rdp(orders), event.inner.guarantee(5).rdp(orders), rtol=1e-6)
    between = np.array([1.2, 2.5, 20.3])
    assert (event.guarantee(5).rdp(between) >= event.inner.guarantee(5).rdp(between) * (1 - 1e-9)).all()


def test_epsilon_is_a_little_above_the_gaussian_by_renyi_divergences():
    event = poisson(0.02, 1.0)
    found = epsilon([Spend(event, 150)], 1e-5)
    assert 1.6543 < found.epsilon < 2.3
    assert "RDP" in found.accountant
    full = discrete(
        GaussianSumEvent(sampling=FullBatchLaw(), relation="replace_one", max_contribution=(1.0,), noise_std=(1.0,))
    )
    assert epsilon([Spend(full, 10)], 1e-5).epsilon == pytest.approx(48.8017, rel=1e-4)


def test_moments_are_accurate_where_they_are_small():
    for ratio in (1e-3, 1e-6):
        expected = 0.01**2 * ratio**2  # q^2 (e^(ratio^2) - 1)
        assert log_moment(0.01, ratio, 2) == pytest.approx(expected, rel=1e-5)
        assert log_moment(0.01, ratio, 2) >= 0.01**2 * math.expm1(ratio**2)


def test_views_that_the_gaussian_has_and_this_has_not():
    event = poisson(0.1, 1.0)
    assert library_pld(event.guarantee(10)) is None
    assert event.guarantee(10).mu is None
    assert event.guarantee(10).delta is None
    assert event.guarantee(0).mu == 0
    assert not poisson(0.1, math.inf).guarantee(1).private
    assert math.isinf(epsilon([Spend(poisson(0.1, math.inf), 3)], 1e-5).epsilon)


def test_the_relations_keep_their_factors():
    def at_two(relation, sampling=None):
        noise = {"relation": relation, "max_contribution": (1.0,), "noise_std": (1.0,)}
        inner = HistogramGaussianEvent(**noise) if sampling is None else GaussianSumEvent(sampling=sampling, **noise)
        return discrete(inner).guarantee(6).rdp(np.array([2.0]))[0]

    assert at_two("add_or_remove_one", FullBatchLaw()) == pytest.approx(6)
    assert at_two("replace_one", FullBatchLaw()) == pytest.approx(24)
    assert at_two("replace_one") == pytest.approx(12)
    assert at_two("replace_one", DisjointLaw(own_coin=False)) == pytest.approx(4)
    assert at_two("zero_out_one", ShuffledEpochsLaw(4, own_coin=True)) == pytest.approx(2)
    assert poisson(1.0, 1.0, "replace_one").guarantee(6).rdp(np.array([2.0]))[0] == pytest.approx(24)


def refused(event):
    with pytest.raises(UnsupportedEventError, match="no guarantee is proved"):
        discrete(event)


def test_cells_without_a_proof_are_refused():
    common = dict(max_contribution=(1.0,), noise_std=(1.0,))
    refused(GaussianSumEvent(relation="replace_one", sampling=PoissonLaw(0.1), **common))
    refused(GaussianSumEvent(relation="replace_one", sampling=FixedSizeLaw(1, 9), **common))
    refused(GaussianSumEvent(relation="add_or_remove_one", sampling=PoissonUnitLaw(0.1, 2), **common))
    refused(StableCountsEvent(relation="add_or_remove_one", failure_probability=1e-9, **common))
    with pytest.raises(ValueError, match="relation must be the inner event's"):
        DiscreteGaussianEvent(
            relation="replace_one", inner=GaussianSumEvent(sampling=FullBatchLaw(), relation="zero_out_one", **common)
        )


# -- the hardened event around it


@pytest.mark.parametrize("noise", ["rounded", "discrete"])
def test_a_hardened_event_is_its_inner_event(noise):
    inner = poisson(0.1, 0.5) if noise == "discrete" else poisson(0.1, 0.5).inner
    event = HardenedEvent(relation="add_or_remove_one", inner=inner, noise=noise, sums="capped", max_records=1000)
    assert epsilon([Spend(event, 20)], 1e-5) == epsilon([Spend(inner, 20)], 1e-5)
    assert Event.from_dict(event.to_dict()) == event
    assert "hardened: " + noise in event.describe()
    assert any("1,000 records" in text for text in event.assumptions)
    assert hardening(event) is event
    assert hardening(inner) is None


@pytest.mark.parametrize(("name", "value"), [("noise", "exact"), ("sums", "fast"), ("relation", "replace_one")])
def test_a_hardened_event_is_checked(name, value):
    settings = dict(relation="add_or_remove_one", inner=poisson(0.1, 0.5), noise="rounded", sums="alone")
    with pytest.raises(ValueError, match="must be"):
        HardenedEvent(**{**settings, name: value})
