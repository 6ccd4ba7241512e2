"""Lasso and elastic net: scikit-learn's solution with much budget, zeros, and settings that are refused."""

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet, Lasso

from tacita.linear_model import PrivateElasticNet, PrivateLasso

SETTINGS = {"delta": 1e-6, "data_norm": 50.0, "target_range": (-100.0, 100.0), "insecure_seed": 0}


def table(n=500, d=6):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    X[:, 1] += X[:, 0]
    return X, X @ np.array([3.0, 0.0, -2.0, 0.0, 0.5, 0.0])[:d] + 3 + 0.1 * rng.standard_normal(n)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("alpha", [0.05, 0.8])
def test_with_much_budget_it_is_that_of_scikit_learn(alpha, intercept):
    X, y = table()
    settings = {**SETTINGS, "epsilon": 1e9, "alpha": alpha, "fit_intercept": intercept}
    lasso = PrivateLasso(**settings).fit(X, y)
    expected = Lasso(alpha=alpha, fit_intercept=intercept, tol=1e-10).fit(X, y)
    assert lasso.coef_ == pytest.approx(expected.coef_, rel=1e-3, abs=1e-3)
    assert lasso.intercept_ == pytest.approx(expected.intercept_, rel=1e-3, abs=1e-3)
    assert ((lasso.coef_ != 0) == (expected.coef_ != 0)).all()
    mixed = PrivateElasticNet(l1_ratio=0.3, **settings).fit(X, y)
    expected = ElasticNet(alpha=alpha, l1_ratio=0.3, fit_intercept=intercept, tol=1e-10).fit(X, y)
    assert mixed.coef_ == pytest.approx(expected.coef_, rel=1e-3, abs=1e-3)


def test_a_penalty_past_the_noise_leaves_the_columns_that_matter():
    X, y = table(20_000)
    found = PrivateLasso(epsilon=1.0, alpha=0.8, **{**SETTINGS, "data_norm": 5.0, "target_range": (-15.0, 20.0)})
    assert set(np.flatnonzero(found.fit(X, y).coef_)) <= {0, 1, 2, 4}
    assert {0, 2} <= set(np.flatnonzero(found.coef_))


def test_the_penalty_is_one_of_the_weights_in_their_own_units():
    """Another declared scale changes the noise, and not what is penalised."""
    X, y = table()
    wide = {"data_norm": 100.0, "target_range": (-150.0, 250.0)}
    first = PrivateLasso(epsilon=1e9, alpha=0.5, **SETTINGS).fit(X, y)
    second = PrivateLasso(epsilon=1e9, alpha=0.5, **{**SETTINGS, **wide}).fit(X, y)
    assert second.coef_ == pytest.approx(first.coef_, rel=1e-2, abs=1e-2)


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_ratios_outside_of_0_and_1_are_refused(ratio):
    X, y = table(50)
    with pytest.raises(ValueError, match="l1_ratio must be"):
        PrivateElasticNet(epsilon=1.0, l1_ratio=ratio, **SETTINGS).fit(X, y)
    with pytest.raises(ValueError, match="alpha must be"):
        PrivateLasso(epsilon=1.0, alpha=-1.0, **SETTINGS).fit(X, y)
