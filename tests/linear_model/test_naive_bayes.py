"""Gaussian naive Bayes: scikit-learn's checks, what is learned and charged, how far one record moves the sums."""

import math
import warnings

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB
from sklearn.utils.estimator_checks import check_estimator

from tacita.linear_model import PrivateGaussianNB, naive_bayes
from tacita.linear_model.fitting import released_mean

DELTA = 1e-6
RELATIONS = ("zero_out_one", "replace_one")


def data(n=4000, d=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    return rng.standard_normal((n, d)) * (1 + y[:, None] / 4) + y[:, None] * np.arange(1, d + 1), y


def made(epsilon=1.0, **more):
    return PrivateGaussianNB(epsilon=epsilon, delta=DELTA, insecure_seed=0, **more)


def test_the_checks_of_scikit_learn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(made(epsilon=1000.0), on_fail=None, on_skip=None)
    failed = {one["check_name"]: one["exception"] for one in found if one["status"] == "failed"}
    assert not failed, failed


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("classes", [None, [0, 1, 2]])
def test_with_much_budget_it_is_that_of_scikit_learn(relation, classes):
    X, y = data()
    mine = made(1e7, neighboring_relation=relation, classes=classes, column_scale=20.0).fit(X, y)
    theirs = GaussianNB().fit(X, y)
    assert mine.class_prior_ == pytest.approx(theirs.class_prior_, abs=1e-3)
    assert mine.theta_ == pytest.approx(theirs.theta_, abs=2e-2)
    assert mine.var_ == pytest.approx(theirs.var_, rel=2e-2)
    assert np.mean(mine.predict(X) == theirs.predict(X)) > 0.99
    assert mine.predict_proba(X) == pytest.approx(theirs.predict_proba(X), abs=0.1)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("more", [{}, {"classes": [0, 1, 2]}, {"classes": [0, 1, 2], "column_scale": 9.0}])
def test_it_learns_and_spends_the_whole_budget_and_no_more(relation, more):
    X, y = data(n=20_000)
    model = made(neighboring_relation=relation, **more).fit(X, y)
    assert model.score(X, y) > 0.95 * GaussianNB().fit(X, y).score(X, y)
    assert 0.99 < model.ledger_.epsilon(DELTA) <= 1.0
    assert "epsilon <= " in model.statement_


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("row", [[1e9, -1e9, 3.0], [0.1, 0.0, 0.0], [9.0, 9.0, -9.0], [0.0, 0.0, 0.0]])
def test_one_record_moves_the_sums_by_what_their_event_states(relation, row, monkeypatch):
    """Exact sums with a record, and with it zeroed out, or replaced by one of another class. No vector is clipped."""
    seen = []

    def keep(paying, planned, rows):
        seen.append(rows.dense(slice(0, rows.shape[0])))
        return released_mean(paying, planned, rows)

    monkeypatch.setattr(naive_bayes, "released_mean", keep)
    X, y = data(n=60)
    X[5], y[5] = row, 2
    other, label = X.copy(), y.copy()
    other[5], label[5] = ([9.0] * 3, 0) if relation == "replace_one" else ([math.nan] * 3, 2)
    for table, labels in ((X, y), (other, label)):
        model = made(neighboring_relation=relation, classes=[0, 1, 2], column_scale=9.0).fit(table, labels)
    (event,) = (session.event for session in model.ledger_.sessions if session.purpose == "moments")
    (bound,) = event.max_contribution
    assert all(float(rows.norm(dim=1).max()) <= bound * (1 + 1e-12) for rows in seen)
    moved = float((seen[0].sum(0) - seen[1].sum(0)).norm())
    assert 1 <= moved <= bound * (1 + (relation == "replace_one")) * (1 + 1e-12)


def test_rows_and_labels_that_do_not_count_change_nothing():
    X, y = data(n=2000)
    bad, labels = np.vstack([X, [[np.nan, 0, 0], [0, np.inf, 0], [1, 1, 1]]]), np.append(y, [0, 1, 7])
    without = made(1e9, classes=[0, 1, 2], column_scale=9.0).fit(X, y)
    beside = made(1e9, classes=[0, 1, 2], column_scale=9.0).fit(bad, labels)
    assert beside.theta_ == pytest.approx(without.theta_, abs=1e-3)
    assert beside.class_prior_ == pytest.approx(without.class_prior_, abs=1e-4)


def test_settings_are_checked_before_anything_is_spent():
    X, y = data(n=2000)
    for more, words in (
        ({"classes": [0]}, "at least 2 labels"),
        ({"column_scale": [1.0]}, "column_scale must be"),
        ({"epsilon": "1"}, "epsilon must be"),
    ):
        model = made(**{"classes": [0, 1, 2], **more})
        with pytest.raises(ValueError, match=words):
            model.fit(X, y)
        assert not hasattr(model, "ledger_") or not model.ledger_.sessions
