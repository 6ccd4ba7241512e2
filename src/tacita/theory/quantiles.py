r"""Quantiles of measured errors, to be held against statements "with probability at least 1 - beta".

Place: runs of an experiment -> [theory.quantiles] -> tests, reports. Distribution-free: order statistics and the exact
binomial law, whatever the tail.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta as beta_law
from scipy.stats import binom

from tacita import _validate


@dataclass(frozen=True)
class QuantileInterval:
    """A quantile of a law, from draws of it.

    Attributes:
        low, high: The quantile is between them but for ``false_alarm``; infinite where there are too few draws.
        estimate: The quantile of the draws.
    """

    low: float
    estimate: float
    high: float


def quantile_interval(draws: ArrayLike, level: float, *, false_alarm: float) -> QuantileInterval:
    r"""The ``level`` quantile with exact limits: order statistics, :math:`\mathrm{Binomial}(n, \text{level})`.

    Args:
        draws: Independent draws, any law; NaN counts as infinite.
        level: In (0, 1).
        false_alarm: Chance that the quantile is outside, at most; half on each side.

    Example:
        >>> found = quantile_interval(range(1, 1001), 0.9, false_alarm=0.05)
        >>> found.low, found.high
        (881.0, 919.0)
    """
    _validate.delta("level", level)
    _validate.delta("false_alarm", false_alarm)
    values = np.sort(np.nan_to_num(np.asarray(draws, dtype=np.float64).ravel(), nan=np.inf, posinf=np.inf))
    n = _validate.count("number of draws", len(values))
    below = int(binom.ppf(false_alarm / 2, n, level))  # P(fewer draws below the quantile) <= false_alarm / 2
    above = int(binom.isf(false_alarm / 2, n, level))
    low = -np.inf if below == 0 else float(values[below - 1])
    high = np.inf if above >= n else float(values[above])
    return QuantileInterval(low, float(np.quantile(values, level, method="inverted_cdf")), high)


def failure_rate_limit(draws: ArrayLike, bound: float, *, false_alarm: float) -> float:
    r"""The largest failure probability that is consistent with so many of the draws being above ``bound``.

    The upper Clopper-Pearson limit: a statement "at most ``bound`` with probability 1 - beta" is borne out once this is
    below beta.

    Example:
        >>> round(failure_rate_limit([0.1] * 100, 0.2, false_alarm=0.01), 4)  # 1 - 0.01 ** (1 / 100)
        0.045
    """
    _validate.delta("false_alarm", false_alarm)
    values = np.asarray(draws, dtype=np.float64).ravel()
    n = _validate.count("number of draws", len(values))
    failed = int(n - np.count_nonzero(values <= bound))
    return 1.0 if failed == n else float(beta_law.ppf(1 - false_alarm, failed + 1, n - failed))
