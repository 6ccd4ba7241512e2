r"""Intervals of scores from noisy counts, at least 95 %: they cover sampling and noise together.

Each interval is the set of values that a test would not reject. For a ratio :math:`\theta = E u / E v` the statistic
:math:`\sum u - \theta \sum v` has mean zero at the truth for every number of rows, and its standard deviation is known
up to estimates that err upwards. Proofs: docs/derivations/tables.md.
"""

import math

import msgspec
import numpy as np

LEVEL = 0.95
Z = 2.0  # standard deviations: 95.4 % of a normal law
VISIBLE = 3.0  # a number of rows below so many standard deviations of its noise is taken for none
ROUNDING = 1 / 12  # variance that rounding to whole numbers adds
SKEW = (Z**2 - 1) / 6  # rows: what the skewness of a sum of rows moves its quantiles, at most
SKEW_OF_READ = (2 * Z**2 + 1) / 6  # ... where the variance is read from the same rows
ROOT = 2 / (3**0.25 + 3**-0.25)  # of an error whose square lies between two edges, one three times the other
FARTHEST = 1e3  # R2 is searched down to 1 - FARTHEST
CURVE_ERROR = 0.015  # allowed error of an area that is read from ten bins
OUTER_BIN = 1.5  # width that an open bin of log odds is taken to have
MOST_WITHIN = 0.25  # area above a half within a bin, at most


class ScoreInterval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value and the interval that covers the true one with probability 0.95 or more.

    ``value`` is ``None`` if the interval is so wide that a number would be noise.

    The probability is over all runs: an interval is printed and misses with a chance of 0.05 or less. Where so few rows
    are counted that few runs print one, those that do may miss more often.
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
    values: np.ndarray,
    *,
    errors_noise: float,
    targets_noise: float,
) -> ScoreInterval:
    r"""Return the interval of R2: 1 - sum of squared errors / sum of squared deviations from the mean.

    Each row is counted in one bin of both lists, chosen at random so that the bins' values have the row's own values as
    their means (:mod:`tacita.tables.score`). So the rounding is one more part of the sampling, and the spread
    of the bins' values has it.

    Args:
        errors: Noisy counts of squared errors.
        squares: The squared error that each of these bins stands for, >= 0, increasing.
        targets: Noisy counts of targets.
        values: The target and the squared target that each of these bins stands for, shape (2, bins).
        errors_noise, targets_noise: Standard deviations of the noise on each count.
    """
    number, number_noise = float(targets.sum()), math.sqrt(len(targets)) * targets_noise
    if number < max(VISIBLE * number_noise, 2.0):
        return ScoreInterval(value=None, lower=1 - FARTHEST, upper=1.0)
    rows = max(float(errors.sum()) + math.sqrt(len(errors)) * errors_noise + 1, number)
    mean = float(np.clip(targets @ values[0] / number, values[0, 0], values[0, -1]))
    deviations = values[1] - 2 * mean * values[0] + mean**2
    all_errors, total = float(errors @ squares), float(targets @ deviations)
    of_errors = _spread(errors, squares, errors_noise, rows)
    of_targets = _spread(targets, deviations, targets_noise, number)
    of_mean = rows * _spread(targets, values[0], targets_noise, number) ** 2
    hidden = Z**2 * (of_mean + (targets_noise * _norm(values[0] - mean)) ** 2) / number  # by the mean's own error
    variance = Z**2 * np.array(
        [
            rows * of_errors**2 + (errors_noise * _norm(squares)) ** 2,
            rows * of_errors * of_targets,
            rows * of_targets**2 + (targets_noise * _norm(deviations)) ** 2,
        ]
    )
    far, below = SKEW_OF_READ * float(deviations.max()), SKEW_OF_READ * min(float(deviations.min()), 0.0)
    highest = _largest_ratio(all_errors + SKEW_OF_READ * float(squares.max()), total + below, variance)
    lowest = _smallest_ratio(all_errors, total + hidden + far, variance)
    value = min(max(1 - all_errors / max(total, 1e-9), 1 - FARTHEST), 1.0)
    if lowest > highest:
        lowest, highest = 0.0, FARTHEST
    return _between(value, 1 - min(highest, FARTHEST), 1 - min(lowest, FARTHEST), most=2.0)


def mean_root(counts: np.ndarray, squares: np.ndarray, noise_std: float) -> ScoreInterval | None:
    r"""Return the interval of a mean absolute error, from counts of squared errors; ``None`` if no rows are seen.

    An error e is counted as the root of a square that e^2 is rounded to at random. The mean of that is at most e, and
    at least e times ``ROOT``, or e - sqrt(s) / 4 below the smallest square s above 0.
    """
    values, number = np.sqrt(squares), float(counts.sum())
    fewest = number - math.sqrt(len(counts)) * noise_std
    if number < max(VISIBLE * math.sqrt(len(counts)) * noise_std, 2.0):
        return None
    mean = float(np.clip(counts @ values / number, 0.0, values[-1]))
    spread = _spread(counts, values, noise_std, number)
    half = Z * math.sqrt(number * spread**2 + (noise_std * _norm(values - mean)) ** 2) + SKEW_OF_READ * values[-1]
    upper = (mean + half / fewest) / ROOT + values[1] / 4
    return ScoreInterval(
        value=2 * mean / (1 + ROOT), lower=max(mean - half / fewest, 0.0), upper=min(upper, float(values[-1]))
    )


def _largest_ratio(errors: float, total: float, variance: np.ndarray) -> float:
    r"""Return the largest :math:`\rho` with :math:`\rho v - u \le \sqrt{a + 2 b \rho + c \rho^2}`, or ``inf``.

    ``errors`` is u, ``total`` v, and ``variance`` (a, b, c).
    """
    constant, middle, square = errors**2 - variance[0], errors * total + variance[1], total**2 - variance[2]
    if total <= 0 or square <= 0:
        return math.inf
    return (middle + math.sqrt(max(middle**2 - square * constant, 0.0))) / square


def _smallest_ratio(errors: float, total: float, variance: np.ndarray) -> float:
    r"""Return the smallest :math:`\rho \ge 0` with :math:`u - \rho v \le \sqrt{a + 2 b \rho + c \rho^2}`."""
    constant, middle, square = errors**2 - variance[0], errors * total + variance[1], total**2 - variance[2]
    if errors <= 0 or constant <= 0:
        return 0.0
    if total <= 0 and square >= 0:
        return math.inf
    return constant / (middle + math.sqrt(max(middle**2 - square * constant, 0.0)))


def _spread(counts: np.ndarray, values: np.ndarray, noise_std: float, rows: float) -> float:
    """Return the standard deviation of the values, with one standard deviation of noise added to their mean square."""
    least, most = float(values.min()), float(values.max())
    mean = float(np.clip(counts @ values / rows, least, most))
    square = (float(counts @ values**2) + noise_std * _norm(values**2)) / rows
    return math.sqrt(min(max(square - mean**2, 0.0), (mean - least) * (most - mean) + 1e-12))


def mean_recall(right: np.ndarray, sizes: np.ndarray, parts: np.ndarray, noise_std: float) -> ScoreInterval | None:
    """Return the interval of the mean recall over classes; ``None`` if a class has too few rows.

    ``parts``, (2, classes), tells of how many noisy counts the right rows of a class and its others are the sum.
    """
    spread = np.sqrt(parts.sum(0) * (noise_std**2 + ROUNDING))
    if len(sizes) < 2 or (sizes < np.maximum(2 * VISIBLE * spread, 2.0)).any():
        return None
    recalls = np.clip(right / sizes, 0.0, 1.0)
    fewest = sizes - spread  # errs upwards as often as an estimate of the variance from it
    shrunk = (np.clip(right, 0.0, sizes) + 2) / (sizes + 4)
    sampling = shrunk * (1 - shrunk) / fewest
    noise = (noise_std**2 + ROUNDING) * (parts[1] * recalls**2 + parts[0] * (1 - recalls) ** 2) / fewest**2
    half = Z * math.sqrt(float((sampling + noise).sum())) + SKEW / float(fewest.min())
    return _around(float(recalls.mean()), half / len(sizes))


def fewest_for_curve(bins: int, noise_std: float) -> float:
    """Return how many counted rows each class needs for an area under the curve."""
    return max(2 * VISIBLE * math.sqrt(bins * (noise_std**2 + ROUNDING)), 2.0)


def area_under_curve(
    negative: np.ndarray, positive: np.ndarray, edges: np.ndarray, noise_std: float
) -> ScoreInterval | None:
    r"""Return the interval of the area under the curve, from noisy counts of two classes by bins of log odds.

    The area is the chance that a row of the second class has higher odds than one of the first. Within a bin of width w
    it is taken to be :math:`1/2 + k w / 12`, k the slope of the log ratio of the classes over all bins, as for two
    normal laws; the interval reaches down to rows that all tie there. ``None`` if a class has too few rows.

    Args:
        negative, positive: Noisy counts of the first and of the second class.
        edges: Inner edges of the bins.
        noise_std: Standard deviation of the noise on each count.
    """
    sizes = float(negative.sum()), float(positive.sum())
    if min(sizes) < fewest_for_curve(len(positive), noise_std):
        return None
    spread = math.sqrt(len(positive) * (noise_std**2 + ROUNDING))
    below = np.clip((np.cumsum(negative) - negative / 2) / sizes[0], 0.0, 1.0)
    above = np.clip(1 - (np.cumsum(positive) - positive / 2) / sizes[1], 0.0, 1.0)
    ties = np.maximum(negative, 0.0) * np.maximum(positive, 0.0) / (sizes[0] * sizes[1])
    within = float(ties @ _within(negative, positive, edges))
    area = min(max(float(positive @ below) / sizes[1] + within, 0.0), 1.0)
    fewest = sizes[0] - spread, sizes[1] - spread
    noise = (noise_std**2 + ROUNDING) * (
        _norm(below - area) ** 2 / fewest[1] ** 2 + _norm(above - area) ** 2 / fewest[0] ** 2
    )
    fewer = min(fewest)
    shrunk = (area * fewer + 2) / (fewer + 4)
    unseen = CURVE_ERROR + MOST_WITHIN * float(ties[0] + ties[-1])  # of bins without an end nothing is known
    half = Z * math.sqrt(shrunk * (1 - shrunk) / fewer + noise) + SKEW / fewer + unseen
    return msgspec.structs.replace(_around(area, half), lower=max(area - within - half, 0.0))


def _within(negative: np.ndarray, positive: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return by how much the area within each bin is taken to be above a half."""
    ends = np.concatenate([[edges[0] - OUTER_BIN], edges, [edges[-1] + OUTER_BIN]])
    centres = (ends[1:] + ends[:-1]) / 2
    laws = [np.maximum(counts, 0.0) / np.maximum(counts, 0.0).sum() for counts in (negative, positive)]
    means = [float(law @ centres) for law in laws]
    variance = sum(float(law @ (centres - mean) ** 2) for law, mean in zip(laws, means, strict=True)) / 2
    slope = max(means[1] - means[0], 0.0) / max(variance, 1e-3)
    return np.minimum(slope * np.diff(ends) / 12, MOST_WITHIN)


def _between(value: float, lower: float, upper: float, most: float) -> ScoreInterval:
    """Return the interval, which holds its value; without a value if it is wider than ``most``."""
    if upper - lower > most:
        return ScoreInterval(value=None, lower=lower, upper=upper)
    return ScoreInterval(value=value, lower=min(lower, value), upper=max(upper, value))


def _around(value: float, half: float) -> ScoreInterval:
    return ScoreInterval(value=value, lower=max(value - half, 0.0), upper=min(value + half, 1.0))


def _norm(values: np.ndarray) -> float:
    return float(np.linalg.norm(values))
