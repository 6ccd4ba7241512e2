"""Principal components: those of scikit-learn where noise is small; the whole budget, no more; rows of any content."""

import math
import warnings

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.utils.estimator_checks import check_estimator

from tacita.linear import SecondMomentEvent
from tacita.linear_model import PrivatePCA

DELTA = 1e-6


def rows(n=4000):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 4)) @ np.diag([3.0, 1.5, 0.7, 0.2]) @ rng.standard_normal((4, 4)) * 0.3 + 0.5


def test_the_checks_of_scikit_learn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(PrivatePCA(epsilon=100.0, delta=DELTA, insecure_seed=0), on_fail=None, on_skip=None)
    assert {one["check_name"]: one["exception"] for one in found if one["status"] == "failed"} == {}


def test_components_means_and_variances_are_those_of_scikit_learn():
    X = rows()
    mine = PrivatePCA(epsilon=1e8, delta=DELTA, n_components=3, data_norm=50.0, insecure_seed=0).fit(X)
    theirs = PCA(n_components=3, svd_solver="full").fit(X)
    aligned = np.abs((mine.components_ * theirs.components_).sum(axis=1))
    assert aligned == pytest.approx(1.0, abs=1e-4)
    assert mine.mean_ == pytest.approx(theirs.mean_, abs=0.01)
    assert mine.explained_variance_ == pytest.approx(theirs.explained_variance_, rel=0.01)
    assert mine.explained_variance_ratio_ == pytest.approx(theirs.explained_variance_ratio_, abs=0.01)
    assert mine.inverse_transform(mine.transform(X)) == pytest.approx(
        theirs.inverse_transform(theirs.transform(X)), abs=0.02
    )


@pytest.mark.parametrize("data_norm", [None, 5.0])
@pytest.mark.parametrize("relation", ["zero_out_one", "replace_one"])
def test_the_whole_budget_is_spent_and_no_more(data_norm, relation):
    settings = dict(neighboring_relation=relation, data_norm=data_norm, insecure_seed=0)
    model = PrivatePCA(epsilon=1.0, delta=DELTA, **settings).fit(rows(300))
    assert 0.999 < model.ledger_.epsilon(DELTA) <= 1.0
    (event,) = [s.event for s in model.ledger_.sessions if isinstance(s.event, SecondMomentEvent)]
    assert event.max_contribution == (1.0,)
    assert model.ledger_.verify().ok


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1e300])
def test_a_row_of_any_content_raises_nothing_and_leaves_numbers(bad):
    X = rows(300)
    X[5, 1] = bad
    model = PrivatePCA(epsilon=1.0, delta=DELTA, n_components=2, data_norm=5.0, insecure_seed=0).fit(X)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.mean_).all()


def test_more_components_than_columns_are_refused_before_anything_is_spent():
    with pytest.raises(ValueError, match="n_components must be at most the number of columns, 4, got 5"):
        PrivatePCA(epsilon=1.0, delta=DELTA, n_components=5).fit(rows(300))


@pytest.mark.parametrize(("shift", "told"), [(0.0, 0), (1.0, 0), (10.0, 1)])
def test_rows_far_from_zero_are_warned_of(shift, told):
    X = np.random.default_rng(0).standard_normal((5000, 4)) + shift
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        PrivatePCA(epsilon=1.0, delta=1e-6).fit(X)
    assert [str(one.message).startswith("rows lie far from 0") for one in found] == [True] * told
