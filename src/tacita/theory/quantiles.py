r"""Quantiles of measured errors, for testing statements that hold "with probability at least 1 - beta".

They use order statistics and the exact binomial law, so they hold for every distribution and every tail.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta as beta_law
from scipy.stats import binom

from tacita import _validate
from tacita.theory._domains import checked


@dataclass(frozen=True)
class QuantileInterval:
    """A quantile of a distribution, estimated from draws.

    Attributes:
        low, high: Limits that contain the quantile with probability at least 1 - ``false_alarm``; infinite where there
            are too few draws.
        estimate: The quantile of the draws.
    """

    low: float
    estimate: float
    high: float


@checked()
def quantile_interval(draws: ArrayLike, level: float, *, false_alarm: float) -> QuantileInterval:
    r"""Return the ``level`` quantile with exact limits.

    The limits are order statistics, chosen by the law :math:`\mathrm{Binomial}(n, \text{level})`.

    Args:
        draws: Independent draws from any distribution; NaN counts as infinite.
        level: In (0, 1).
        false_alarm: The largest allowed probability that the quantile is outside the limits, half on each side.

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


@checked()
def failure_rate_limit(draws: ArrayLike, bound: float, *, false_alarm: float) -> float:
    r"""Return the largest failure probability that is consistent with the number of draws above ``bound``.

    It is the upper Clopper-Pearson limit. The draws support the statement "at most ``bound`` with probability 1 - beta"
    if the limit is below beta.

    Example:
        >>> round(failure_rate_limit([0.1] * 100, 0.2, false_alarm=0.01), 4)  # 1 - 0.01 ** (1 / 100)
        0.045
    """
    _validate.delta("false_alarm", false_alarm)
    values = np.asarray(draws, dtype=np.float64).ravel()
    n = _validate.count("number of draws", len(values))
    failed = int(n - np.count_nonzero(values <= bound))
    return 1.0 if failed == n else float(beta_law.ppf(1 - false_alarm, failed + 1, n - failed))
