"""Printed intervals cover the truth as often as they say, from 100 rows to ten million: counts are drawn, not rows."""

import numpy as np
import pytest
from scipy.stats import binom, norm

from tacita.tables import intervals

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
        found = [intervals.mean_recall(r, r + w, 1, noise) for r, w in zip(kept, others, strict=True)]
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
        found = [intervals.area_under_curve(first, second, noise) for first, second in zip(*classes, strict=True)]
        given = [one for one in found if one is not None]
        if given:
            assert 1 - (1 - covers(given, norm.cdf(gap / 2**0.5))) * len(given) / DRAWS >= FEWEST, noise
        if len(given) > DRAWS / 2:
            assert covers(given, norm.cdf(gap / 2**0.5)) >= FEWEST, noise
