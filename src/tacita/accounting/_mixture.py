r"""The pair (mixture of N(shift, 1), N(0, 1)) as a privacy loss distribution, both directions.

Place: the ground of accounting; numbers in, numbers out. dp_accounting has this pair too, but looks for the inverse of
the loss between those of the smallest and of the largest shift, and it need not lie there: :math:`e^{sx - s^2/2}` is
largest at s = x, so a shift in between may exceed both. Some of the deltas it finds are too small. Here the loss
:math:`L(x) = \log \sum_j p_j e^{s_j x - s_j^2/2}`, which rises from :math:`\log p_0`, is inverted by bisection.
"""

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.special import log_ndtr, ndtr

REACH = 10.0  # standard deviations beyond the outermost mode; the mass beyond, 1e-23, becomes infinite loss
TABLE = 4096
BISECTIONS = 34  # of a bracket of the table: together below the rounding of x


def mixture_distribution(
    shifts: tuple[float, ...], chances: tuple[float, ...], interval: float
) -> PrivacyLossDistribution:
    """Both directions, pessimistically discretised. Shifts are >= 0, not all of them 0; chances > 0 sum to 1."""
    s, log_p = np.array(shifts), np.log(np.array(chances))
    ends = _loss(np.array([-REACH, max(shifts) + REACH]), s, log_p)
    present = _discretised(lambda e: _present_over_absent(e, s, log_p), ends[0], ends[1], interval)
    absent = _discretised(lambda e: _absent_over_present(e, s, log_p), -ends[1], -ends[0], interval)
    return PrivacyLossDistribution(present, absent)


def _loss(x: np.ndarray, shifts: np.ndarray, log_chances: np.ndarray) -> np.ndarray:
    return np.logaddexp.reduce([a + s * x - s * s / 2 for s, a in zip(shifts, log_chances, strict=True)], axis=0)


def _cut(losses: np.ndarray, shifts: np.ndarray, log_chances: np.ndarray) -> np.ndarray:
    """The x at which the loss is each of ``losses``; ``-inf`` where every x has more."""
    table = np.linspace(-4 * REACH, shifts.max() + 2 * REACH, TABLE)
    at = np.clip(np.searchsorted(_loss(table, shifts, log_chances), losses), 1, TABLE - 1)
    low, high = table[at - 1], table[at]
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = _loss(middle, shifts, log_chances) > losses
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.where(losses <= _loss(table[:1], shifts, log_chances), -np.inf, high)


def _present_over_absent(epsilons: np.ndarray, shifts: np.ndarray, log_chances: np.ndarray) -> np.ndarray:
    cut = _cut(epsilons, shifts, log_chances)
    upper = np.sum([np.exp(a) * ndtr(s - cut) for s, a in zip(shifts, log_chances, strict=True)], axis=0)
    return upper - np.exp(epsilons + log_ndtr(-cut))


def _absent_over_present(epsilons: np.ndarray, shifts: np.ndarray, log_chances: np.ndarray) -> np.ndarray:
    cut = _cut(-epsilons, shifts, log_chances)
    lower = np.logaddexp.reduce([a + log_ndtr(cut - s) for s, a in zip(shifts, log_chances, strict=True)], axis=0)
    return ndtr(cut) - np.exp(epsilons + lower)


def _discretised(deltas_at, low: float, high: float, interval: float) -> pld_pmf.PLDPmf:
    """Connect the dots of the deltas on the grid; rounding that makes one rise is rounded up."""
    first, last = int(np.floor(low / interval)), int(np.ceil(high / interval))
    deltas = np.clip(deltas_at(np.arange(first, last + 1) * interval), 0.0, 1.0)
    deltas = np.maximum.accumulate(deltas[::-1])[::-1]
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas)
