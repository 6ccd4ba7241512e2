"""The scaler: how far one row moves what is released, under each relation, and what becomes of it."""

import math

import numpy as np
import pytest

from tacita.accounting import moved
from tacita.linear_model import PrivateMean, PrivateStandardScaler, scaler
from tacita.linear_model.clamped_rows import ClampedRows

DELTA = 1e-6
COLUMNS = 3
FARTHEST = {"zero_out_one": math.sqrt(2 * COLUMNS), "replace_one": 2 * math.sqrt(COLUMNS)}


def fitted(X, relation, epsilon=1.0):
    kind = PrivateStandardScaler(
        epsilon=epsilon, delta=DELTA, neighboring_relation=relation, insecure_seed=0, column_scale=4.0
    )
    return kind.fit(X)


def shown(values, relation):
    rows = np.repeat(np.asarray(values, np.float64)[:, None], COLUMNS, axis=1)
    return ClampedRows(rows, np.ones(COLUMNS), shift=scaler.SQUARES[relation][0]).dense(slice(None)).numpy()


def sparse_column(rows=30_000):
    """Zeros but for 4 % of the entries, which are about 1000."""
    rng = np.random.default_rng(0)
    return np.where(rng.random((rows, 1)) < 0.04, rng.gamma(9.0, 110.0, (rows, 1)), 0.0)


def test_a_column_of_mostly_zeros_has_the_scale_of_the_others():
    X = sparse_column()
    found = PrivateStandardScaler(epsilon=1.0, delta=DELTA, insecure_seed=0).fit(X)
    assert found.scale_ == pytest.approx(X.std(axis=0), rel=0.2)


@pytest.mark.parametrize("kind", [PrivateStandardScaler, PrivateMean])
def test_a_size_that_noise_hides_is_said(kind):
    with pytest.warns(UserWarning, match="entries of 0 .columns by number. are mostly zeros, missing or hidden"):
        found = kind(epsilon=0.05, delta=DELTA, insecure_seed=0).fit(sparse_column())
    assert getattr(found, "column_scale_", found.noise_std_ if kind is PrivateMean else None) > 1e-6
    assert "Each row that fit was given" in " ".join(found.statement_.split())


@pytest.mark.parametrize("relation", FARTHEST)
def test_no_row_is_longer_than_what_it_is_clipped_to(relation):
    norms = np.linalg.norm(shown([*np.linspace(-1, 1, 2001), 1e30, np.nan], relation), axis=1)
    assert norms.max() == pytest.approx(math.sqrt(scaler.SQUARES[relation][1] * COLUMNS), rel=1e-12)


def test_the_farthest_replacement_is_that_of_one_end_by_the_other():
    rows = shown(np.linspace(-1, 1, 401), "replace_one")
    assert np.linalg.norm(rows[:, None] - rows[None], axis=2).max() == pytest.approx(FARTHEST["replace_one"], rel=1e-12)


@pytest.mark.parametrize("relation", FARTHEST)
def test_the_session_states_how_far_one_row_moves_the_sum(relation):
    event = fitted(np.zeros((100, COLUMNS)), relation).ledger_.sessions[0].event
    assert moved(relation) * event.max_contribution[0] == pytest.approx(FARTHEST[relation], rel=1e-12)


@pytest.mark.parametrize("relation", FARTHEST)
def test_means_and_variances_are_those_of_the_rows(relation):
    X = np.random.default_rng(0).normal([1.0, -0.5, 0.0], [0.5, 1.0, 0.1], (5000, COLUMNS))
    found = fitted(X, relation, epsilon=1e4)
    assert found.mean_ == pytest.approx(X.mean(0), abs=1e-3)
    assert found.var_ == pytest.approx(X.var(0), abs=5e-3)


@pytest.mark.parametrize("relation", FARTHEST)
def test_a_row_that_is_not_finite_is_as_if_it_were_zeros(relation):
    X = np.random.default_rng(0).normal(1.0, 0.5, (200, COLUMNS))
    zeros = X.copy()
    X[:50, 1], zeros[:50] = np.nan, 0.0
    spoiled, clean = fitted(X, relation), fitted(zeros, relation)
    assert spoiled.mean_ == pytest.approx(clean.mean_, rel=1e-12)
    assert spoiled.var_ == pytest.approx(clean.var_, rel=1e-12)
