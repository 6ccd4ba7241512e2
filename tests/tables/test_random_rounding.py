"""Random rounding keeps means exactly, and a row is in one bin whatever it holds."""

import numpy as np
import pytest

from tacita.tables.score import LARGEST_ERROR, _error_edges, _target_edges, pairs, rounded

COINS = (np.arange(1000) + 0.5) / 1000  # every coin once: means over them are exact to 1e-3 of an interval's width
ERRORS, TARGETS = _error_edges(LARGEST_ERROR), _target_edges(LARGEST_ERROR)


@pytest.mark.parametrize("value", [0.0, 1e-6, 0.3, 1.0, 2.99, 3.0, 7.7, 9.0])
def test_the_mean_is_kept(value):
    found = rounded(np.full(1000, value), ERRORS, COINS[None])
    assert ERRORS[found].mean() == pytest.approx(value, abs=1e-3 * 6)
    assert len(set(found.tolist())) <= 2


@pytest.mark.parametrize("value", [-3.0, -2.2, -1.0, -0.1, 0.0, 0.05, 0.4, 1.7, 3.0])
def test_two_coins_keep_the_mean_and_that_of_the_squares(value):
    coins = np.stack([part.ravel() for part in np.meshgrid(COINS, COINS)])
    means = pairs(TARGETS)[:, rounded(np.full(coins.shape[1], value), TARGETS, coins)].mean(axis=1)
    assert means == pytest.approx([value, value**2], abs=1e-3 * 8)


def test_values_between_two_edges_are_where_they_should():
    assert rounded(np.array([2.0]), np.array([0.0, 1.0, 3.0]), np.array([[0.49], [0.5]])).tolist() == [3]
    assert pairs(np.array([1.0, 3.0])).tolist() == [[1, 2, 3], [1, 3, 9]]


@pytest.mark.parametrize("odd", [1e300, -1e300, np.inf, -np.inf, np.nan])
def test_what_is_far_off_or_no_number_is_in_one_bin_as_well(odd):
    found = rounded(np.array([odd]), TARGETS, np.array([[0.5], [0.5]]))
    assert found.shape == (1,)
    assert 0 <= found[0] < 2 * len(TARGETS) - 1
