"""A lower bound on the coverage of the accuracy interval for *every* accuracy, not at points: nothing is drawn.

Between two neighbouring accuracies the bound takes the pairs of counts whose interval holds both, and the distribution
of the right rows at the end that makes each side rarer. Proof: docs/derivations/tables.md, section 3.
"""

import os
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom, norm

from tacita.tables import intervals

AUDIT = bool(os.environ.get("TACITA_AUDIT"))
ROWS = (100, 300, 1000, 3000, 10_000) if AUDIT else (100,)
NOISES = (1.0, 2.0, 5.0, 10.0, 20.0) if AUDIT else (1.0, 5.0)
STEP = 0.03  # between accuracies, in standard deviations of their estimate without noise
REACH = 6.5  # standard deviations of noise; what lies beyond counts as a miss
SLACK = 1e-9  # by which the accepted counts are narrowed, for rounding here


def accepted(accuracy, total, noise, skew):
    """The least and the largest noisy number of right rows whose test accepts, for each noisy number of rows."""
    variance = noise**2 + intervals.ROUNDING
    rows = np.maximum(total, 0) + np.sqrt(2 * variance)
    square = rows * accuracy * (1 - accuracy) + variance * (accuracy**2 + (1 - accuracy) ** 2)
    half = intervals.Z * np.sqrt(square) + skew - SLACK
    return np.ceil(accuracy * total - half), np.floor(accuracy * total + half)


def accuracies(rows):
    """From 0 to one half; the interval treats right and wrong rows alike."""
    found = [0.0]
    while found[-1] < 0.5:
        last = found[-1]
        found.append(min(last + STEP * np.sqrt(max(last * (1 - last), 0.25 / rows) / rows), 0.5))
    return found


def least_coverage(rows, noise, skew=intervals.SKEW):
    """A number that the coverage is not below at any accuracy."""
    reach = int(np.ceil(REACH * noise))
    errors = np.arange(-reach, reach + 1)
    chance = norm.cdf((errors + 0.5) / noise) - norm.cdf((errors - 0.5) / noise)
    weights, total = np.outer(chance, chance), rows + errors[:, None] + errors

    def at(accuracy):
        below = np.concatenate([[0.0], binom.cdf(np.arange(rows + 1), rows, accuracy)])  # P(right rows < k)
        return (*(ends - errors[:, None] for ends in accepted(accuracy, total, noise, skew)), below)

    def covered(one, two):
        first, last = np.maximum(one[0], two[0]), np.minimum(one[1], two[1])
        up = two[2][np.clip(last + 1, 0, rows + 1).astype(int)]
        down = one[2][np.clip(first, 0, rows + 1).astype(int)]
        return float((weights * np.maximum(up - down, 0)).sum())

    points = [at(accuracy) for accuracy in accuracies(rows)]
    return min(covered(*pair) for pair in pairwise(points))


@pytest.mark.parametrize("rows", ROWS)
def test_every_accuracy_is_covered(rows):
    for noise in NOISES:
        assert least_coverage(rows, noise) >= intervals.LEVEL, noise


def test_without_the_half_row_it_is_not():
    assert least_coverage(100, 1.0, skew=0.0) < intervals.LEVEL - 0.02


def test_accepted_counts_are_those_of_the_shipped_interval():
    generator = np.random.default_rng(0)
    for noise in NOISES:
        right, wrong = np.rint(generator.normal([60.0, 8.0], 2 * noise, (500, 2))).T
        truth = generator.uniform(0, 1, 500)
        least, most = accepted(truth, right + wrong, noise, intervals.SKEW)
        for accuracy, one, other, ends in zip(truth, right, wrong, (least <= right) & (right <= most), strict=True):
            found = intervals.share(one, other, noise)
            assert not ends or found.lower - SLACK <= accuracy <= found.upper + SLACK
