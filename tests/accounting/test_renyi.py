"""Rényi curves where the moments are so near 1 that their logarithms drown in its rounding."""

import math

import numpy as np
import pytest
from scipy.special import comb

from tacita import accounting as acc
from tacita.accounting import _renyi
from tacita.accounting._renyi import Mixture, above_line, renyi_divergences
from tacita.accounting.accountant import ORDERS

CENTRE = Mixture((0.0,), (1.0,))


def sampled(rate, shift):
    return Mixture((0.0, shift), (1 - rate, rate))


def binomial(rate, shift, order):
    """The divergence of the mixture from the centre at a whole order: a sum without cancellation."""
    return math.log1p(
        math.fsum(
            comb(order, k) * rate**k * (1 - rate) ** (order - k) * math.expm1(k * (k - 1) * shift**2 / 2)
            for k in range(2, order + 1)
        )
    ) / (order - 1)


@pytest.mark.parametrize("rate", [1e-12, 1e-8, 1e-3, 0.3])
@pytest.mark.parametrize("shift", [1e-5, 1e-3, 0.1, 1.0, 2.0])
@pytest.mark.parametrize("order", [2, 3, 16])
def test_the_mixture_from_the_centre(rate, shift, order):
    exact = binomial(rate, shift, order)
    found = renyi_divergences(sampled(rate, shift), CENTRE, (float(order),))[0]
    assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-8)


@pytest.mark.parametrize("rate", [1e-12, 1e-8, 1e-6])
@pytest.mark.parametrize("shift", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("order", [1.0001, 1.5, 2.0, 8.0])
def test_small_divergences_are_half_the_order_times_chi_squared(rate, shift, order):
    """To first order, whichever comes first; chi squared of the two mixtures has the covariances exp(+-shift^2)."""
    mixture, mirrored = sampled(rate, shift), sampled(rate, -shift)
    pairs = [
        (mixture, CENTRE, math.expm1(shift**2)),
        (CENTRE, mixture, math.expm1(shift**2)),
        (mixture, mirrored, 4 * math.sinh(shift**2)),
    ]
    for upper, lower, covariance in pairs:
        found = renyi_divergences(upper, lower, (order,))[0]
        assert found == pytest.approx(order / 2 * rate**2 * covariance, rel=1e-3)


@pytest.mark.parametrize("order", [1.1, 2.0, 7.3])
def test_both_ways_to_a_moment_agree(monkeypatch, order):
    pairs = [(sampled(0.2, 0.7), sampled(0.2, -0.7)), (CENTRE, sampled(0.3, 2.0)), (sampled(0.05, 1.5), CENTRE)]
    monkeypatch.setattr(_renyi, "SMALL", -math.inf)
    direct = [renyi_divergences(*pair, (order,))[0] for pair in pairs]
    monkeypatch.setattr(_renyi, "SMALL", math.inf)
    assert [renyi_divergences(*pair, (order,))[0] for pair in pairs] == pytest.approx(direct, rel=1e-8)


def test_a_rare_far_shift_counts_where_it_divides():
    """A shift far outside the other's reach takes its own weight out of the moment."""
    rate, order = 1e-6, 3.0
    found = renyi_divergences(CENTRE, sampled(rate, 60.0), (order,))[0]
    assert found == pytest.approx(-math.log1p(-rate), rel=1e-6)
    assert found >= -math.log1p(-rate)


def test_above_line():
    x = np.array([-3.0, -0.2, 0.2, 3.0])
    assert above_line(x) == pytest.approx(np.exp(x) - 1 - x, rel=1e-13)
    tiny = np.array([-0.05, -1e-3, -1e-12, 1e-9, 0.05])
    assert above_line(tiny) == pytest.approx(tiny**2 * (1 / 2 + tiny / 6 + tiny**2 / 24 + tiny**3 / 120), rel=1e-7)
    assert above_line(np.array([0.0]))[0] == 0


def test_no_curve_with_a_cost_is_free():
    ratio = {"max_contribution": (1e-3,), "noise_std": (1.0,)}
    events = [
        *(acc.PoissonGaussianEvent(relation=each, sampling_probability=1e-6, **ratio) for each in acc.RELATIONS),
        acc.PoissonUnitEvent(relation="add_or_remove_one", sampling_probability=1e-6, max_rows_per_unit=3, **ratio),
        acc.FixedSizeGaussianEvent(relation="replace_one", batch_size=1, num_records=10**6, **ratio),
        acc.LaplaceEvent(relation="replace_one", l1_sensitivity=1e-10, scale=1.0),
        acc.ApproximateDPEvent(relation="replace_one", epsilon=1e-10, delta_share=0.0),
    ]
    for event in events:
        curve = event.rdp(1, ORDERS)
        assert np.all(curve > 0), event
        assert np.all(np.diff(curve * (ORDERS - 1)) > 0), event  # moments grow with the order


@pytest.mark.parametrize("order", [1.1, 2.0, 300.0])
def test_a_pure_guarantee_of_nearly_nothing(order):
    """To first order a e^2 / 2: nearly every loss is e or -e."""
    share = acc.ApproximateDPEvent(relation="replace_one", epsilon=1e-9, delta_share=0.0)
    laplace = acc.LaplaceEvent(relation="replace_one", l1_sensitivity=1e-9, scale=1.0)
    orders = np.array([order])
    assert share.rdp(1, orders)[0] == pytest.approx(order * 1e-18 / 2, rel=1e-6)
    assert laplace.rdp(1, orders)[0] == pytest.approx(order * 1e-18 / 2, rel=1e-6)


@pytest.mark.parametrize("ratio", [1e-9, 1e-7, 1e-4])
def test_fixed_size_with_hardly_any_contribution(ratio):
    event = acc.FixedSizeGaussianEvent(
        relation="replace_one", max_contribution=(ratio,), noise_std=(1.0,), batch_size=1, num_records=2
    )
    exact = math.log1p(0.5**2 * 4 * math.expm1((2 * ratio) ** 2))
    assert event.rdp(1, np.array([2.0]))[0] >= exact
