"""Divergences of shifted binomial counts: against sums over all counts, and against values of the specification."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

from tacita.convex._shifted_binomial import ShiftedBinomialPair, _Sums, binomial_masses, shift_deltas, shift_epsilon

CASES = [(20, 0.5, 3), (50, 0.3, 4), (7, 0.5, 7), (1, 0.5, 1), (60, 0.45, 1), (50, 0.7, 4)]
EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 3.0])


def by_hand(trials, p, shift, epsilon):
    """Both directions of the hockey-stick divergence, in exact fractions but for e^epsilon."""
    chance, factor = Fraction(p), Fraction(math.exp(epsilon))
    mass = {y: math.comb(trials, y) * chance**y * (1 - chance) ** (trials - y) for y in range(trials + 1)}
    counts = range(trials + shift + 1)
    there = sum(max(Fraction(0), mass.get(y, Fraction(0)) - factor * mass.get(y - shift, Fraction(0))) for y in counts)
    back = sum(max(Fraction(0), mass.get(y - shift, Fraction(0)) - factor * mass.get(y, Fraction(0))) for y in counts)
    return float(max(there, back))


@pytest.mark.parametrize(("trials", "p", "shift"), CASES)
def test_it_is_the_sum_over_all_counts_rounded_up(trials, p, shift):
    exact = np.array([by_hand(trials, p, shift, epsilon) for epsilon in EPSILONS])
    found = shift_deltas(trials, p, shift, EPSILONS)
    assert (found >= exact).all()
    assert found == pytest.approx(exact, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(("trials", "p", "shift"), [(20, 0.5, 3), (50, 0.3, 4), (60, 0.45, 1), (50, 0.7, 4)])
def test_epsilon_is_where_delta_is_reached(trials, p, shift):
    for epsilon in EPSILONS[1:]:
        delta = by_hand(trials, p, shift, epsilon)
        assert shift_epsilon(trials, p, shift, delta) == pytest.approx(epsilon, abs=1e-6)
        assert shift_epsilon(trials, p, shift, delta) >= epsilon - 1e-12


def test_masses_are_those_of_scipy_and_nothing_is_lost():
    masses, outside = binomial_masses(5000, 0.4)
    mode = int(np.argmax(masses))
    assert masses == pytest.approx(binom.pmf(np.arange(len(masses)) - mode + 2000, 5000, 0.4), rel=1e-9)
    assert outside < 1e-40


def test_v18_values_of_the_specification():
    """V18: the hockey-stick epsilon of the whole shift, and delta on both sides of the least number of bits."""
    assert shift_epsilon(2612 * 100, 0.49991546572250367, 10, 1e-6) == pytest.approx(0.145610, abs=1e-6)
    assert shift_deltas(72 * 100, 0.5, 10, np.array([1.0]))[0] == pytest.approx(9.27049e-7, rel=1e-5)
    assert shift_deltas(71 * 100, 0.5, 10, np.array([1.0]))[0] == pytest.approx(1.07138e-6, rel=1e-5)
    assert shift_epsilon(72 * 100, 0.5, 10, 1e-6) == pytest.approx(0.996057, abs=1e-6)
    assert shift_epsilon(10697 * 1000, 0.4999973439964072, 32, 1e-6) == pytest.approx(0.0693181, abs=1e-7)
    assert shift_epsilon(550 * 400, 0.4993393354989617, 20, 1e-5) == pytest.approx(0.286432, abs=1e-6)


def test_no_overlap_is_no_privacy_and_no_shift_costs_nothing():
    assert shift_epsilon(3, 0.5, 4, 0.5) == math.inf
    assert shift_epsilon(3, 0.5, 0, 1e-9) == 0.0
    assert shift_deltas(3, 0.5, 0, EPSILONS).tolist() == [0.0] * 5


def test_more_shift_costs_more_and_more_bits_cost_less():
    by_shift = [shift_epsilon(1000, 0.5, shift, 1e-5) for shift in range(1, 12)]
    assert by_shift == sorted(by_shift)
    by_bits = [shift_epsilon(bits, 0.5, 5, 1e-5) for bits in (400, 800, 1600, 3200)]
    assert by_bits == sorted(by_bits, reverse=True)


def test_the_pair_has_the_larger_delta_of_both_directions():
    pair = ShiftedBinomialPair(50, 0.3, 4)
    assert pair.deltas(EPSILONS) == pytest.approx([by_hand(50, 0.3, 4, epsilon) for epsilon in EPSILONS], rel=1e-8)


def test_what_is_not_computed_counts_in_full():
    """Mass outside, and the rounding of a difference of two sums that are nearly equal."""
    at = math.log(5.0)
    one = _Sums(np.array([0.5, 0.75]), np.array([0.1, 0.75]), np.array([1.7, -1.0]), outside=0.25)
    (found,) = one.deltas(np.array([at]))
    assert 0.25 + 0.9e-13 * 0.5 <= found <= 0.25 + 1e-12
    assert at <= one.epsilon(found) + 1e-9
    assert one.epsilon(0.25) > at
