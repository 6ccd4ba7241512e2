"""The median of means in numbers: reference values, its deviation, and what clipping a coordinate costs."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tacita.convex import MedianOfMeans
from tacita.convex.median_bounds import coordinate_threshold, median_error, number_of_groups
from tacita.gradients.given import GivenEngine


def error(tau, m, d, s, eps):
    return median_error(
        max_coordinate=tau, coordinate_moment=1.0, order=2, batch_size=s, num_groups=m, dim=d, rho=eps**2 / 2
    )


def test_v5():
    assert error(2, 5, 10, 100, 1).mean_noise_std ** 2 == pytest.approx(0.4)
    assert error(1.5, 7, 3, 70, 0.5).mean_noise_std ** 2 == pytest.approx(1.08)
    assert error(2, 6, 10, 100, 1).mean_noise_std == pytest.approx(0.5 * 6 / 5 * math.sqrt(0.4))  # the midpoint
    threshold = coordinate_threshold(
        coordinate_moment=1, order=2, batch_size=1000, num_groups=5, dim=10, rho=0.5, risk_lipschitz=1
    )
    assert threshold == pytest.approx(7.95271, rel=5e-6)
    assert math.ceil(20 * math.log(4 * 10 / 0.01)) == 166
    assert number_of_groups(10, failure_probability=0.01) == 167


def test_the_threshold_balances_clipping_and_noise():
    tau = coordinate_threshold(
        coordinate_moment=2.0, order=3, batch_size=1000, num_groups=5, dim=10, rho=0.5, risk_lipschitz=0.01
    )
    noise = median_error(
        max_coordinate=tau, coordinate_moment=2.0, order=3, batch_size=1000, num_groups=5, dim=10, rho=0.5
    ).mean_noise_std
    assert math.sqrt(10) * 2.0 * (2 / tau) ** 2 == pytest.approx(math.sqrt(10) * noise)
    assert (
        coordinate_threshold(
            coordinate_moment=2.0, order=3, batch_size=10, num_groups=5, dim=10, rho=0.5, risk_lipschitz=50
        )
        == 100
    )


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("tau", [1.0, 3.0, 8.0])
def test_the_bias_of_a_clipped_coordinate(k, tau):
    """A shifted exponential with mean tau / 2: the tail that is cut off, by quadrature."""
    law = stats.expon(loc=tau / 2 - 1)
    gamma = law.expect(lambda x: abs(x - tau / 2) ** k)
    cut = law.expect(lambda x: max(x - tau, 0.0), lb=tau)
    bound = median_error(
        max_coordinate=tau, coordinate_moment=gamma, order=k, batch_size=10, num_groups=1, dim=1, rho=0.5
    ).bias
    assert 0 < cut <= bound


def test_the_deviation_holds_where_a_mean_fails():
    """Student-t rows with 2.5 degrees of freedom: the median is never as far off as stated, over 300 batches."""
    m, s, tau = 9, 180, 20.0
    rows = np.random.default_rng(0).standard_t(2.5, (300, s, 2)) * math.sqrt(0.5 / 2.5) + 0.3
    found, _ = MedianOfMeans(max_coordinate=tau, num_groups=m)(GivenEngine(torch.from_numpy(rows)), None)
    off = (found["all"]["theta"] / s - 0.3).norm(dim=1)
    bound = error(tau, m, 2, s, 1).deviation
    assert off.max() < bound
    assert off.max() > 0.02 * bound
