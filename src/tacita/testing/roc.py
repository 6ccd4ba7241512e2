"""The measured ROC curve of an attack: the area under it, its points, and their confidence limits."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from tacita import _validate
from tacita.testing.bounds import checked_scores, clopper_pearson_lower, clopper_pearson_upper


def auc(present, absent) -> float:
    """Return the area under the ROC curve: the probability that a score with the canary is above one without.

    Ties count one half.

    Example:
        >>> auc([1.0, 2.0], [0.0, 1.0])
        0.875
    """
    present, absent = checked_scores("present", present), checked_scores("absent", absent)
    ranks = stats.rankdata(np.concatenate([present, absent]))[: len(present)]
    return float((ranks.sum() - len(present) * (len(present) + 1) / 2) / (len(present) * len(absent)))


def tpr_at_fpr(present, absent, fpr: float) -> float:
    """Return the true positive rate of the lowest threshold whose measured false positive rate is at most ``fpr``.

    This is an estimate, not a bound.

    Example:
        >>> tpr_at_fpr([0.0, 1.0, 2.0, 3.0], [0.0, 0.5, 1.0, 1.5], fpr=0.25)
        0.5
    """
    present, absent = checked_scores("present", present), checked_scores("absent", absent)
    allowed = math.floor(fpr * len(absent))
    if allowed >= len(absent):
        return 1.0
    return float(np.mean(present > np.sort(absent)[len(absent) - 1 - allowed]))


@dataclass(frozen=True)
class Roc:
    """A measured trade-off curve. At each threshold, the limits hold for both rates together.

    Attributes:
        fpr: False positive rates, ascending.
        tpr: The true positive rates at the same thresholds.
        fpr_low: Lower Clopper-Pearson limit of the false positive rate.
        fpr_high: Upper limit of the false positive rate.
        tpr_low: Lower limit of the true positive rate.
        tpr_high: Upper limit of the true positive rate.
    """

    fpr: np.ndarray
    tpr: np.ndarray
    fpr_low: np.ndarray
    fpr_high: np.ndarray
    tpr_low: np.ndarray
    tpr_high: np.ndarray

    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and highest true positive rate at each false positive rate, given the errors of both.

        The lower edge goes through the points (``fpr_high``, ``tpr_low``), the upper edge through (``fpr_low``,
        ``tpr_high``). Beyond the outermost points, the edges are 0 and 1.
        """
        return (
            np.interp(self.fpr, self.fpr_high, self.tpr_low, left=0.0),
            np.interp(self.fpr, self.fpr_low, self.tpr_high, right=1.0),
        )


def roc(present, absent, confidence: float = 0.95, points: int = 200) -> Roc:
    """Return the measured ROC curve at false positive rates on a logarithmic grid, for a plot.

    The limits hold for each threshold by itself. The thresholds are scores without the canary. At the r-th highest of n
    such scores, the false positive rate follows Beta(r, n - r + 1). The lower quantile of this law is the lower limit
    of Clopper and Pearson; its upper quantile is below their upper limit.
    """
    present, absent = np.sort(checked_scores("present", present)), np.sort(checked_scores("absent", absent))
    # Number of runs without the canary whose score is at or above the threshold.
    ranks = np.unique(np.geomspace(1, len(absent), points).astype(int))
    thresholds = absent[len(absent) - ranks]
    hits = len(present) - np.searchsorted(present, thresholds, side="left")
    error = (1 - _validate.inside("confidence", confidence)) / 4  # two limits of two rates
    return Roc(
        fpr=ranks / len(absent),
        tpr=hits / len(present),
        fpr_low=clopper_pearson_lower(ranks, len(absent), error),
        fpr_high=clopper_pearson_upper(ranks, len(absent), error),
        tpr_low=clopper_pearson_lower(hits, len(present), error),
        tpr_high=clopper_pearson_upper(hits, len(present), error),
    )
