"""The accuracy interval covers with probability 0.95 for *every* accuracy, 100 rows or more and noise of 1 or more.

Nothing is drawn. Where rows and noise together have a variance of 100 or more, an expansion with explicit errors bounds
the chance of a miss. Below, cells of (rows, rows of the rarer kind, noise) cover everything, and in each cell every
argument stands at its worst end. Proof: docs/derivations/tables.md, section 3.
"""

import os
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom, norm, poisson

from tacita.tables import intervals

MISSES = 1 - intervals.LEVEL
FEWEST_ROWS = 100
FAR = 100.0  # variance of rows and noise from which on the expansion is used
STRETCH = 1 if os.environ.get("TACITA_AUDIT") else 200  # each cell of rare rows is looked at, or each 200th
NOISE_STEP, RARE_STEP, SHARE_STEP = 0.006, 0.012, 0.006
NOISES = np.exp(np.arange(0, np.log(np.sqrt(2 * FAR)) + NOISE_STEP, NOISE_STEP))  # beyond, the variance is FAR or more


def far_misses(variance, rows):
    """Bound the chance of a miss by the expansion, for variances and numbers of rows not below these."""
    std = np.sqrt(variance)
    tilt, excess = 4 / (6 * np.sqrt(3)) / std, 1 / (4 * rows)  # the two tails' variances are 1 + excess -+ tilt
    assert tilt + excess < 0.041
    least = variance * (1 - 0.041)
    both = 2 * norm.sf(intervals.Z) + 2 * 0.056 * excess + 0.034 * tilt**2
    skew = 0.15 * 2 * tilt / (6 * std)
    middle = (0.212 + 0.2 / 4) / np.pi / least
    rest = (2.45 * np.exp(-0.1224 * least) + 1.5e-5 + np.exp(-least / 8)) / np.pi
    return both + skew + 2 * (middle + rest) + rare_noise(rows)


def rare_noise(rows):
    """The chance that the noise moves the read variance by more than its allowance covers."""
    return 2 * norm.sf(np.sqrt(2 * np.sqrt(rows)) - 1)


def rare_cells():
    """Cells of the mean number of rows that are rarer (wrong, say), from 0 on."""
    ends = [0.0]
    while ends[-1] < 2 * FAR:
        ends.append(ends[-1] + RARE_STEP * np.sqrt(ends[-1] + 1))
    return pairwise(ends)


def row_cells(least, most):
    """Cells of the number of rows for a mean of least to most rare ones; the last has no end."""
    rows = max(FEWEST_ROWS, int(2 * least))
    while most / rows > SHARE_STEP:
        more = max(rows + 1, int(most / (most / rows - SHARE_STEP)))
        yield rows, more
        rows = more
    yield rows, np.inf


def near_misses(rows, rare, noise):
    """Bound the chance of a miss in a cell of rows and rare ones, for all cells of noise; 0 where it is far."""
    (fewest, most), (least, largest), (quiet, loud) = rows, rare, noise
    small, large = min(least / most, 0.5), min(largest / fewest, 0.5)
    counts = np.arange(max(0, int(least - 9 * np.sqrt(least) - 3)), int(largest + 9 * np.sqrt(largest) + 20))

    def law(mean):
        return poisson.pmf(counts, mean) if most == np.inf else binom.pmf(counts, most, min(mean / most, 1))

    top = np.floor(largest) + 1
    ratio = np.sqrt((1 - top / most) / (1 - top / fewest))  # of the chances of a count, at most
    low, high = small * (1 - small), large * (1 - large)
    std = np.sqrt(least * (1 - large) + (quiet**2 + intervals.ROUNDING) * (1 - 2 * high))
    widest = np.sqrt(largest * (1 - small) + (loud**2 + intervals.ROUNDING) * (1 - 2 * low))
    turn, turned = low / widest, high / std
    missed = rare_noise(fewest) + 1e-12  # the counts that are left out
    for side, mean, centre in ((1, largest, least), (-1, least, largest)):
        ends = side * turn * (1 - 2 * large), side * turned * (1 - 2 * small)
        squares = (
            1 - 2 * high - 2 * np.maximum(*ends) + 2 * turn**2,
            1 - 2 * low - 2 * np.minimum(*ends) + 2 * turned**2,
        )
        distance = (intervals.Z * std)[:, None] + side * (centre - counts)
        spread = np.where(
            distance > 0, (loud * np.sqrt(squares[1]))[:, None], (quiet * np.sqrt(squares[0].clip(0.5)))[:, None]
        )
        missed = missed + ratio * ndtr(-distance / spread) @ law(mean)
    return np.where(std**2 >= FAR, 0.0, missed)


def most_misses(stretch=STRETCH):
    noise = NOISES[:-1], NOISES[1:]
    cells = list(rare_cells())
    return max(near_misses(rows, rare, noise).max() for rare in cells[::stretch] for rows in row_cells(*rare))


def test_every_accuracy_is_covered_where_the_variance_is_small():
    assert most_misses() <= MISSES


def test_every_accuracy_is_covered_where_the_variance_is_large():
    assert far_misses(FAR, FEWEST_ROWS) <= MISSES
    assert far_misses(FAR, 10**4) <= MISSES - 0.002
    tails = 1 + np.linspace(-0.041, 0.041, 1001)
    level = intervals.Z / np.sqrt(tails)
    slope = norm.pdf(level) * tails**-1.5  # of the tail in the variance, times 2 / Z
    skewness = tails**-1.5 * (level**2 - 1) * norm.pdf(level)
    assert (intervals.Z / 2 * slope[tails <= 1.0026]).max() <= 0.056
    assert np.gradient(intervals.Z / 2 * slope, tails).max() <= 0.034
    assert np.abs(np.gradient(skewness, tails)).max() <= 0.15


def test_the_certificate_can_fail(monkeypatch):
    monkeypatch.setattr(intervals, "Z", 1.95)
    assert most_misses(600) > MISSES
    assert far_misses(FAR, FEWEST_ROWS) > MISSES


def accepted(accuracy, total, noise, skew):
    """The least and the largest noisy number of right rows whose test accepts, for each noisy number of rows."""
    variance = noise**2 + intervals.ROUNDING
    rows = np.maximum(total, 0) + np.sqrt(2 * variance)
    square = rows * accuracy * (1 - accuracy) + variance * (accuracy**2 + (1 - accuracy) ** 2)
    half = intervals.Z * np.sqrt(square) + skew
    return np.ceil(accuracy * total - half), np.floor(accuracy * total + half)


def coverage(rows, accuracy, noise, skew=intervals.SKEW):
    """The exact coverage of the test: given both errors of the noise, the right rows that it accepts are a range."""
    reach = int(np.ceil(6.5 * noise))
    errors = np.arange(-reach, reach + 1)
    chance = norm.cdf((errors + 0.5) / noise) - norm.cdf((errors - 0.5) / noise)
    least, most = (ends - errors[:, None] for ends in accepted(accuracy, rows + errors[:, None] + errors, noise, skew))
    inside = binom.cdf(most, rows, accuracy) - binom.cdf(least - 1, rows, accuracy)
    return float((np.outer(chance, chance) * np.maximum(inside, 0)).sum())


@pytest.mark.parametrize("noise", [0.3, 0.5, 1.0, 5.0])
def test_exact_coverage(noise):
    """Noise below 1, which the proof leaves out, among it."""
    for rows in (100, 150, 1000):
        for accuracy in np.linspace(0, 0.5, 41) ** 2 * 2:
            assert coverage(rows, accuracy, noise) >= intervals.LEVEL, (rows, accuracy)


def test_without_the_half_row_it_is_not():
    assert coverage(100, 0.01025, 1.0, skew=0.0) < intervals.LEVEL - 0.02


def test_accepted_counts_are_those_of_the_shipped_interval():
    generator = np.random.default_rng(0)
    for noise in (1.0, 5.0):
        right, wrong = np.rint(generator.normal([60.0, 8.0], 2 * noise, (500, 2))).T
        truth = generator.uniform(0, 1, 500)
        least, most = accepted(truth, right + wrong, noise, intervals.SKEW - 1e-9)
        for accuracy, one, other, ends in zip(truth, right, wrong, (least <= right) & (right <= most), strict=True):
            found = intervals.share(one, other, noise)
            assert not ends or found.lower - 1e-9 <= accuracy <= found.upper + 1e-9
