"""Units with several rows: the cap, and coins that belong to one unit alone."""

import numpy as np
import pytest

from tacita.random import Key
from tacita.sampling.units import unit_codes, unit_words, within_cap


def kept(units, cap, seed=0):
    return within_cap(*unit_codes(units), cap, Key.insecure(seed))


@pytest.mark.parametrize("cap", [1, 2, 3, 7])
def test_no_unit_keeps_more_than_the_cap_and_none_less_than_it_may(cap):
    units = [f"u{size}" for size in range(1, 9) for _ in range(size)]  # units of 1 to 8 rows
    found = kept(units, cap)
    for size in range(1, 9):
        assert sum(k for k, unit in zip(found, units, strict=True) if unit == f"u{size}") == min(size, cap)


def test_the_rows_of_two_units_are_chosen_by_coins_of_their_own():
    """With one coin for all, units of equally many rows would keep the same places."""
    alike = [
        np.array_equal(*kept(["a"] * 6 + ["b"] * 6, 3, seed).reshape(2, 6))  # 1 of 20 by chance
        for seed in range(400)
    ]
    assert 3 < sum(alike) < 50  # 20 expected, standard deviation 4.4


def test_a_row_that_does_not_count_is_in_no_choice():
    codes, names = np.array([0, -1, 0, -1, 0]), ["a"]
    for seed in range(20):
        found = within_cap(codes, names, 2, Key.insecure(seed))
        assert found.sum() == 2
        assert not found[[1, 3]].any()
    assert (unit_words(codes, names, Key.insecure(0))[[1, 3]] == 0).all()
