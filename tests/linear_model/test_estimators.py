"""The estimators: scikit-learn's checks, what is charged, what neighbours see, bad input, ledgers and copies."""

import copy
import math
import pickle
import re
import traceback
import warnings
from types import SimpleNamespace
from typing import Any, ClassVar

import joblib
import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import tacita
from tacita.accounting import gaussian_epsilon
from tacita.errors import LedgerError
from tacita.linear import SecondMomentEvent
from tacita.linear_model import (
    PrivateElasticNet,
    PrivateHuberRegressor,
    PrivateLasso,
    PrivateLinearRegression,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateMean,
    PrivatePCA,
    PrivateQuantileRegressor,
    PrivateRidge,
    PrivateStandardScaler,
    classes,
)
from tacita.linear_model.budget import FitBudget
from tacita.linear_model.purchases import class_counts, scale_counts, scale_of

DELTA = 1e-6
CLASSIFIERS = (PrivateLogisticRegression, PrivateLinearSVC)
ROBUST = (PrivateHuberRegressor, PrivateQuantileRegressor)
REGRESSORS = (PrivateLinearRegression, PrivateRidge, PrivateElasticNet, PrivateLasso, *ROBUST)
MODELS = (*CLASSIFIERS, *REGRESSORS)
COLUMNWISE = (PrivateStandardScaler, PrivateMean)
KINDS = (*MODELS, *COLUMNWISE)
SHRUNK = (PrivateElasticNet, PrivateLasso)  # their default alpha, scikit-learn's, hides most of a small data set
SKIPPED = {
    "check_array_api_input": "SCIPY_ARRAY_API is not set",
}
EXPECTED = {
    "check_supervised_y_no_nan": "a target that is not finite contributes nothing: an error would tell that it is there"
}
WEIGHTED = {
    "check_all_zero_sample_weights_error": "weights are private: an error would tell what they are",
    "check_sample_weight_equivalence_on_dense_data": "a row of weight 0 is still one of a public number of rows",
    "check_sample_weight_equivalence_on_sparse_data": "the same",
}


def data(n=4000, d=4, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    scores = X @ rng.standard_normal((d, classes)) + 0.3 * rng.standard_normal((n, classes))
    return X, scores.argmax(axis=1), X @ np.arange(1, d + 1) + 3 + 0.1 * rng.standard_normal(n)


def made(kind, epsilon=1.0, **more):
    more.setdefault("insecure_seed", 0)
    if kind in SHRUNK:
        more.setdefault("alpha", 0.01)
    return kind(epsilon=epsilon, delta=DELTA, **more)


def made_without_noise(kind, **more):
    return made(kind, epsilon=1e8, data_norm=12.0, max_sample_weight=4.0, **more)


def targets_of(kind, X, labels, numbers):
    return labels if kind in CLASSIFIERS else numbers if kind in REGRESSORS else None


def learned(model):
    """Return what a fit found, whatever the estimator calls it."""
    name = {PrivateStandardScaler: "scale_", PrivateMean: "mean_"}.get(type(model), "coef_")
    return getattr(model, name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_checks_of_scikit_learn(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fewer = {"steps": 12} if kind in (*CLASSIFIERS, *ROBUST) else {}
        weighted = {"max_sample_weight": 5.0} if kind in MODELS else {}
        expected = (EXPECTED if kind in REGRESSORS else {}) | (WEIGHTED if kind in MODELS else {})
        model = made(kind, epsilon=100.0, **fewer, **weighted)
        found = check_estimator(model, on_fail=None, on_skip=None, expected_failed_checks=expected)
    others = {one["check_name"]: one["exception"] for one in found if one["status"] in ("failed", "skipped")}
    assert others.keys() <= SKIPPED.keys(), others
    assert len(found) >= 40


@pytest.mark.parametrize("kind", [PrivateLogisticRegression, PrivateRidge])
def test_at_a_small_epsilon_the_checks_fail_for_a_reason_that_is_said(kind):
    """At epsilon 5 the 10 to 30 rows of most checks are too few to buy classes from."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(made(kind, epsilon=5.0), on_fail=None, on_skip=None)
    failed = [one for one in found if one["status"] == "failed" and one["check_name"] not in EXPECTED]
    said = {one["check_name"]: "".join(traceback.format_exception(one["exception"])) for one in failed}
    unsaid = [name for name, words in said.items() if not re.search(r"Pass classes=|needs max_sample_weight", words)]
    assert not unsaid, {name: said[name] for name in unsaid}


def test_classes_that_noise_would_hide_are_refused_before_anything_is_spent():
    X, labels, _ = data(50)
    ledger = shared()
    with pytest.raises(
        ValueError, match=r"from 50 rows at this budget.* each takes about \d+ rows.* Nothing was spent"
    ):
        made(PrivateLogisticRegression, ledger=ledger).fit(X, labels)
    assert not ledger.sessions


# -- weights of rows


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (made_without_noise(PrivateLinearRegression, target_range=(-200, 200)), LinearRegression()),
        (made_without_noise(PrivateRidge, alpha=300.0, target_range=(-200, 200)), Ridge(alpha=300.0)),
        (
            made_without_noise(PrivateLogisticRegression, alpha=20.0, classes=[0, 1], steps=200, max_grad_norm=1.0),
            LogisticRegression(C=1 / 20, tol=1e-8),
        ),
    ],
)
def test_weights_are_those_of_scikit_learn(mine, theirs):
    """The noise leaves three digits of the weighted minimum, which is far from that without weights."""
    X, labels, numbers = data()
    y = labels if type(mine) in CLASSIFIERS else numbers * np.where(X[:, 0] > 0, 2.0, 1.0)
    weights = np.random.default_rng(1).uniform(0, 4, len(X)) * np.where(X[:, 1] > 0, 1.0, 0.1)
    found = np.ravel(mine.fit(X, y, sample_weight=weights).coef_)
    expected = np.ravel(theirs.fit(X, y, sample_weight=weights).coef_)
    assert found == pytest.approx(expected, abs=4e-3)
    assert np.abs(np.ravel(clone(theirs).fit(X, y).coef_) - expected).max() > 0.04


@pytest.mark.parametrize("kind", MODELS)
def test_weights_that_are_all_the_largest_change_no_bit(kind):
    X, labels, numbers = data(300)
    y = targets_of(kind, X, labels, numbers)
    more = {"classes": [0, 1]} if kind in CLASSIFIERS else {}
    plain, weighted = (made(kind, max_sample_weight=1.0, **more) for _ in range(2))
    assert (learned(plain.fit(X, y)) == learned(weighted.fit(X, y, sample_weight=np.ones(300)))).all()


@pytest.mark.parametrize("weight", [1e300, np.inf, -np.inf, np.nan, -1.0, None])
@pytest.mark.parametrize("kind", [PrivateRidge, PrivateHuberRegressor])
def test_a_weight_beyond_the_bound_is_cut_to_it(kind, weight):
    X, _, numbers = data(300)
    cut = 2.0 if weight is not None and weight > 2 else 0.0
    fits = [made(kind, max_sample_weight=2.0).fit(X, numbers, [one, *[1.5] * 299]) for one in (weight, cut)]
    assert (learned(fits[0]) == learned(fits[1])).all()


def test_weights_need_a_public_bound_and_one_number_for_each_row():
    X, _, numbers = data(300)
    with pytest.raises(ValueError, match=r"Write PrivateRidge\(max_sample_weight="):
        made(PrivateRidge).fit(X, numbers, sample_weight=np.ones(300))
    for wrong in (np.ones(299), np.full(300, "1")):
        with pytest.raises(ValueError, match="sample_weight must"):
            made(PrivateRidge, max_sample_weight=1.0).fit(X, numbers, sample_weight=wrong)


# -- what is charged


@pytest.mark.parametrize("relation", ["zero_out_one", "replace_one"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_whole_budget_is_spent_and_no_more(kind, relation, epsilon):
    X, labels, numbers = data(300)
    model = made(kind, epsilon=epsilon, neighboring_relation=relation)
    if kind in (*CLASSIFIERS, *ROBUST):
        model.set_params(steps=3)
    if kind in CLASSIFIERS:
        model.set_params(classes=[0, 1])
    model.fit(X, targets_of(kind, X, labels, numbers))
    ledger = model.ledger_
    assert ledger.epsilon_spent(DELTA) == ledger.epsilon(DELTA)
    assert 0.999 * epsilon < ledger.epsilon(DELTA) <= epsilon
    assert all(session.closed for session in ledger.sessions)
    assert ledger.verify().ok
    assert "NOT PRIVATE" in model.statement_


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_in_rho_spends_what_its_gaussian_does(kind):
    X, labels, numbers = data(2000)
    rho = 0.5
    model = made(kind, epsilon=None, rho=rho)
    if kind in (*CLASSIFIERS, *ROBUST):
        model.set_params(steps=3)
    model.fit(X, targets_of(kind, X, labels, numbers))
    delta = (0.9 if kind in CLASSIFIERS else 1.0) * DELTA  # classes are bought
    assert model.ledger_.epsilon(DELTA) == pytest.approx(gaussian_epsilon(math.sqrt(2 * rho), delta), rel=1e-3)
    assert model.ledger_.epsilon(DELTA) <= model.ledger_.max_epsilon


@pytest.mark.parametrize("relation", ["zero_out_one", "replace_one"])
def test_bought_classes_cost_a_share_of_delta(relation):
    X, labels, _ = data(2000, classes=3)
    model = made(PrivateLogisticRegression, neighboring_relation=relation).fit(X, np.array(["x", "y", "z"])[labels])
    assert model.classes_.tolist() == ["x", "y", "z"]
    assert 0.99 < model.ledger_.epsilon(DELTA) <= 1.0
    assert {session.purpose for session in model.ledger_.sessions} == {"bounds", "classes", "moments", "train"}
    rare = np.where(np.arange(2000) == 7, "secret", np.array(["x", "y", "z"])[labels])
    assert made(PrivateLogisticRegression).fit(X, rare).classes_.tolist() == ["x", "y", "z"]


def test_a_label_that_noise_leaves_below_the_threshold_is_not_released(monkeypatch):
    """Released counts are whole numbers: a half more or less than the noisy count that the threshold is for."""
    for epsilon in (0.5, 0.8, 1.0, 1.7, 3.0):
        budget = FitBudget(epsilon=epsilon, delta=DELTA, relation="zero_out_one", classes=0.1)
        session = SimpleNamespace(event=budget.classes_event())
        threshold = budget.classes_threshold(session.event)
        noisy = {"classes": np.rint([threshold - 1e-6, threshold + 2])}
        monkeypatch.setattr(classes, "buy_counts", lambda *given, noisy=noisy: noisy)
        model = made(PrivateLogisticRegression)
        paying = SimpleNamespace(budget=budget, randomness=None, num_records=4000)
        assert model._bought_classes(paying, session, np.array(["one", "two"])).tolist() == ["two"]


def test_a_large_delta_spends_nothing_of_a_ledger_without_a_cap():
    X, labels, numbers = data(50)
    for kind in KINDS:
        ledger = tacita.Ledger(neighboring_relation="zero_out_one", privacy_unit="one row")
        with pytest.raises(ValueError, match="delta must be below 1 / num_records"):
            made(kind, ledger=ledger).set_params(delta=0.5).fit(X, targets_of(kind, X, labels, numbers))
        assert not ledger.sessions


def test_the_statement_names_what_was_bought():
    X, _, numbers = data(300)
    assert "column_scale (bought)" in made(PrivateStandardScaler).fit(X).statement_
    assert "column_scale" not in made(PrivateStandardScaler, column_scale=3.0).fit(X).statement_
    assert "data_norm (bought)" in made(PrivateRidge, target_range=(-20.0, 20.0)).fit(X, numbers).statement_
    assert "target_range (bought)" in made(PrivateRidge, data_norm=3.0).fit(X, numbers).statement_


def test_the_system_draws_the_noise_unless_a_test_asks():
    X, labels, _ = data(200)
    settings = {"classes": [0, 1], "data_norm": 2.0}
    first, second = (made(PrivateLogisticRegression, insecure_seed=None, **settings).fit(X, labels) for _ in range(2))
    assert not np.array_equal(first.coef_, second.coef_)
    assert "NOT PRIVATE" not in first.statement_
    again = [made(PrivateLogisticRegression, **settings).fit(X, labels).coef_ for _ in range(2)]
    assert np.array_equal(*again)


def test_one_class_is_named_as_it_was_given():
    X, labels, _ = data(50)
    with pytest.raises(ValueError, match=r"classes must be a list of at least 2 labels, got \[1\]"):
        made(PrivateLogisticRegression, classes=[1]).fit(X, labels)


@pytest.mark.parametrize("rule", [{"filter": "gaussian"}, {"filter_order": 8.0}])
def test_classes_that_a_filter_cannot_pay_are_refused_before_anything_is_spent(rule):
    X, labels, _ = data(500)
    ledger = shared(**rule)
    with pytest.raises(ValueError, match="cannot be bought from a ledger with a filter: pass classes="):
        made(PrivateLogisticRegression, ledger=ledger).fit(X, labels)
    assert not ledger.sessions


def test_a_text_is_no_list_of_classes():
    X, labels, _ = data(50)
    with pytest.raises(ValueError, match="classes must be a list"):
        made(PrivateLogisticRegression, classes="good").fit(X, labels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": None}, "epsilon and delta must be given"),
        ({"delta": None}, "epsilon and delta must be given"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"rho": 1.0}, "epsilon and rho must not both be given"),
        ({"epsilon": None, "rho": 0.0}, "rho must be"),
        ({"epsilon": None, "rho": 1.0, "delta": None}, "epsilon and delta must be given"),
        ({"delta": 0.5}, "delta must be below 1 / num_records"),
        (
            {"neighboring_relation": "add_or_remove_one"},
            "neighboring_relation must be one of zero_out_one, replace_one",
        ),
    ],
)
def test_privacy_has_no_defaults(kind, settings, message):
    X, labels, numbers = data(50)
    with pytest.raises(ValueError, match=message):
        made(kind).set_params(**settings).fit(X, targets_of(kind, X, labels, numbers))


@pytest.mark.parametrize("kind", [*KINDS, PrivatePCA])
def test_a_setting_that_is_no_number_is_named(kind):
    """Every setting that is not a text: scikit-learn reads them all from the signature."""
    X, labels, numbers = data(50)
    y = targets_of(kind, X, labels, numbers)
    named = set(kind().get_params()) - {"privacy_unit"}
    assert {"epsilon", "delta", "rho", "insecure_seed"} < named
    for name in named:
        settings = {**({"classes": [0, 1]} if kind in CLASSIFIERS else {}), name: "1"}
        model = kind(**{"epsilon": 1.0, "delta": DELTA, **settings})
        if name == "rho":
            model.epsilon = None
        with pytest.raises((ValueError, TypeError), match=name):
            model.fit(X, y)
        assert not hasattr(model, "ledger_") or not model.ledger_.sessions


@pytest.mark.parametrize("data_norm", [1e-300, 1e38])
@pytest.mark.parametrize("kind", MODELS)
def test_a_length_of_rows_whose_sums_may_overflow_is_refused(kind, data_norm):
    """A sum that is infinite tells of its rows, whatever the noise."""
    X, labels, numbers = data(50)
    with pytest.raises(ValueError, match="data_norm must be between"):
        made(kind, data_norm=data_norm).fit(X.astype(np.float32), targets_of(kind, X, labels, numbers))


# -- what is learned


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("size", [1.0, 1e5])
def test_columns_that_drown_are_warned_of(kind, size):
    """One-hot columns beside a number of 100,000: the score was that of the most common class, without a word."""
    X, labels, numbers = data(1000)
    model = made(kind, **{"classes": [0, 1]} if kind in CLASSIFIERS else {})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model.fit(X * [1, 1, 1, size], targets_of(kind, X, labels, numbers))
    assert ["Scale the columns first" in str(one.message) for one in seen] == [True] * (size > 1)


def test_it_learns_what_scikit_learn_learns():
    X, labels, numbers = data(30_000)
    plain = LogisticRegression().fit(X, labels).score(X, labels)
    private = made(PrivateLogisticRegression, classes=[0, 1], data_norm=3.0).fit(X, labels)
    assert private.score(X, labels) > plain - 0.01
    X3, three, _ = data(30_000, classes=3, seed=1)
    several = made(PrivateLogisticRegression, classes=[0, 1, 2]).fit(X3, three)
    assert several.score(X3, three) > LogisticRegression().fit(X3, three).score(X3, three) - 0.03
    assert several.predict_proba(X3[:5]).sum(axis=1) == pytest.approx(1.0)
    assert np.exp(several.predict_log_proba(X3[:5])) == pytest.approx(several.predict_proba(X3[:5]))
    linear = made(PrivateLinearRegression, data_norm=4.0, target_range=(-12.0, 18.0)).fit(X, numbers)
    assert linear.coef_ == pytest.approx(LinearRegression().fit(X, numbers).coef_, abs=0.1)
    assert linear.intercept_ == pytest.approx(3.0, abs=0.3)
    bought = made(PrivateLinearRegression).fit(X, numbers)
    assert bought.score(X, numbers) > 0.99


def test_with_much_budget_it_is_the_regression_of_scikit_learn():
    X, _, numbers = data(500)
    for intercept in (True, False):
        settings = {"data_norm": 50.0, "target_range": (-100.0, 100.0), "fit_intercept": intercept}
        found = made(PrivateRidge, epsilon=1e10, alpha=200.0, **settings).fit(X, numbers)
        expected = Ridge(alpha=200.0, fit_intercept=intercept).fit(X, numbers)
        assert found.coef_ == pytest.approx(expected.coef_, rel=1e-3)
        assert found.intercept_ == pytest.approx(expected.intercept_, rel=1e-3)


def test_a_penalty_is_that_of_scikit_learn():
    X, labels, _ = data(500)
    settings = {"classes": [0, 1], "data_norm": 50.0, "max_grad_norm": 10.0, "steps": 600}
    found = made(PrivateLogisticRegression, epsilon=1e9, alpha=30.0, **settings).fit(X, labels)
    expected = LogisticRegression(C=1 / 30.0, tol=1e-8).fit(X, labels)
    assert found.coef_ == pytest.approx(expected.coef_, rel=0.02, abs=0.01)


def test_the_scaler_finds_means_and_variances():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 3)) * [1.0, 100.0, 1e-3] + [0.0, 50.0, 2e-3]
    scaler = made(PrivateStandardScaler).fit(X)
    assert scaler.mean_ / [1.0, 100.0, 1e-3] == pytest.approx([0.0, 0.5, 2.0], abs=0.1)
    assert scaler.scale_ / [1.0, 100.0, 1e-3] == pytest.approx(1.0, abs=0.15)
    assert scaler.inverse_transform(scaler.transform(X)) == pytest.approx(X)
    declared = made(PrivateStandardScaler, column_scale=[4.0, 400.0, 6e-3]).fit(X)
    assert declared.scale_ / [1.0, 100.0, 1e-3] == pytest.approx(1.0, abs=0.1)


def test_sparse_tables_and_float32_give_the_same_model():
    X, labels, numbers = data(500)
    X[np.abs(X) < 0.5] = 0
    for kind in MODELS:
        y = targets_of(kind, X, labels, numbers)
        more = {"classes": [0, 1]} if kind in CLASSIFIERS else {"target_range": (-20.0, 20.0)}
        dense = made(kind, data_norm=3.0, **more).fit(X, y)
        sparse = made(kind, data_norm=3.0, **more).fit(scipy.sparse.csr_matrix(X), y)
        narrow = made(kind, data_norm=3.0, **more).fit(X.astype(np.float32), y)
        assert sparse.coef_ == pytest.approx(dense.coef_, rel=1e-6)
        assert narrow.coef_ == pytest.approx(dense.coef_, rel=1e-3, abs=1e-4)
        assert sparse.predict(scipy.sparse.csr_matrix(X)) == pytest.approx(dense.predict(X))


# -- bad input


@pytest.mark.filterwarnings("error")  # a warning would tell what a row holds
@pytest.mark.parametrize("hostile", [math.nan, math.inf, -math.inf, 1e308, 1e30])
@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_row_raises_nothing_and_moves_little(kind, hostile):
    """One row among 4000: the noise is the same, so what differs is the row."""
    X, labels, numbers = data()
    y = targets_of(kind, X, labels, numbers)
    more = {"classes": [0, 1], "data_norm": 2.0} if kind in CLASSIFIERS else {}
    spoiled = X.copy()
    spoiled[11] = hostile
    usual, other = made(kind, **more).fit(X, y), made(kind, **more).fit(spoiled, y)
    assert np.isfinite(learned(other)).all()
    assert learned(other) == pytest.approx(learned(usual), rel=0.05, abs=0.05)
    if kind in REGRESSORS:
        bad = numbers.copy()
        bad[11] = hostile
        assert made(kind).fit(X, bad).coef_ == pytest.approx(usual.coef_, rel=0.05, abs=0.05)


@pytest.mark.skipif(np.finfo(np.longdouble).max == np.finfo(np.float64).max, reason="it is no longer than float64")
@pytest.mark.filterwarnings("error", "ignore:entries of")  # of what was released
@pytest.mark.parametrize("kind", KINDS)
def test_a_number_past_float64_warns_of_nothing(kind):
    X, labels, numbers = (one.astype(np.longdouble) for one in data(60))
    X[5, 0] = numbers[7] = np.finfo(np.longdouble).max
    made(kind, **({"classes": [0, 1]} if kind in CLASSIFIERS else {})).fit(X, targets_of(kind, X, labels, numbers))


@pytest.mark.parametrize("kind", KINDS)
def test_degenerate_tables(kind):
    """More columns than rows, constant columns, nothing but missing numbers, one class: no error, finite numbers."""
    rng = np.random.default_rng(0)
    for X in (rng.standard_normal((10, 30)), np.ones((50, 2)), np.full((50, 2), math.nan), np.zeros((50, 2))):
        y = None if kind in COLUMNWISE else np.zeros(len(X), int)
        more = {"classes": [0, 1]} if kind in CLASSIFIERS else {}
        model = made(kind, **more).fit(X, y)
        assert np.isfinite(learned(model)).all()


def test_labels_outside_of_the_classes_contribute_nothing():
    X, labels, _ = data(500)
    strange = labels.copy()
    strange[:50] = 7
    hidden = X.copy()
    hidden[:50] = math.nan
    settings = {"classes": [0, 1], "data_norm": 2.0, "epsilon": 1e6, "steps": 200}
    by_label = made(PrivateLogisticRegression, **settings).fit(X, strange)
    by_row = made(PrivateLogisticRegression, **settings).fit(hidden, labels)
    assert by_label.coef_ == pytest.approx(by_row.coef_, rel=0.05, abs=0.02)
    assert set(by_label.predict(X)) <= {0, 1}


# -- ledgers and copies


def shared(**more):
    return tacita.Ledger(
        neighboring_relation="zero_out_one", privacy_unit="one row", max_epsilon=2.0, max_delta=DELTA, **more
    )


def test_one_ledger_pays_for_a_pipeline_under_one_cap():
    X, labels, _ = data(5000)
    ledger = shared(filter_order=8.0)
    pipeline = make_pipeline(
        made(PrivateStandardScaler, epsilon=0.5, ledger=ledger),
        made(PrivateLogisticRegression, epsilon=0.5, classes=[0, 1], data_norm=3.0, ledger=ledger),
    )
    pipeline.fit(X * 100 + 7, labels)
    assert pipeline.score(X * 100 + 7, labels) > 0.8
    assert pipeline[0].ledger_ is pipeline[1].ledger_ is ledger
    assert ledger.epsilon(DELTA) <= 2.0
    with pytest.raises(tacita.BudgetExceededError):
        pipeline.set_params(privatelogisticregression__epsilon=3.0).fit(X, labels)


def test_a_second_fit_on_a_ledger_without_a_filter_is_refused():
    X, _, numbers = data(500)
    model = made(PrivateRidge, epsilon=0.5, ledger=shared()).fit(X, numbers)
    with pytest.raises(tacita.LedgerError, match="release"):
        model.fit(X, numbers)


def test_a_clone_is_paid_from_the_same_ledger():
    model = made(PrivateRidge, ledger=shared())
    assert clone(model).ledger is model.ledger
    assert clone(model).get_params() == model.get_params()


def test_a_search_in_threads_is_paid_from_one_ledger():
    """Six fits and the last one on all rows, at once: each is planned, and the cap holds for all together."""
    X, labels, _ = data(600)
    ledger = shared(filter_order=8.0)
    model = made(PrivateLogisticRegression, epsilon=0.1, classes=[0, 1], data_norm=3.0, ledger=ledger)
    with joblib.parallel_config(backend="threading"):
        search = GridSearchCV(model, {"alpha": [0.01, 1.0]}, cv=3, n_jobs=2).fit(X, labels)
    assert search.best_estimator_.ledger_ is ledger
    assert [one.purpose for one in ledger.sessions].count("train") == 7
    assert all(one.closed for one in ledger.sessions)
    assert ledger.verify().ok
    assert 0.1 < ledger.epsilon(DELTA) <= 2.0


def test_another_unit_than_that_of_the_ledger_is_refused():
    X, _, numbers = data(100)
    ledger = tacita.Ledger(neighboring_relation="zero_out_one", privacy_unit="one patient")
    with pytest.raises(ValueError, match="privacy_unit must be that of the ledger, 'one patient', got 'one visit'"):
        made(PrivateLinearRegression, ledger=ledger, privacy_unit="one visit").fit(X, numbers)
    assert not ledger.sessions


@pytest.mark.parametrize(("names", "says"), [(["b"], r"only \['b'\]"), (["a", "b"], r"only \['a', 'b'\]")])
def test_classes_that_could_not_be_bought_are_told(names, says):
    """Of three classes the others are too rare at this budget."""
    X, _, _ = data(2000)
    labels = np.array((names * 2000)[:2000], dtype=object)
    labels[:240] = [f"rare {i % 6}" for i in range(240)]
    model = made(PrivateLogisticRegression, epsilon=0.5, data_norm=3.0)
    with pytest.warns(UserWarning, match=f"classes: {says} could be bought, and about 2[0-9][0-9] of 2000 rows"):
        model.fit(X, labels)
    assert model.classes_.tolist() == names


def test_another_relation_than_that_of_the_ledger_is_refused():
    X, _, numbers = data(100)
    with pytest.raises(ValueError, match="neighboring_relation must be that of the ledger"):
        made(PrivateRidge, neighboring_relation="replace_one", ledger=shared()).fit(X, numbers)
    with pytest.raises(TypeError, match="ledger must be a Ledger"):
        made(PrivateRidge, ledger="ledger.jsonl").fit(X, numbers)


def test_a_pickled_model_predicts_and_has_no_ledger():
    X, _, numbers = data(200)
    model = made(PrivateRidge).fit(X, numbers)
    copied = pickle.loads(pickle.dumps(model))
    assert copied.predict(X) == pytest.approx(model.predict(X))
    assert copied.ledger_ is None
    assert copied.statement_ == model.statement_


def copied_deep(model):
    return copy.deepcopy(model)


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def pickled_in_a_pipeline(model):
    copied: Any = clone(pickled(make_pipeline(model)))
    return copied.steps[0][1]


@pytest.mark.parametrize("copied", [copied_deep, pickled, pickled_in_a_pipeline])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_left_its_ledger_behind_is_not_paid_from_another(kind, copied):
    """Processes of n_jobs= get pickled copies; their fits would be charged to nobody."""
    X, labels, numbers = data(200)
    ledger = shared()
    model = copied(made(kind, ledger=ledger))
    with pytest.raises(LedgerError, match="left behind"):
        model.fit(X, targets_of(kind, X, labels, numbers))
    with pytest.raises(LedgerError, match="left behind"):
        pickled(model).fit(X, targets_of(kind, X, labels, numbers))
    more = {"classes": [0, 1]} if kind in CLASSIFIERS else {}
    model.set_params(ledger=ledger, **more).fit(X, targets_of(kind, X, labels, numbers))
    assert model.ledger_ is ledger


@pytest.mark.parametrize("as_array", [np.array, lambda y: np.array(y, object), lambda y: np.array(y, "S")])
def test_the_width_of_bought_classes_is_that_of_the_classes(as_array):
    """An array of texts is as wide as its longest text, which one record may hold."""
    X, labels, _ = data(2000)
    names = ["no" if label else "yes" for label in labels]
    found = []
    for one in ("yes", "a label of one record alone"):
        names[7] = one
        model = made(PrivateLogisticRegression, data_norm=3.0).fit(X, as_array(names))
        found.append((model.classes_.dtype, model.predict(X).dtype))
        assert len(model.classes_) == 2
    assert found[0] == found[1]


def test_a_fit_that_finds_no_class_shows_what_it_spent():
    X, _, _ = data()
    model = made(PrivateLogisticRegression, epsilon=0.1, data_norm=3.0)
    with pytest.raises(ValueError, match="not even one class is frequent"):
        model.fit(X, np.arange(len(X)))
    assert model.ledger_.epsilon_spent(DELTA) > 0


# -- one record's effect on what is released


class Spy:
    """Keeps the exact values of every query, in place of noise."""

    seen: ClassVar[list] = []


@pytest.mark.parametrize("kind", [*KINDS, "declared range", "declared norm", "newton"])
@pytest.mark.parametrize("row", [[1e9, -1e9, 3.0, 0.0], [0.1, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
@pytest.mark.parametrize("weight", [None, 1e300])
def test_one_record_moves_each_release_by_what_its_event_states(kind, row, weight, monkeypatch):
    """Exact values of all releases, with a record and with it zeroed out, against the sessions' events."""
    from tacita.mechanisms import GaussianMechanism

    monkeypatch.setattr(GaussianMechanism, "__call__", keep)
    X, labels, numbers = data(60)
    declared = {"declared range": {"target_range": (-20.0, 20.0)}, "declared norm": {"data_norm": 2.0}}.get(kind)
    newton = {"solver": "newton", "steps": 17} if kind == "newton" else {}
    kind = PrivateHuberRegressor if newton else kind if declared is None else PrivateRidge
    y = targets_of(kind, X, labels, numbers)
    X[5] = row
    more = {"classes": [0, 1]} if kind in CLASSIFIERS else declared or {}
    if kind in (*CLASSIFIERS, *ROBUST):
        more = {**more, "steps": 4}
    fitted = {}
    if weight is not None and kind in MODELS:
        more["max_sample_weight"] = 2.0
        fitted["sample_weight"] = np.where(np.arange(60) == 5, weight, np.linspace(0, 2, 60))
    without = X.copy()
    without[5] = math.nan
    absent = y if y is None or kind in CLASSIFIERS else np.where(np.arange(60) == 5, math.nan, y)
    runs = []
    for table, targets in ((X, y), (without, absent)):
        Spy.seen = []
        model = made(kind, **{**more, **newton}).fit(table, targets, **fitted)
        runs.append(Spy.seen)
    assert len(runs[0]) == len(runs[1]) == sum(session.queries_made for session in model.ledger_.sessions)
    stated = {matrices: stated_bounds(model.ledger_, matrices=matrices) for matrices in (True, False)}
    for one, other in zip(*runs, strict=True):
        bound = stated["entries" in one].pop(0)  # Newton steps ask for gradients and matrices in turn
        moved = math.sqrt(sum(float((one[name] - other[name]).square().sum()) for name in one))
        assert moved <= bound * (1 + 1e-9)
    assert any(isinstance(s.event, SecondMomentEvent) for s in model.ledger_.sessions) == (kind in MODELS)


def stated_bounds(ledger, *, matrices):
    """Return how far one record may move each query of the sessions that release matrices, or of the others."""
    sessions = [s for s in ledger.sessions if isinstance(s.event, SecondMomentEvent) == matrices]
    return [s.event.max_contribution[0] for s in sessions for _ in range(s.queries_made)]


def keep(self, values, noise_std, normals):
    """Stands for the mechanism: no noise but a public number, so that both runs go the same way."""
    import torch

    (block,) = values
    Spy.seen.append({name: value.double().clone() for name, value in values[block].items()})
    fixed = {
        name: torch.linspace(1, 2, value.numel()).view(value.shape).to(value) for name, value in values[block].items()
    }
    return {block: fixed}


# -- purchases


def test_a_scale_is_the_upper_edge_of_the_bin_of_its_quantile():
    values = np.concatenate([np.full(900, 3.0), np.full(100, 50.0)])
    assert scale_of(scale_counts(values), 0.0, 0.9) == 4.0
    assert scale_of(scale_counts(values), 0.0, 0.95) == 64.0
    noise = np.random.default_rng(0).normal(size=scale_counts(values).shape)
    assert scale_of(scale_counts(values) + 10 * noise, 40.0, 0.9) in (4.0, 64.0)
    assert scale_of(scale_counts(np.array([math.nan, math.inf])), 1.0, 0.5) == 1.0
    extremes = scale_counts(np.array([0.0, 5e-324, 1e308, -1e308]))
    assert extremes.sum() == 4
    assert extremes[[0, -1]].tolist() == [2, 2]


def test_a_missing_label_is_no_class():
    names, counts = class_counts(np.array([1.0, math.nan, 1.0]))
    assert (names.tolist(), counts.tolist()) == ([1.0], [2])


def with_a_text(X, as_frame):
    cells = X.astype(object)
    cells[3, 1] = "SECRET"
    if as_frame:
        return pytest.importorskip("pandas").DataFrame(cells, columns=["age", "job", "hours", "pay"])
    return cells


NO_TABLES = [
    (lambda X: np.full(len(X), 123.456), "Reshape your data"),
    (lambda X: [123.456] * len(X), "Reshape your data"),
    (lambda X: with_a_text(X, as_frame=False), "X must hold numbers alone. Turn texts into numbers first"),
    (lambda X: with_a_text(X, as_frame=False).tolist(), "X must hold numbers alone. Turn texts"),
    (lambda X: with_a_text(X, as_frame=False).astype(str), "X must hold numbers alone. Turn texts"),
    (
        lambda X: with_a_text(X, as_frame=True),
        "X must hold numbers alone; columns with something else: job. Turn texts",
    ),
]


@pytest.mark.parametrize(("given", "words"), NO_TABLES, ids=["flat", "flat list", "objects", "list", "texts", "frame"])
@pytest.mark.parametrize("kind", [*KINDS, PrivatePCA])
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_no_entry_is_quoted(kind, given, words):
    X, labels, numbers = data(50)
    wrong, y = given(X), targets_of(kind, X, labels, numbers)
    model = made(kind, epsilon=100.0, **{"classes": [0, 1]} if kind in CLASSIFIERS else {})
    calls = [lambda: model.fit(wrong, y)]
    calls += [
        lambda name=name: getattr(model.fit(X, y), name)(wrong)
        for name in ("predict", "transform")
        if hasattr(model, name)
    ]
    for call in calls:
        with pytest.raises(ValueError, match=words) as error:
            call()
        assert not set(re.findall("123|SECRET", "".join(traceback.format_exception(error.value))))


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classes_that_are_not_the_labels_are_refused_after_a_noisy_count(kind):
    """Labels of -1 and 1 against classes 0 and 1: half of the rows would contribute nothing, in silence."""
    X, y, _ = data(1000)
    model = made(kind, classes=[0, 1], data_norm=3.0)
    with pytest.raises(
        ValueError, match=r"classes must be the labels of y: about \d+ of 1000 labels are none of \[0, 1\]"
    ):
        model.fit(X, 2 * y - 1)
    assert [session.purpose for session in model.ledger_.sessions if session.opened] == ["labels"]
    some = made(kind, classes=[0, 1], data_norm=3.0).fit(X, np.where(np.arange(1000) % 3, y, 7))  # classes of choice
    assert some.classes_.tolist() == [0, 1]


@pytest.mark.parametrize("label", [-1, 7, 10**6])
def test_one_foreign_label_raises_no_more_than_its_neighbour(label):
    X, y, _ = data(1000)
    y[0] = label
    made(PrivateLogisticRegression, classes=[0, 1], data_norm=3.0).fit(X, y)


@pytest.mark.parametrize("kind", [PrivateRidge, PrivateHuberRegressor])
@pytest.mark.parametrize(("away", "far"), [(0.0, []), (300.0, ["targets"])])
def test_targets_far_from_zero_are_warned_of_where_second_moments_show_them(kind, away, far):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 3))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        kind(epsilon=1.0, delta=1e-6).fit(X, X @ [1.0, 2.0, -1.0] + away)
    assert [str(one.message).split()[0] for one in found] == far * (kind is PrivateRidge)
