"""Printed intervals cover the truth as often as they say, from 100 rows to ten million: counts are drawn, not rows."""

import os

import numpy as np
import pytest
from scipy.stats import binom, norm

from tacita.tables import intervals
from tacita.tables.score import LARGEST_ERROR, SMALLER_ERROR, _error_edges, _target_edges, _target_pairs

DRAWS = 3000
NOISES = (1.0, 2.0, 5.0, 20.0)
FALSE_ALARM = 1e-4  # of one setting, if its interval covers with chance 0.95
FEWEST = binom.ppf(FALSE_ALARM, DRAWS, intervals.LEVEL) / DRAWS


def noisy(generator, counts, noise):
    return np.rint(counts + noise * generator.standard_normal(counts.shape))


def covers(found, truth):
    return float(np.mean([one.lower <= truth <= one.upper for one in found]))


def of_accuracy(rows, accuracy, noise, narrower=1.0):
    """The share of intervals that cover; ``narrower``: the twin, whose intervals are so many times narrower."""
    generator = np.random.default_rng(rows)
    right = generator.binomial(rows, accuracy, DRAWS)
    counts = noisy(generator, np.stack([right, rows - right]), noise)
    found = [intervals.share(kept, others, noise) for kept, others in counts.T.tolist()]
    if narrower != 1:
        middle = [(one.lower + one.upper) / 2 for one in found]
        half = [(one.upper - one.lower) / 2 / narrower for one in found]
        return float(np.mean(np.abs(np.array(middle) - accuracy) <= half))
    return covers(found, accuracy)


@pytest.mark.parametrize("rows", [10**k for k in range(2, 8)])
@pytest.mark.parametrize("accuracy", [0.5, 0.9, 0.99, 0.999, 0.9999])
def test_accuracy(rows, accuracy):
    for noise in NOISES:
        assert of_accuracy(rows, accuracy, noise) >= FEWEST, noise


def test_the_check_can_fail():
    assert of_accuracy(10**6, 0.9, 2.0, narrower=1.2) < FEWEST


def test_a_million_rows_have_a_value():
    found = intervals.share(999_370.0, 630.0, 2.0)
    assert found.value == pytest.approx(0.99937)
    assert 0 < found.upper - found.lower < 2e-4


@pytest.mark.parametrize("rows", [10**k for k in range(2, 8)])
@pytest.mark.parametrize("recall", [0.5, 0.9, 0.99, 0.999, 0.9999])
def test_balanced_accuracy(rows, recall):
    recalls, sizes = np.array([recall, 0.8]), np.array([rows // 4, rows - rows // 4])
    for noise in NOISES:
        generator = np.random.default_rng(rows)
        right = generator.binomial(sizes, recalls, (DRAWS, 2))
        kept, others = noisy(generator, right, noise), noisy(generator, sizes - right, noise)
        found = [intervals.mean_recall(r, r + w, np.ones((2, 2)), noise) for r, w in zip(kept, others, strict=True)]
        given = [one for one in found if one is not None]
        missed = sum(not one.lower <= recalls.mean() <= one.upper for one in given)
        assert 1 - missed / DRAWS >= FEWEST, noise
        if len(given) > DRAWS / 2:
            assert np.mean([one.lower <= recalls.mean() <= one.upper for one in given]) >= FEWEST, noise


EDGES = np.array([-np.inf, -4.0, -2.5, -1.5, -0.75, 0.0, 0.75, 1.5, 2.5, 4.0, np.inf])


@pytest.mark.parametrize("rows", [10**k for k in range(2, 8)])
@pytest.mark.parametrize("gap", [0.2, 1.0, 2.5])
def test_auc(rows, gap):
    """Two normal laws of log odds, ``gap`` apart; the true area is that of the odds, not of their bins."""
    laws = [np.diff(norm.cdf(EDGES, loc=centre)) for centre in (-gap / 2, gap / 2)]
    for noise in NOISES:
        generator = np.random.default_rng(rows)
        classes = [
            noisy(generator, generator.multinomial(size, law, DRAWS), noise)
            for size, law in zip((rows - rows // 4, rows // 4), laws, strict=True)
        ]
        found = [
            intervals.area_under_curve(first, second, EDGES[1:-1], noise)
            for first, second in zip(*classes, strict=True)
        ]
        given = [one for one in found if one is not None]
        if given:
            assert 1 - (1 - covers(given, norm.cdf(gap / 2**0.5))) * len(given) / DRAWS >= FEWEST, noise
        if len(given) > DRAWS / 2:
            assert covers(given, norm.cdf(gap / 2**0.5)) >= FEWEST, noise


PEOPLE = 4000  # of whom rows are drawn: every law below is theirs, so that the true R2 is exact


def standardised(values):
    return (values - values.mean()) / values.std()


def explained(share, law, rest):
    """Predicted and true targets of variance 1, of which ``share`` is explained."""
    predicted = share**0.5 * standardised(law)
    return predicted, predicted + (1 - share) ** 0.5 * standardised(rest)


def targets_of_people():
    generator = np.random.default_rng(0)
    draw, rest = generator.standard_normal((2, PEOPLE))
    skewed, heavy = np.exp(0.7 * draw), generator.standard_t(3, (2, PEOPLE))
    rare = np.where(generator.random(PEOPLE) < 0.01, draw + 4, draw)
    return {
        "normal": explained(0.6, draw, rest),
        "nearly perfect": explained(0.999, draw, rest),
        "no use": explained(0.0, draw, rest),
        "skewed target": explained(0.5, skewed, rest),
        "errors grow with a skewed target": (0.5 * standardised(skewed), standardised(skewed)),
        "heavy tails": explained(0.6, *heavy),
        "rare errors": (rare, draw),
        "far from its centre": (2 + 0.15 * draw, 2 + 0.3 * (draw + rest) / 2**0.5),
        "bought scale too large": explained(0.5, 0.05 * draw, 0.05 * rest),
    }


PEOPLES = targets_of_people()


def chances(values, edges, coins):
    """The chance of each person's value of each bin, (people, bins): that of the number of coins that round it up."""
    values = np.clip(values, edges[0], edges[-1])
    lower = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    up = (values - edges[lower]) / np.diff(edges)[lower]
    found = np.zeros((len(values), coins * (len(edges) - 1) + 1))
    for number in range(coins + 1):
        found[np.arange(len(values)), coins * lower + number] += binom.pmf(number, coins, up)
    return found


def apart(chance, outside):
    """The chance of the bin at an edge, (people, 2): inside, and outside, where all of it is for some people."""
    return np.stack([np.where(outside, 0, chance), np.where(outside, chance, 0)], axis=1)


def of_r2(people, rows, noise, largest, *, draws=DRAWS, squares=None):
    """The share of intervals that cover R2; ``squares``: the twin, which reads bins in another way."""
    predicted, target = PEOPLES[people]
    edges, errors = _target_edges(largest), np.minimum((predicted - target) ** 2, largest)
    truth = 1 - errors.mean() / np.clip(target, edges[0], edges[-1]).var()
    bins = chances(target, edges, 2)
    if largest == LARGEST_ERROR:  # targets beyond the bounds have bins of their own
        bins = np.pad(bins, ((0, 0), (1, 1)))
        bins[:, :2], bins[:, -2:] = (
            apart(bins[:, 1], target < edges[0])[:, ::-1],
            apart(bins[:, -2], target > edges[-1]),
        )
    law = chances(errors, _error_edges(largest), 1).T @ bins / PEOPLE
    generator = np.random.default_rng(rows)
    both = generator.multinomial(rows, law.ravel() / law.sum(), draws).reshape(draws, *law.shape)
    known = {"errors_noise": noise, "targets_noise": 3**0.5 * noise}
    counts = noisy(generator, both.sum(2), noise), noisy(generator, both.sum(1), known["targets_noise"])
    squares = _error_edges(largest) if squares is None else squares
    return covers(
        [intervals.ratio(one, squares, two, _target_pairs(largest), **known) for one, two in zip(*counts, strict=True)],
        truth,
    )


@pytest.mark.parametrize("rows", [10**k for k in range(2, 8)])
@pytest.mark.parametrize("people", PEOPLES)
def test_r2(people, rows):
    """Clipped, skewed, far off: the law of the counts is exact, and so is the R2 of bounded values."""
    settings = (20.0, LARGEST_ERROR), (1.0, LARGEST_ERROR), (5.0, SMALLER_ERROR)
    for noise, largest in settings if rows <= 10**3 or os.environ.get("TACITA_AUDIT") else settings[:1]:
        assert of_r2(people, rows, noise, largest) >= FEWEST, (noise, largest)


def test_the_check_of_r2_can_fail():
    """Bins that are read at four fifths of their squared errors, at a million rows."""
    assert of_r2("rare errors", 10**6, 5.0, LARGEST_ERROR, draws=300, squares=0.8 * _error_edges(LARGEST_ERROR)) < 0.5


def of_mean_error(people, rows, noise, largest, *, narrower=1.0):
    """The share of intervals that cover the mean absolute error; ``narrower``: the twin."""
    predicted, target = PEOPLES[people]
    errors = np.minimum((predicted - target) ** 2, largest)
    edges, generator = _error_edges(largest), np.random.default_rng(rows)
    law = chances(errors, edges, 1).sum(0) / PEOPLE
    counts = noisy(generator, generator.multinomial(rows, law / law.sum(), DRAWS), noise)
    found = [one for one in (intervals.mean_root(each, edges, noise) for each in counts) if one is not None]
    truth = float(np.sqrt(errors).mean()) * narrower
    assert all(0 <= one.lower <= one.value <= one.upper for one in found)
    return 1 - (1 - covers(found, truth)) * len(found) / DRAWS if found else 1.0


@pytest.mark.parametrize("rows", [10**k for k in range(2, 8)])
@pytest.mark.parametrize("people", PEOPLES)
def test_mean_absolute_error(people, rows):
    for noise, largest in ((20.0, LARGEST_ERROR), (1.0, LARGEST_ERROR), (5.0, SMALLER_ERROR)):
        assert of_mean_error(people, rows, noise, largest) >= FEWEST, (noise, largest)


def test_the_check_of_mean_errors_can_fail():
    assert of_mean_error("normal", 10**6, 5.0, LARGEST_ERROR, narrower=1.04) < FEWEST
