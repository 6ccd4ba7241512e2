"""The private mean: noise in proportion to the spread, heavy tails, the stated noise, and degenerate columns."""

import math

import numpy as np
import pytest
from scipy.stats import chi2

from tacita.linear_model import PrivateMean
from tacita.linear_model.clamped_rows import ClampedRows
from tacita.linear_model.purchases import scale_counts, width_of


def mean(epsilon=1.0, **more):
    return PrivateMean(epsilon=epsilon, delta=1e-6, **{"insecure_seed": 0, **more})


@pytest.mark.parametrize("declared", [None, 2000.0])
def test_the_noise_is_in_proportion_to_the_spread(declared):
    X = 1000 + 2 * np.random.default_rng(0).standard_normal((20_000, 3))
    found = mean(column_scale=declared).fit(X)
    assert found.mean_ == pytest.approx(X.mean(axis=0), abs=0.05)
    assert found.noise_std_.max() < 0.02
    assert found.center_ == pytest.approx(1000, abs=20)


def test_a_mean_of_heavy_tails():
    X = np.exp(np.random.default_rng(0).standard_normal((50_000, 2)))
    assert mean(epsilon=10.0).fit(X).mean_ == pytest.approx(math.exp(0.5), abs=0.05)


def test_the_noise_is_the_stated_one():
    """300 columns of one constant: what differs is the noise of the last release. 15 % is 3.5 deviations away."""
    X = np.full((2000, 300), 5.0)
    found = mean(epsilon=10.0, column_scale=6.0).fit(X)
    ratio = float(np.square((found.mean_ - 5.0) / found.noise_std_).sum())
    assert chi2.ppf(1e-6, 300) < ratio < chi2.ppf(1 - 1e-6, 300)


def test_a_width_balances_noise_and_clamping():
    values = np.concatenate([np.full(900, 3.0), np.full(100, 50.0), [1e6]])
    assert width_of(scale_counts(values), 0.0, 0.5) == 2.0**20
    assert width_of(scale_counts(values), 0.0, 20.0) == 64.0
    assert width_of(scale_counts(values), 2.0, 0.5) == 64.0  # the far bin is hidden
    assert width_of(scale_counts(values), 0.0, 500.0) == 4.0
    assert width_of(scale_counts(values), 1e4, 0.5) == 1.0
    assert width_of(scale_counts(np.array([math.nan])), 0.0, 1.0) == 1.0


@pytest.mark.filterwarnings("error", "ignore:entries of 0, 1")  # of what was released
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 1e300, -1e300, 5e-324])
def test_columns_of_one_value(value):
    for relation in ("zero_out_one", "replace_one"):
        found = mean(neighboring_relation=relation).fit(np.full((50, 2), value))
        assert np.isfinite(found.mean_).all()


def test_a_row_that_is_not_finite_stands_at_the_center():
    X = np.random.default_rng(0).standard_normal((5000, 2)) + 4
    spoiled = X.copy()
    spoiled[3] = math.nan
    assert mean().fit(spoiled).mean_ == pytest.approx(mean().fit(X).mean_, abs=0.05)


def test_a_declared_scale_must_be_positive_and_fit():
    X = np.ones((50, 2))
    with pytest.raises(ValueError, match="column_scale must be"):
        mean(column_scale=[1.0, 0.0]).fit(X)
    with pytest.raises(ValueError, match="or one for each of 2 columns"):
        mean(column_scale=[1.0, 1.0, 1.0]).fit(X)


def test_clamped_rows_that_are_left_out_are_zeros_and_stay_in_the_table_itself():
    given = np.array([[0.5, 3.0], [math.nan, 3.0], [2.0, 4.0]], np.float32)
    rows = ClampedRows(given, np.full(2, 4.0), center=np.array([0.1, 0.2]))
    left = rows.without(np.array([1])).dense(slice(0, 3))
    assert left[1].tolist() == [0.0, 0.0]
    assert left[[0, 2]].tolist() == rows.dense(slice(0, 3))[[0, 2]].tolist()
    assert np.isnan(given[1, 0])  # the table itself is as it was


@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [[0, 1], [1, 0]], ids=["first column", "last column"])
def test_a_row_that_is_not_finite_is_zeros(value, shift, row):
    rows = ClampedRows(np.array([[0.5, 3.0], [[value, 3.0][place] for place in row]]), np.ones(2), shift=shift)
    assert rows.dense(slice(None))[0].tolist() == [0.5, 1.0, 0.25 - shift, 1.0 - shift]
    assert rows.dense(slice(None))[1].tolist() == [0.0, 0.0, -shift, -shift]
