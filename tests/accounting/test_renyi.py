"""Rényi curves where the moments are so near 1 that their logarithms drown in its rounding."""

import itertools
import math
import os
import warnings

import mpmath
import numpy as np
import pytest
from scipy.special import comb, gammaln, logsumexp

from tacita import accounting as acc
from tacita.accounting import _renyi, _renyi_grid
from tacita.accounting._renyi import Mixture, above_line, renyi_divergences
from tacita.accounting.renyi_curve import ORDERS

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
        *(acc.GaussianSumEvent(relation=each, sampling=acc.PoissonLaw(1e-6), **ratio) for each in acc.RELATIONS),
        acc.GaussianSumEvent(relation="add_or_remove_one", sampling=acc.PoissonUnitLaw(1e-6, 3), **ratio),
        acc.GaussianSumEvent(relation="replace_one", sampling=acc.FixedSizeLaw(1, 10**6), **ratio),
        acc.LaplaceEvent(relation="replace_one", l1_sensitivity=1e-10, scale=1.0),
        acc.ApproximateDPEvent(relation="replace_one", epsilon=1e-10, delta_share=0.0),
    ]
    for event in events:
        curve = event.guarantee(1).rdp(ORDERS)
        assert np.all(curve > 0), event
        assert np.all(np.diff(curve * (ORDERS - 1)) > 0), event  # moments grow with the order


@pytest.mark.parametrize("order", [1.1, 2.0, 300.0])
def test_a_pure_guarantee_of_nearly_nothing(order):
    """To first order a e^2 / 2: nearly every loss is e or -e."""
    share = acc.ApproximateDPEvent(relation="replace_one", epsilon=1e-9, delta_share=0.0)
    laplace = acc.LaplaceEvent(relation="replace_one", l1_sensitivity=1e-9, scale=1.0)
    orders = np.array([order])
    assert share.guarantee(1).rdp(orders)[0] == pytest.approx(order * 1e-18 / 2, rel=1e-6)
    assert laplace.guarantee(1).rdp(orders)[0] == pytest.approx(order * 1e-18 / 2, rel=1e-6)


@pytest.mark.parametrize("ratio", [1e-9, 1e-7, 1e-4])
def test_fixed_size_with_hardly_any_contribution(ratio):
    event = acc.GaussianSumEvent(
        relation="replace_one", max_contribution=(ratio,), noise_std=(1.0,), sampling=acc.FixedSizeLaw(1, 2)
    )
    exact = math.log1p(0.5**2 * math.expm1((2 * ratio) ** 2))  # of (mixture, Gaussian), a pair that does occur
    assert exact * (1 - 1e-12) <= event.guarantee(1).rdp(np.array([2.0]))[0] <= exact * (1 + ratio + 1e-8)


# Every order, fractional or whole: against forty digits, and against the closed form at whole orders.

PAIRS = {
    "mixture": lambda q, d: (sampled(q, d), CENTRE),
    "centre": lambda q, d: (CENTRE, sampled(q, d)),
    "replaced": lambda q, d: (sampled(q, d), sampled(q, -d)),
    "unit": lambda q, d: (Mixture((0.0, d, 2 * d), ((1 - q) ** 2, 2 * q * (1 - q), q * q)), CENTRE),
}
AUDIT = bool(os.environ.get("TACITA_AUDIT"))
CASES = [
    ("mixture", 1e-8, 0.02, 1.5),
    ("mixture", 1e-8, 3.3, 1.7),
    ("mixture", 0.97, 1.0, 1.01),
    ("mixture", 1e-3, 0.14, 33.3),
    ("centre", 1e-3, 3.3, 3.7),
    ("centre", 0.3, 0.5, 33.3),
    ("replaced", 1e-8, 1.0, 1.5),
    ("replaced", 0.3, 3.3, 3.7),
    ("unit", 1e-3, 1.0, 3.7),
    ("unit", 0.3, 0.02, 120.4),
]
if AUDIT:
    GRID = [(q, d, a) for q in (1e-8, 1e-3, 0.3, 0.97) for d in (3.3, 1.0, 0.14, 0.02) for a in (1.01, 1.5, 3.7, 33.3)]
    CASES += [(pair, *case) for pair in PAIRS for case in GRID if case[1] * case[2] < 60]


def by_mpmath(upper, lower, order):
    """The divergence, from the integral of the moment's excess in forty digits."""
    with mpmath.workdps(40):
        a = mpmath.mpf(order)

        def ratio(mixture, x):
            pairs = zip(mixture.shifts, mixture.weights, strict=True)
            return mpmath.fsum(mpmath.mpf(w) * mpmath.exp(s * x - mpmath.mpf(s) ** 2 / 2) for s, w in pairs)

        def excess(x):
            q = ratio(lower, x)
            t = ratio(upper, x) / q
            return mpmath.npdf(x) * q * (t**a - 1 - a * (t - 1))

        modes = [order * x - (order - 1) * y for x in upper.shifts for y in lower.shifts]
        ends = [min(*modes, *lower.shifts) - 26, max(*modes, *lower.shifts) + 26]
        points = np.linspace(*ends, int(ends[1] - ends[0]) + 1).tolist()
        parts = (mpmath.quad(excess, pair, maxdegree=5) for pair in itertools.pairwise(points))
        return mpmath.log1p(mpmath.fsum(parts)) / (a - 1)


@pytest.mark.parametrize(("pair", "rate", "shift", "order"), CASES)
def test_a_curve_is_that_of_mpmath(pair, rate, shift, order):
    upper, lower = PAIRS[pair](rate, shift)
    found = renyi_divergences(upper, lower, (order,))[0]
    assert 0 <= float(found / by_mpmath(upper, lower, order) - 1) < 1e-8


def binomial_logs(rate, shift, order):
    k = np.arange(2.0, order + 1)
    rest = np.where(order - k > 0, (order - k) * math.log1p(-rate), 0.0)
    exponents = k * (k - 1) * shift**2 / 2
    logs = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1) + k * math.log(rate) + rest
    return np.logaddexp(0.0, logsumexp(logs + exponents + np.log(-np.expm1(-exponents)))) / (order - 1)


@pytest.mark.parametrize("rate", [1e-8, 1e-4, 0.01, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("std", [0.3, 0.5, 1.0, 2.0, 10.0, 50.0])
def test_whole_orders_are_the_binomial_sum(events, rate, std):
    """The whole curve of an event, and the other direction below it, finite at every order, without a warning."""
    whole = ORDERS[(np.round(ORDERS) == ORDERS) & (ORDERS >= 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curve = events.poisson(rate, std).guarantee(1).rdp(ORDERS)
        back = renyi_divergences(CENTRE, sampled(rate, 1 / std), tuple(ORDERS))
        replaced = events.poisson(rate, std, "replace_one").guarantee(1).rdp(ORDERS)
    exact = np.array([binomial_logs(rate, 1 / std, order) for order in whole])
    found = curve[np.isin(ORDERS, whole)]
    assert np.all(exact <= found)
    assert np.all(found <= exact * (1 + 1e-8))
    assert np.all(back <= curve * (1 + 1e-8))  # Mironov, Talwar and Zhang (2019), Theorem 5
    assert np.all(np.isfinite(replaced))
    assert np.all(replaced >= curve)
    assert np.all(np.diff(curve) > 0)  # divergences rise with their order
    assert np.all(np.diff(replaced) > 0)


@pytest.mark.parametrize("relation", acc.RELATIONS)
def test_orders_between_whole_ones_have_a_bound(events, relation):
    orders = np.array([1.001, 1.5, 2.0, 63.0, 63.5, 64.0, 1024.5, 2047.9])
    for rate, std in ((1e-8, 0.3), (0.01, 1.0), (0.5, 50.0)):
        curve = events.poisson(rate, std, relation).guarantee(1).rdp(orders)
        assert np.all(np.isfinite(curve))
        assert np.all(np.diff(curve) > 0)
        assert np.all(np.diff(curve * (orders - 1), 2)[3:5] >= 0)  # log-moments are convex


def test_what_is_left_out_is_added(monkeypatch):
    """With windows that cut off two thirds of a Gaussian, the bound is still one."""
    monkeypatch.setattr(_renyi, "DROP", 0.1)
    found = renyi_divergences(Mixture((1.0,), (1.0,)), CENTRE, (1.5, 4.0))
    assert np.all(found >= np.array([0.75, 2.0]))


def test_steps_that_are_too_wide_are_seen():
    """The bound of the trapezoidal rule is not idle: a step a few times as wide is off by more."""
    upper, lower, order = CENTRE, sampled(0.2, 3.0), np.array([40.0])
    step = _renyi_grid.steps(upper, lower, order, 34.0)[0]

    def total(h):
        x = (np.arange(-40 // h, 40 // h) + 1 / 3) * h
        return np.sum(np.exp(_renyi_grid.log_integrand(upper, lower, order, x))) * h

    assert total(step) == pytest.approx(total(step / 5), rel=1e-13)
    assert abs(total(12 * step) / total(step / 5) - 1) > 1e-9


def test_rounding_that_would_blur_the_windows_leaves_no_bound():
    assert np.isinf(renyi_divergences(Mixture((0.0, 1e6), (0.5, 0.5)), CENTRE, (2.0,))).all()
