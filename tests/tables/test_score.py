import numpy as np
import pytest

from tacita.tables import PurchasePlan, Schema, make_encoder
from tacita.tables.score import ERROR_BINS, histograms, read_score, score_counts
from tests.tables.buying import buy_score

CLASSES = make_encoder(Schema.loads("[target]\ncolumn='y'\nclasses=['a', 'b', 'c']"))
NUMBER = make_encoder(Schema.loads("[target]\ncolumn='y'\nlower=0\nupper=1"))


def all_of(values):
    return np.ones(len(values), dtype=bool)


def test_right_and_wrong_on_valid_rows_only():
    predicted, target = np.array([0, 1, 2, 2]), np.array([0, 2, 2, 2])
    assert score_counts(CLASSES, predicted, target, all_of(target)).tolist() == [[1, 3]]
    assert score_counts(CLASSES, predicted, target, np.array([True, True, False, False])).tolist() == [[1, 1]]


@pytest.mark.parametrize("odd", [0.0, 1e-9, 0.5, 3.0, -3.0, 1e30, np.inf, -np.inf, np.nan])
def test_a_row_is_in_one_bin_of_each_histogram(odd):
    before = score_counts(NUMBER, np.zeros(3), np.ones(3), all_of(range(3)))
    after = score_counts(NUMBER, np.array([0.0, 0, 0, odd]), np.array([1.0, 1, 1, 1]), all_of(range(4)))
    moved = after - before
    assert moved.shape == (histograms(NUMBER), ERROR_BINS)
    assert moved.min() >= 0
    assert moved.sum(axis=1).tolist() == [1, 1]
    if not abs(odd) < 4:  # far off or not a number: the worst bin, never the best
        assert moved[0, -1] == 1


def test_accuracy_and_its_noise(normals):
    predicted, target = np.zeros(1000, int), np.r_[np.zeros(800, int), np.ones(200, int)]
    noise_std = PurchasePlan(epsilon=1, delta=1e-5, relation="add_or_remove_one").score_noise_std(histograms(CLASSES))
    scores = [
        buy_score(CLASSES, predicted, target, all_of(target), noise_std=noise_std, normals=normals(seed))
        for seed in range(400)
    ]
    values = np.array([score.value for score in scores])
    assert values.mean() == pytest.approx(0.8, abs=5 * scores[0].error / 20)
    assert values.std() == pytest.approx(scores[0].error, rel=0.2)  # 5.6 standard errors of a standard deviation


def test_r2_is_near_the_exact_one(normals):
    generator = np.random.default_rng(0)
    target = generator.standard_normal(20_000)
    for residual in (0.2, 0.6, 1.0):
        predicted = target * (1 - residual**2) + residual * np.sqrt(1 - residual**2) * generator.standard_normal(20_000)
        exact = 1 - np.mean((predicted - target) ** 2) / np.mean(target**2)
        bought = buy_score(NUMBER, predicted, target, all_of(target), noise_std=5.0, normals=normals())
        assert bought.value == pytest.approx(exact, abs=0.02)
        assert bought.rows == pytest.approx(20_000, abs=150)


def test_hardly_any_rows_are_a_score_like_any_other(normals):
    for encoder in (CLASSES, NUMBER):
        for seed in range(20):
            score = buy_score(
                encoder, np.zeros(0), np.zeros(0), np.zeros(0, bool), noise_std=5.0, normals=normals(seed)
            )
            assert np.isfinite([score.value, score.error, score.rows]).all()
            assert score.rows >= 1


def test_noise_can_not_push_accuracy_out_of_its_range():
    assert read_score(CLASSES, np.array([[-5.0, 8.0]]), 5.0).value == 1.0
    assert read_score(CLASSES, np.array([[8.0, -5.0]]), 5.0).value == 0.0
