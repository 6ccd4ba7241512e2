r"""Intervals of scores from noisy counts, at least 95 %: they cover sampling and noise together.

Each interval is the set of values that a test would not reject. For a ratio :math:`\theta = E u / E v` the statistic
:math:`\sum u - \theta \sum v` has mean zero at the truth for every number of rows, and its standard deviation is known
up to estimates that err upwards. Proofs: docs/derivations/tables.md.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

LEVEL = 0.95
Z = 2.0  # standard deviations: 95.4 % of a normal law
VISIBLE = 3.0  # a number of rows below so many standard deviations of its noise is taken for none
ROUNDING = 1 / 12  # variance that rounding to whole numbers adds
SKEW = (Z**2 - 1) / 6  # rows: what the skewness of a sum of rows moves its quantiles, at most
FARTHEST = 1e3  # R2 is searched down to 1 - FARTHEST
BIN_ERROR = 0.04  # allowed relative error of a mean that is read from the bins between the outermost ones
STEEPEST = 6.0  # power of a value by which a bin's density may grow or fall
CURVE_ERROR = 0.01  # allowed error of an area that is read from ten bins


class ScoreInterval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value and the interval that covers the true one with probability 0.95 or more.

    ``value`` is ``None`` if the interval is so wide that a number would be noise.

    The probability is over all runs: an interval is printed and misses with a chance of 0.05 or less. Where so few rows
    are counted that few runs print one, those that do may miss more often. An R2 assumes besides that sums are read
    from bins to within 4 %, apart from clipped values and the smallest errors, for which it allows in full.
    """

    value: float | None
    lower: float
    upper: float


def share(right: float, wrong: float, noise_std: float) -> ScoreInterval:
    """Return the interval of right / (right + wrong), from two noisy counts.

    Example:
        >>> found = share(80.0, 20.0, 0.0)  # Wilson's interval, half a row wider
        >>> round(found.lower, 2), found.value, round(found.upper, 2)
        (0.7, 0.8, 0.87)
    """
    value = min(max(right / max(right + wrong, 1.0), 0.0), 1.0)
    lower, upper = _share_end(wrong, right, noise_std), _share_end(right, wrong, noise_std)
    if lower is None or upper is None or 1 - lower > upper:
        return ScoreInterval(value=None, lower=0.0, upper=1.0)
    return _between(value, 1 - lower, upper, most=0.8)


def _share_end(right: float, wrong: float, noise_std: float) -> float | None:
    r"""Return the largest level :math:`a` that the test does not reject as too large; ``None`` if it rejects all.

    It rejects where :math:`a N - R > Z \sqrt{V(a)} + 1/2`, :math:`N = R + W`: above a root of a quadratic.
    """
    total, most, noise = right + wrong, right + SKEW, noise_std**2 + ROUNDING
    of_rows = Z**2 * (max(total, 0.0) + math.sqrt(2 * noise) - 2 * noise)
    if total - most <= Z * math.sqrt(noise):
        return 1.0
    if -most > Z * math.sqrt(noise):
        return None
    square, middle, rest = total**2 + of_rows, 2 * most * total + of_rows, most**2 - Z**2 * noise
    root = math.sqrt(max(middle**2 - 4 * square * rest, 0.0))
    return min(max((middle + root) / (2 * square), 0.0), 1.0) if square else 1.0


def ratio(
    errors: np.ndarray,
    squares: np.ndarray,
    targets: np.ndarray,
    means: np.ndarray,
    *,
    errors_noise: float,
    targets_noise: float,
    largest: float,
) -> ScoreInterval:
    """Return the interval of R2: 1 - sum of squared errors / sum of squared deviations from the mean.

    Args:
        errors: Noisy counts of squared errors.
        squares: The mean squared error in each of these bins.
        targets: Noisy counts of targets.
        means: The mean target in each of these bins and the mean of its square, shape (2, bins).
        errors_noise, targets_noise: Standard deviations of the noise on each count.
        largest: The bound on squared errors and squared targets; what is above counts as the bound.
    """
    rows = max(float(errors.sum()), 0.0) + math.sqrt(len(errors)) * errors_noise + 1
    number = max(float(targets.sum()), math.sqrt(len(targets)) * targets_noise, 1.0)
    mean = float(np.clip(targets @ means[0] / number, means[0, 0], means[0, -1]))
    deviations = means[1] - 2 * mean * means[0] + mean**2
    total, all_errors = float(targets @ deviations), float(errors @ squares)
    total_noise, error_noise = targets_noise * _norm(deviations), errors_noise * _norm(squares)
    spreads = _spread(errors, squares, errors_noise, rows), _spread(targets, deviations, targets_noise, number)
    levels = np.concatenate([np.linspace(0, 2, 4001), np.geomspace(2, FARTHEST, 2000)])
    shifted = (Z * targets_noise * _norm(means[0] - mean)) ** 2 / number  # the most that noise in the mean takes away
    bins = BIN_ERROR * (max(all_errors, 0.0) + levels * max(total, 0.0)) + levels * shifted
    lowest = max(float(errors[0]), 0.0) * float(squares[0])
    clipped = max(float(errors[-1]), 0.0) * (largest - float(squares[-1]))
    least = all_errors - lowest - levels * (total + _at_bound(targets, deviations, mean, largest))
    most = all_errors + lowest + clipped - levels * total
    off = np.maximum(np.maximum(least, -most) - bins, 0.0)
    sampling = max(rows, number) * (spreads[0] + levels * spreads[1]) ** 2
    inside = 1 - levels[off**2 <= Z**2 * (sampling + error_noise**2 + (levels * total_noise) ** 2)][::-1]
    value = min(max(1 - all_errors / max(total, 1e-9), 1 - FARTHEST), 1.0)
    return _interval(value, inside, (1 - FARTHEST, 1.0), most=2.0)


def _at_bound(targets: np.ndarray, deviations: np.ndarray, mean: float, largest: float) -> float:
    """Return by how much the sum of squared deviations grows if all targets of the two outermost bins are clipped."""
    ends = (np.array([-1.0, 1.0]) * math.sqrt(largest) - mean) ** 2 - deviations[[0, -1]]
    return float(np.maximum(targets[[0, -1]], 0.0) @ np.maximum(ends, 0.0))


def bin_means(
    counts: np.ndarray, lower: np.ndarray, upper: np.ndarray, powers: Sequence[int], noise_std: float
) -> np.ndarray:
    r"""Return the mean of each power of the values within each bin, shape (powers, bins).

    The middle of a bin would be too high, because larger values are rarer, as errors are. So the density within a bin
    is modelled as a power of the value, whose exponent is read from the neighbouring bins. The noisier the counts, the
    more the exponent is drawn to -1, for which bins of one ratio are equally full. In a bin that begins at 0 the values
    are taken to be spread evenly.

    Args:
        counts: Noisy counts of bins that all have the same ratio ``upper / lower``; the first may begin at 0.
        lower, upper: The edges of the bins, >= 0, increasing.
        powers: The powers of the values.
        noise_std: Standard deviation of the noise on a count.

    Example:
        >>> bin_means(np.array([70.0, 100.0, 141.0]), np.array([1.0, 2, 4]), np.array([2.0, 4, 8]), (1,), 0.0).round(2)
        array([[1.47, 2.94, 5.88]])
    """
    seen = np.log(np.maximum(counts, 0.0) + noise_std + 1)
    width = np.log(upper[-1] / lower[-1])
    slopes = np.clip(np.gradient(seen) / width, -STEEPEST, STEEPEST)
    even = np.stack([upper**power / (power + 1) for power in powers])
    start = np.where(lower > 0, lower, upper / np.exp(width))
    curved = np.stack([start**power * _mass(slopes + power, width) / _mass(slopes, width) for power in powers])
    return np.where(lower > 0, curved, even)


def _mass(exponents: np.ndarray, width: float) -> np.ndarray:
    """Return the integral of exp(exponent x) over x from 0 to ``width``."""
    flat = np.abs(exponents) < 1e-9
    safe = np.where(flat, 1.0, exponents)
    return np.where(flat, width, np.expm1(safe * width) / safe)


def _spread(counts: np.ndarray, values: np.ndarray, noise_std: float, rows: float) -> float:
    """Return the standard deviation of the values, with one standard deviation of noise added to their mean square."""
    mean = float(np.clip(counts @ values / rows, 0.0, values.max()))
    square = (float(counts @ values**2) + noise_std * _norm(values**2)) / rows
    return math.sqrt(min(max(square - mean**2, 0.0), mean * (float(values.max()) - mean) + 1e-12))


def mean_recall(right: np.ndarray, sizes: np.ndarray, parts: int, noise_std: float) -> ScoreInterval | None:
    """Return the interval of the mean recall over classes; ``None`` if a class has too few rows.

    Both the right rows of a class and the others are the sum of ``parts`` noisy counts.
    """
    spread = math.sqrt(2 * parts * (noise_std**2 + ROUNDING))
    if len(sizes) < 2 or float(sizes.min()) < max(2 * VISIBLE * spread, 2.0):
        return None
    recalls = np.clip(right / sizes, 0.0, 1.0)
    fewest = sizes - spread  # errs upwards as often as an estimate of the variance from it
    shrunk = (np.clip(right, 0.0, sizes) + 2) / (sizes + 4)
    sampling = shrunk * (1 - shrunk) / fewest
    noise = parts * (noise_std**2 + ROUNDING) * (recalls**2 + (1 - recalls) ** 2) / fewest**2
    half = Z * math.sqrt(float((sampling + noise).sum())) + SKEW / float(fewest.min())
    return _around(float(recalls.mean()), half / len(sizes))


def area_under_curve(negative: np.ndarray, positive: np.ndarray, noise_std: float) -> ScoreInterval | None:
    """Return the interval of the area under the curve, from noisy counts of two classes by bins of odds.

    The area is the chance that a row of the second class has higher odds than one of the first. ``None`` if a class has
    too few rows.
    """
    sizes = float(negative.sum()), float(positive.sum())
    spread = math.sqrt(len(positive) * (noise_std**2 + ROUNDING))
    if min(sizes) < max(2 * VISIBLE * spread, 2.0):
        return None
    below = np.clip((np.cumsum(negative) - negative / 2) / sizes[0], 0.0, 1.0)
    above = np.clip(1 - (np.cumsum(positive) - positive / 2) / sizes[1], 0.0, 1.0)
    area = min(max(float(positive @ below) / sizes[1], 0.0), 1.0)
    fewest = sizes[0] - spread, sizes[1] - spread
    noise = (noise_std**2 + ROUNDING) * (
        _norm(below - area) ** 2 / fewest[1] ** 2 + _norm(above - area) ** 2 / fewest[0] ** 2
    )
    fewer = min(fewest)
    shrunk = (area * fewer + 2) / (fewer + 4)
    return _around(area, Z * math.sqrt(shrunk * (1 - shrunk) / fewer + noise) + SKEW / fewer + CURVE_ERROR)


def _interval(value: float, inside: np.ndarray, widest: tuple[float, float], most: float) -> ScoreInterval:
    """Return the interval from the lowest to the highest value inside; without a value if it is wider than ``most``."""
    lower, upper = (float(inside[0]), float(inside[-1])) if len(inside) else widest
    return _between(value, lower, upper, most)


def _between(value: float, lower: float, upper: float, most: float) -> ScoreInterval:
    """Return the interval, which holds its value; without a value if it is wider than ``most``."""
    if upper - lower > most:
        return ScoreInterval(value=None, lower=lower, upper=upper)
    return ScoreInterval(value=value, lower=min(lower, value), upper=max(upper, value))


def _around(value: float, half: float) -> ScoreInterval:
    return ScoreInterval(value=value, lower=max(value - half, 0.0), upper=min(value + half, 1.0))


def _norm(values: np.ndarray) -> float:
    return float(np.linalg.norm(values))
