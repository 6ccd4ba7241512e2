"""How many noise bits users add: the values of the specification, and that each number is enough and least."""

import math
from dataclasses import replace

import pytest

from tacita.accounting import DisjointLaw, FullBatchLaw, Spend, epsilon, gaussian_mu
from tacita.convex import ShuffledSumEvent
from tacita.convex.shuffle_calibration import (
    least,
    least_noise_bits,
    median_epsilon,
    paper_median_split,
    scalar_grid,
    scalar_noise_bits,
    vector_grid,
    vector_noise_bits,
    vector_rho,
)
from tacita.errors import UnsupportedEventError

VECTORS = ShuffledSumEvent(
    relation="replace_one",
    sampling=DisjointLaw(own_coin=False),
    users=500,
    coordinates=10,
    grid=23,
    noise_bits=3149,
    bit_prob=0.5,
    l2_bounded=True,
)


@pytest.mark.parametrize(
    ("users", "target", "grid", "bits"),
    [(100, (1.0, 1e-6), 10, (2612, 72)), (1000, (0.5, 1e-6), 32, (10697, 266)), (400, (2.0, 1e-5), 20, (550, 16))],
)
def test_v18_numbers(users, target, grid, bits):
    (bound, delta), (paper, exact) = target, bits
    assert scalar_grid(users) == grid
    found = scalar_noise_bits(users, grid=grid, epsilon=bound, delta=delta, calibration="paper")
    assert found.noise_bits == paper
    assert found.bit_prob < 0.5
    assert scalar_noise_bits(users, grid=grid, epsilon=bound, delta=delta).noise_bits == exact


def test_v18_the_lemma_asks_for_a_threshold_and_a_variance():
    found = scalar_noise_bits(100, grid=10, epsilon=1.0, delta=1e-6, calibration="paper")
    assert 180 * 10**2 * math.log(2e6) / 100 == pytest.approx(2611.56, abs=0.01)
    assert found.bit_prob == pytest.approx(0.499915, abs=1e-6)
    assert found.variance(100) == pytest.approx(653.000, abs=1e-3)


def test_v19_vectors():
    assert vector_rho(1.0, 1e-6) == pytest.approx(0.0166617, abs=1e-7)
    assert vector_grid(500, 10) == 23
    paper = vector_noise_bits(500, 10, epsilon=1.0, delta=1e-6, calibration="paper")
    exact = vector_noise_bits(500, 10, epsilon=1.0, delta=1e-6, calibration="hockey_stick")
    assert (paper.noise_bits, exact.noise_bits) == (162617, 3149)
    assert 10 * paper.variance(500, 2.0) / 500**2 == pytest.approx(6.14809, abs=1e-5)
    assert 10 * exact.variance(500, 2.0) / 500**2 == pytest.approx(0.119055, abs=1e-6)
    allowed = math.sqrt(2 * vector_rho(1.0, 1e-6))
    assert allowed / (1 + 2 * math.sqrt(10) / 23) == pytest.approx(0.143176, abs=1e-6)
    assert allowed / (23 + math.sqrt(10)) == pytest.approx(0.00697748, abs=1e-8)
    central = 10 * (2.0 / (500 * gaussian_mu(1.0, 1e-6))) ** 2  # a curator's noise on the mean, in all coordinates
    assert central == pytest.approx(0.00285567, abs=1e-8)


def test_v20_the_split_for_medians_and_what_it_refuses():
    each, share = paper_median_split(10, epsilon=1.0, delta=1e-6)
    assert (each, share) == (pytest.approx(0.0136341, abs=1e-7), 5e-8)
    assert median_epsilon(each, share, 10) == pytest.approx(0.507538, abs=1e-6)
    assert (10 + 1) * share == pytest.approx(5.5e-7)
    loose = paper_median_split(10, epsilon=2 * math.log(2e7), delta=1e-6)
    assert median_epsilon(*loose, 10) == pytest.approx(30.5757, abs=1e-4)
    with pytest.raises(ValueError, match=r"together spend 1466\.15, not 134\.49"):
        paper_median_split(10, epsilon=8 * math.log(2e7), delta=1e-6)
    with pytest.raises(ValueError, match=r"together spend 51\.6279"):
        paper_median_split(1, epsilon=2 * math.log(2e6), delta=1e-6)


@pytest.mark.parametrize("calibration", ["paper", "hockey_stick"])
def test_the_event_costs_less_than_both_calibrations_promise(calibration):
    bits = vector_noise_bits(500, 10, epsilon=1.0, delta=1e-6, calibration=calibration)
    event = replace(VECTORS, noise_bits=bits.noise_bits, bit_prob=bits.bit_prob)
    assert epsilon([Spend(event, 1)], 1e-6).epsilon < 0.2


def test_the_least_number_is_enough_and_one_less_is_not():
    found = least_noise_bits(VECTORS, queries=1, epsilon=1.0, delta=1e-6)
    less = replace(found, noise_bits=found.noise_bits - 1)
    assert epsilon([Spend(found, 1)], 1e-6).epsilon <= 1.0 < epsilon([Spend(less, 1)], 1e-6).epsilon
    assert found.noise_bits == 113  # 3149 by each coordinate alone, 162617 by the paper's lemma


def test_a_sum_of_numbers_costs_what_its_exact_calibration_says():
    """P_1D: the event's pair is exact, so 72 bits are enough for epsilon 1 and 71 are not."""
    one = replace(VECTORS, users=100, coordinates=1, grid=10, noise_bits=72)
    assert epsilon([Spend(one, 1)], 1e-6).epsilon == pytest.approx(0.996057, abs=1e-4)
    assert epsilon([Spend(replace(one, noise_bits=71), 1)], 1e-6).epsilon > 1


def test_users_who_are_asked_often_need_more_bits():
    often = replace(VECTORS, sampling=FullBatchLaw())
    once = least_noise_bits(often, queries=1, epsilon=1.0, delta=1e-6).noise_bits
    ten = least_noise_bits(often, queries=10, epsilon=1.0, delta=1e-6).noise_bits
    assert 9 * once < ten < 11 * once


def test_noise_of_honest_users_alone_counts():
    half = least_noise_bits(replace(VECTORS, honest_fraction=0.5), queries=1, epsilon=1.0, delta=1e-6)
    assert half.noise_bits == pytest.approx(2 * 113, abs=1)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"epsilon": 16.0, "calibration": "paper"}, "epsilon <= 15"),
        ({"grid": 9, "calibration": "paper"}, "grid >= sqrt"),
        ({"calibration": "tight"}, "calibration must be one of"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"delta": 1.0}, "delta must be"),
    ],
)
def test_wrong_settings_are_refused(wrong, match):
    with pytest.raises(ValueError, match=match):
        scalar_noise_bits(**{"users": 100, "grid": 10, "epsilon": 1.0, "delta": 1e-6, **wrong})


def test_what_no_number_of_bits_reaches_is_refused():
    with pytest.raises(UnsupportedEventError, match="no number of noise bits"):
        least(lambda bits: bits > 2**30)
    assert least(lambda bits: bits >= 1000) == 1000
