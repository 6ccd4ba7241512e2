"""The score counts every labelled row, in two bins at most, and reads intervals from them."""

import numpy as np
import pytest

from tacita.tables import Schema, make_encoder
from tacita.tables.intervals import CURVE_ERROR
from tacita.tables.score import (
    CLASSES,
    COINS,
    ERROR_BINS,
    LARGEST_ERROR,
    ODDS,
    SCORES,
    SMALLER_ERROR,
    read_score,
)
from tacita.tables.score import score_counts as counts_with_coins
from tacita.testing.roc import auc
from tests.tables.buying import buy_score

THREE = make_encoder(Schema.loads("[target]\ncolumn='y'\nclasses=['a', 'b', 'c']"))
TWO = make_encoder(Schema.loads("[target]\ncolumn='y'\nclasses=['a', 'b']"))
NUMBER = make_encoder(Schema.loads("[target]\ncolumn='y'\nlower=0\nupper=1"))
NOISE = {SCORES: 5.0, CLASSES: 10.0}


def score_counts(encoder, outputs, target, known, labelled, **more):
    """The counts by fixed coins: the same row has the same ones, whatever rows come after it."""
    coins = np.random.default_rng(0).random((len(target), COINS)).T
    return counts_with_coins(encoder, outputs, target, known, labelled, coins=coins, **more)


def all_of(values):
    return np.ones(len(values), dtype=bool)


def says(classes, count=3):
    """Outputs of a model that says these classes."""
    return np.eye(count)[np.asarray(classes)]


def test_right_and_wrong_and_by_class():
    target = np.array([0, 2, 2, 2])
    found = score_counts(THREE, says([0, 1, 2, 2]), target, all_of(target), all_of(target))
    assert found[SCORES].tolist() == [1, 3]
    assert found[CLASSES].tolist() == [[0, 1], [0, 0], [1, 2]]


def test_a_label_that_is_no_class_of_the_model_is_wrong():
    target = np.array([0, 0, 0, 0])  # what an encoder gives for unknown labels, too
    known = np.array([True, True, False, False])
    found = score_counts(THREE, says([0, 0, 0, 0]), target, known, all_of(target))
    assert found[SCORES].tolist() == [2, 2]
    assert found[CLASSES].sum() == 2


def test_a_row_without_a_label_is_not_scored():
    target, labelled = np.array([0, 0, 0]), np.array([True, False, True])
    found = score_counts(THREE, says([0, 0, 0]), target, labelled, labelled)
    assert found[SCORES].tolist() == [0, 2]


def test_a_target_that_is_no_number_has_the_largest_error():
    known = np.array([True, False])
    found = score_counts(NUMBER, np.zeros((2, 1)), np.zeros(2), known, all_of(known))
    assert found[SCORES].tolist() == [1] + [0] * (ERROR_BINS - 2) + [1]
    assert found[CLASSES].sum() == 1


@pytest.mark.parametrize("odd", [0.0, 1e-9, 0.5, 3.0, -3.0, 1e30, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("encoder", [THREE, TWO, NUMBER])
def test_a_row_adds_at_most_one_to_one_bin_of_each_histogram(encoder, odd):
    width = len(encoder.classes) or 1
    outputs, target = np.zeros((4, width)), np.ones(4) if encoder is NUMBER else np.ones(4, dtype=int)
    outputs[3] = odd * np.arange(1, width + 1)
    before = score_counts(encoder, outputs[:3], target[:3], all_of(target[:3]), all_of(target[:3]))
    after = score_counts(encoder, outputs, target, all_of(target), all_of(target))
    for block, shape in ((SCORES, None), (CLASSES, None)):
        moved = (after[block] - before[block]).numpy()
        assert moved.min() >= 0
        assert moved.sum() == 1, (block, shape)
    if encoder is NUMBER and not abs(odd) < 4:  # far off or not a number: the worst bin, never the best
        assert (after[SCORES] - before[SCORES])[-1] == 1


def test_errors_are_of_targets_that_are_not_clipped():
    """A target beyond the bought bounds is as far off as it is: a wrong bound makes no good score."""
    target = np.full(100, 50.0)
    found = score_counts(NUMBER, np.full((100, 1), 2.9), target, all_of(target), all_of(target))
    assert found[SCORES][-1] == 100


def test_numbers_without_noise():
    target = np.r_[np.zeros(600, int), np.ones(400, int)]
    odds = np.where(np.arange(1000) % 5 == 0, -1.0, 1.0) * np.where(target == 1, 2.0, -2.0)  # one in five is wrong
    none = {SCORES: 0.0, CLASSES: 0.0}
    counts = score_counts(TWO, np.c_[0 * odds, odds], target, all_of(target), all_of(target))
    score = read_score(TWO, {block: values.numpy() for block, values in counts.items()}, none)
    assert (score.rows, score.value.value, score.balanced.value) == (1000, 0.8, 0.8)
    assert score.auc.lower < 0.8 < score.auc.value < score.auc.upper  # odds that are equal within a bin
    assert score.sizes == (600, 400)
    assert len(ODDS) + 1 == 10


@pytest.mark.parametrize("share", [0.5, 0.1, 0.014, 0.003])
@pytest.mark.parametrize("scale", [0.4, 1.0, 1.5])  # of the log odds that the model says, over those of the rows
def test_an_area_of_a_rare_class_is_near_the_exact_one(share, scale):
    """Ten bins, without noise: off by less than the interval allows for."""
    generator, centre, none = np.random.default_rng(0), np.log(share / (1 - share)), {SCORES: 0.0, CLASSES: 0.0}
    for spread in (0.5, 1.0, 2.0):
        odds = generator.normal(0, spread, 200_000)
        target = (generator.random(len(odds)) < 1 / (1 + np.exp(-odds - centre))).astype(int)
        said = scale * odds + centre
        counts = score_counts(TWO, np.c_[0 * said, said], target, known := all_of(target), known, centre=float(centre))
        found = read_score(TWO, {b: values.numpy() for b, values in counts.items()}, none, centre=float(centre))
        exact = auc(said[target == 1], said[target == 0])
        assert abs(found.auc.value - exact) < CURVE_ERROR
        assert found.value.value == pytest.approx(np.mean((said > 0) == target))
        recalls = np.mean(said[target == 1] > 0), np.mean(said[target == 0] <= 0)
        assert found.balanced.value == pytest.approx(np.mean(recalls))


def test_r2_is_near_the_exact_one(normals):
    generator = np.random.default_rng(0)
    target = generator.standard_normal(20_000)
    for residual in (0.2, 0.6, 1.0):
        predicted = target * (1 - residual**2) + residual * np.sqrt(1 - residual**2) * generator.standard_normal(20_000)
        exact = 1 - np.mean((predicted - target) ** 2) / np.mean(target**2)
        bought = buy_score(NUMBER, predicted[:, None], target, all_of(target), noise_std=NOISE, normals=normals())
        assert bought.value.value == pytest.approx(exact, abs=0.06)
        assert bought.value.lower < exact < bought.value.upper
        assert bought.rows == pytest.approx(20_000, abs=150)


@pytest.mark.parametrize("largest", [LARGEST_ERROR, SMALLER_ERROR])
def test_without_noise_r2_is_that_of_values_bounded_as_counted(largest):
    none = {SCORES: 0.0, CLASSES: 0.0}
    target = np.random.default_rng(0).standard_normal(20_000)
    for predicted in (0.7 * target + 0.1, 0 * target, 0.3 - 0.2 * target):
        counts = score_counts(NUMBER, predicted[:, None], target, all_of(target), all_of(target), largest=largest)
        found = read_score(NUMBER, {block: values.numpy() for block, values in counts.items()}, none, largest).value
        errors = np.minimum((predicted - target) ** 2, largest)
        exact = 1 - errors.mean() / np.minimum(target**2, largest).mean()
        assert found.value == pytest.approx(exact, abs=0.06)


def test_a_target_all_on_one_side_of_its_bounds_scores_no_r2(normals):
    """Seen: 0.956 stated, and truly negative, where the bounds were wrong."""
    target = 100 + np.random.default_rng(0).standard_normal(2000)
    score = buy_score(NUMBER, np.full((2000, 1), 2.5), target, all_of(target), noise_std=NOISE, normals=normals())
    assert score.value.lower < 0


def test_too_few_rows_tell_nothing(normals):
    for encoder, width in ((TWO, 2), (THREE, 3), (NUMBER, 1)):
        for seed in range(40):
            nothing = np.zeros(0) if encoder is NUMBER else np.zeros(0, dtype=int)
            score = buy_score(
                encoder, np.zeros((0, width)), nothing, nothing != 0, noise_std=NOISE, normals=normals(seed)
            )
            assert score.value.upper - score.value.lower > 0.5
            assert score.rows >= 0


def test_noise_can_not_push_accuracy_out_of_its_range():
    counts = {SCORES: np.array([-5.0, 80.0]), CLASSES: np.zeros((3, 2))}
    found = read_score(THREE, counts, {SCORES: 5.0, CLASSES: 5.0}).value
    assert (found.value, found.upper) == (1.0, 1.0)
    counts = {SCORES: np.array([80.0, -5.0]), CLASSES: np.zeros((3, 2))}
    assert read_score(THREE, counts, {SCORES: 5.0, CLASSES: 5.0}).value.value == 0.0


def test_targets_beyond_the_bounds_have_bins_of_their_own_where_rows_are_many():
    """One row still adds 1 to one bin, and what is read is the share of the true ones that lie outside."""
    target = np.array([-9.0, -3.0, 0.0, 3.0, 3.1, 50.0, np.inf])
    rows = len(target)
    for largest, share in ((LARGEST_ERROR, 4 / 7), (SMALLER_ERROR, None)):
        counts = score_counts(NUMBER, np.zeros((rows, 1)), target, known := all_of(target), known, largest=largest)
        assert counts[CLASSES].sum() == rows
        found = read_score(NUMBER, {name: one.numpy() * 1000 for name, one in counts.items()}, NOISE, largest)
        assert (None if found.outside is None else found.outside[0]) == share
