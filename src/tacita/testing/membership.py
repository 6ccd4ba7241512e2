r"""How well an attack tells members from non-members: AUC, true positive rate at low false positive rates, ROC curve.

This is what an attacker gains in practice. It does not bound epsilon from above, since a better attack may exist.

Source: Carlini et al. (2022), https://arxiv.org/abs/2112.03570, for true positives at low false positive rates;
Birnbaum and Klose (1957), Annals of Mathematical Statistics 28(4), for the variance of the AUC.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import special

from tacita import _validate
from tacita.testing.bounds import clopper_pearson_lower, clopper_pearson_upper
from tacita.testing.roc import Roc, auc, roc, tpr_at_fpr

LOW_RATES = (0.001, 0.01, 0.1)


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence limits."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The metrics of a membership inference attack. Their limits assume independent scores; in one run they nearly are.

    Attributes:
        auc: Probability that a member's score is above a non-member's; ties count one half.
        tpr: False positive rate -> true positive rate of the lowest threshold whose false positive rate is at most it.
        members: Number of members.
        others: Number of non-members. False positive rates below one over it cannot be measured.
        confidence: Of each interval by itself.
        roc: The ROC curve, for a plot.
    """

    auc: Interval
    tpr: dict[float, Interval]
    members: int
    others: int
    confidence: float
    roc: Roc = field(repr=False)


def membership(
    scores,
    members,
    *,
    confidence: float = 0.95,
    false_positive_rates: Sequence[float] = LOW_RATES,
) -> Membership:
    """Compute the metrics of membership inference from scores.

    Args:
        scores: One score per candidate, shape (candidates,); high means "member". NaN counts as the highest.
        members: Which candidates are members, bool, shape (candidates,).
        confidence: Of each interval, in (0, 1).
        false_positive_rates: The false positive rates at which the true positive rate is computed.

    Raises:
        ValueError: Shapes differ, or there are no members, or only members.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> members = rng.random(2000) < 0.5
        >>> found = membership(rng.normal(2.0 * members, 1.0), members)
        >>> round(found.auc.value, 2), found.auc.low < 0.921 < found.auc.high
        (0.93, True)
        >>> round(found.tpr[0.01].value, 2)
        0.35
    """
    scores, members = np.asarray(scores, dtype=np.float64), np.asarray(members)
    if scores.ndim != 1 or scores.shape != members.shape or members.dtype != np.bool_:
        raise ValueError(
            f"scores and members must have the same shape, and members must be bool, got {scores.shape} and "
            f"{members.shape}, {members.dtype}."
        )
    present, absent = scores[members], scores[~members]
    if not len(present) or not len(absent):
        raise ValueError("members must hold both True and False.")
    error = 1 - _validate.delta("confidence", confidence)
    return Membership(
        auc=auc_interval(auc(present, absent), min(len(present), len(absent)), error),
        tpr={rate: _rate(tpr_at_fpr(present, absent, rate), len(present), error) for rate in false_positive_rates},
        members=len(present),
        others=len(absent),
        confidence=confidence,
        roc=roc(present, absent, confidence),
    )


def auc_interval(value: float, smaller: int, error: float) -> Interval:
    r"""Return confidence limits of an AUC, for any two continuous laws of the scores.

    The smaller class has ``smaller`` scores. The measured AUC has a variance of at most :math:`a (1 - a) / \min(m, n)`
    if :math:`a` is the true one (Birnbaum and Klose). This is the variance of a proportion, and the limits are Wilson's
    limits of it. They are wider than necessary for ordinary scores, and have a positive width at 0 and 1.

    Example:
        >>> found = auc_interval(0.5, 100, 0.05)
        >>> round(found.low, 3), round(found.high, 3)
        (0.404, 0.596)
    """
    z2 = float(special.ndtri(1 - error / 2)) ** 2
    centre = (value + z2 / (2 * smaller)) / (1 + z2 / smaller)
    half = (z2 * (value * (1 - value) / smaller + z2 / (4 * smaller**2))) ** 0.5 / (1 + z2 / smaller)
    return Interval(value, max(0.0, centre - half), min(1.0, centre + half))


def _rate(value: float, members: int, error: float) -> Interval:
    """Return limits of a true positive rate.

    The threshold was chosen on the non-members, so given the threshold the number of members above it is binomial.
    """
    hits = round(value * members)
    return Interval(
        value,
        float(clopper_pearson_lower(hits, members, error / 2)),
        float(clopper_pearson_upper(hits, members, error / 2)),
    )
