"""One Poisson query in closed form: exact at every rate, and its inverse."""

import mpmath
import numpy as np
import pytest

from tacita.accounting import FullBatchLaw, GaussianSumEvent, PoissonLaw, Spend, delta, epsilon, privacy_curve

CASES = [(1e-9, 0.3), (1e-9, 0.47), (1e-9, 100.0), (1e-6, 1.0), (0.02, 1.0), (0.5, 3.0), (1 - 1e-9, 1.0)]


def once(rate, noise, relation="add_or_remove_one"):
    event = GaussianSumEvent(relation=relation, sampling=PoissonLaw(rate), max_contribution=(1.0,), noise_std=(noise,))
    return [Spend(event, 1)]


def exact(rate, noise, eps, *, swapped=False):
    """Return delta to 60 digits from the two densities: the loss rises in x, so delta is a difference of tails."""
    with mpmath.workdps(60):
        q, mu, eps = mpmath.mpf(rate), 1 / mpmath.mpf(noise), mpmath.mpf(eps)
        if swapped:  # N(0) against the mixture: losses below ln(1 / (1 - q))
            inside = (mpmath.exp(-eps) - (1 - q)) / q
            if inside <= 0:
                return 0.0
            at = mpmath.log(inside) / mu + mu / 2
            mixed = (1 - q) * mpmath.ncdf(at) + q * mpmath.ncdf(at - mu)
            return float(mpmath.ncdf(at) - mpmath.exp(eps) * mixed)
        at = mpmath.log((mpmath.exp(eps) - (1 - q)) / q) / mu + mu / 2
        return float((1 - q) * mpmath.ncdf(-at) + q * mpmath.ncdf(mu - at) - mpmath.exp(eps) * mpmath.ncdf(-at))


@pytest.mark.parametrize("relation", ["add_or_remove_one", "zero_out_one"])
@pytest.mark.parametrize(("rate", "noise"), CASES)
def test_delta_is_exact_and_never_below(rate, noise, relation):
    spends = once(rate, noise, relation)
    for eps in (1e-12, 1e-9, 1e-6, 1e-3, 0.3, 2.0):
        found, true = delta(spends, eps).delta, exact(rate, noise, eps)
        assert true <= found <= true * (1 + 1e-6) + 1e-300
        assert exact(rate, noise, eps, swapped=True) <= found


@pytest.mark.parametrize(("rate", "noise"), CASES)
def test_epsilon_is_its_inverse(rate, noise):
    spends, whole = once(rate, noise), exact(rate, noise, 1e-40)
    for share in (0.9, 0.3, 1e-2, 1e-4):
        found = epsilon(spends, share * whole).epsilon
        assert delta(spends, found).delta == pytest.approx(share * whole, rel=1e-5)
        assert delta(spends, found).delta <= share * whole


def test_the_curve_is_the_same():
    curve = privacy_curve(once(1e-9, 0.3))
    assert curve.whole
    for eps in (0.0, 1e-6, 1e-2):
        assert float(curve.deltas(np.array([eps]))[0]) == pytest.approx(delta(once(1e-9, 0.3), eps).delta, rel=1e-9)


def test_no_sampling_is_the_gaussian_query():
    full = GaussianSumEvent(
        relation="add_or_remove_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(1.0,)
    )
    assert delta(once(1 - 1e-12, 1.0), 1.0).delta == pytest.approx(delta([Spend(full, 1)], 1.0).delta, rel=1e-9)
