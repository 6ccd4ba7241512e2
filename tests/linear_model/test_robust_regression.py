"""Huber and quantile regression: the non-private optimum with much budget, far targets, and quantiles that are kept."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import HuberRegressor, QuantileRegressor

from tacita.linear_model import PrivateHuberRegressor, PrivateQuantileRegressor

SETTINGS = {"delta": 1e-6, "data_norm": 4.0, "target_range": (-9.0, 15.0), "insecure_seed": 0}


def table(n=2000):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    return X, X @ [1.0, 2.0, -1.0] + 3 + rng.standard_t(2, n)


def optimum(X, y, loss, alpha):
    """Return the minimum of the sum of losses of residuals, with a penalty on the weight."""
    wide = np.hstack([X, np.ones((len(X), 1))])

    def objective(w):
        return loss(y - wide @ w).mean() + alpha / len(y) * np.square(w[:-1]).sum() / 2

    return minimize(objective, np.zeros(wide.shape[1]), method="BFGS", options={"gtol": 1e-7}).x


@pytest.mark.parametrize(("threshold", "alpha"), [(0.5, 0.0), (2.0, 0.0), (2.0, 500.0)])
def test_with_much_budget_it_is_the_huber_regression(threshold, alpha):
    X, y = table()
    found = PrivateHuberRegressor(epsilon=1e9, threshold=threshold, alpha=alpha, steps=200, **SETTINGS).fit(X, y)

    def huber(r):
        return np.where(np.abs(r) <= threshold, r**2 / 2, threshold * np.abs(r) - threshold**2 / 2)

    expected = optimum(X, y, huber, alpha)
    assert found.coef_ == pytest.approx(expected[:-1], abs=0.02)
    assert found.intercept_ == pytest.approx(expected[-1], abs=0.02)


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_a_quantile_is_kept(quantile):
    """A smaller clipping threshold would shrink the larger side of the loss alone, and cover less."""
    X, y = table(20_000)
    found = PrivateQuantileRegressor(epsilon=1.0, quantile=quantile, **SETTINGS).fit(X, y)
    assert found.ledger_.sessions[-1].queries_made == found.plan_.steps == 49
    assert (y <= found.predict(X)).mean() == pytest.approx(quantile, abs=0.02)
    plain = QuantileRegressor(quantile=quantile, alpha=0.0).fit(X[:3000], y[:3000])
    assert found.coef_ == pytest.approx(plain.coef_, abs=0.2)


@pytest.mark.parametrize("quantile", [0.1, 0.25, 0.9])
def test_a_quantile_is_kept_where_residuals_are_a_25th_of_the_targets(quantile):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((8000, 5))
    y = X @ [1.0, 2.0, -1.0, 0.5, 3.0] + 0.1 * rng.standard_normal(8000)
    settings = {**SETTINGS, "data_norm": 2.3, "target_range": (-9.0, 9.0)}
    for epsilon in (1.0, 10.0):
        found = PrivateQuantileRegressor(epsilon=epsilon, quantile=quantile, **settings).fit(X, y)
        assert (y <= found.predict(X)).mean() == pytest.approx(quantile, abs=0.03)


def test_a_penalty_shrinks_a_quantile_as_it_says():
    X, y = table()
    found = PrivateQuantileRegressor(epsilon=1e9, alpha=400.0, steps=240, **SETTINGS).fit(X, y)
    width = 0.005 * 12

    def pinball(r):  # the median's, with its kink rounded between -width and width
        return np.where(np.abs(r) <= width, r**2 / (4 * width) + width / 4, np.abs(r) / 2)

    assert found.coef_ == pytest.approx(optimum(X, y, pinball, 400.0)[:-1], abs=0.02)


def test_far_targets_move_little():
    X, y = table(20_000)
    spoiled = np.where(np.arange(len(y)) % 50 == 0, 1e6, y)
    found = PrivateHuberRegressor(epsilon=1.0, **SETTINGS).fit(X, spoiled)
    assert found.coef_ == pytest.approx([1.0, 2.0, -1.0], abs=0.2)
    assert found.coef_ == pytest.approx(HuberRegressor(alpha=0.0).fit(X, y).coef_, abs=0.2)


@pytest.mark.parametrize("threshold", [1e-300, 1e300])
def test_extreme_thresholds_give_finite_numbers(threshold):
    X, y = table(200)
    found = PrivateHuberRegressor(epsilon=1.0, threshold=threshold, steps=5, **SETTINGS).fit(X, y)
    assert np.isfinite(found.coef_).all()


def test_fewer_steps_than_phases_are_made():
    X, y = table(100)
    for steps in (1, 2, 7):
        found = PrivateQuantileRegressor(epsilon=1.0, steps=steps, **SETTINGS).fit(X, y)
        assert found.ledger_.sessions[-1].queries_made == found.plan_.steps == steps


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (PrivateHuberRegressor, {"threshold": 0.0}, "threshold must be"),
        (PrivateQuantileRegressor, {"quantile": 1.0}, "quantile must be"),
        (PrivateHuberRegressor, {"max_grad_norm": 1e38}, "max_grad_norm must be at most"),
    ],
)
def test_settings_are_refused(kind, settings, message):
    X, y = table(50)
    with pytest.raises(ValueError, match=message):
        kind(epsilon=1.0, **SETTINGS, **settings).fit(X, y)


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_gradients_are_clipped_where_the_scaled_loss_is_steepest(quantile):
    """On both sides: a quantile below 1/2 is steeper below, and one above it is steeper above."""
    model = PrivateQuantileRegressor(quantile=quantile)
    loss, _ = model._scaled_loss(2.0, "preconditioned")
    steepest = loss.derivative(torch.tensor([[-1e3], [1e3]]), torch.zeros(2)).abs().max().item()
    assert model._max_derivative == pytest.approx(steepest)
