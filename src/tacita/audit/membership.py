r"""How well an attack tells members from non-members: AUC, true positives at few false ones, the ROC curve.

Place: audit.bounds -> [audit.membership] -> reports, numbers in, numbers out. What an attacker
gains in practice, beside what an audit proves: a low value here bounds no epsilon, since a better attack may exist.

Source: Carlini et al. (2022), https://arxiv.org/abs/2112.03570, for true positives at low false positive rates;
Birnbaum and Klose (1957), Annals of Mathematical Statistics 28(4), for the variance of the AUC.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import special

from tacita import _validate
from tacita.audit.bounds import Roc, auc, clopper_pearson_lower, clopper_pearson_upper, roc, tpr_at_fpr

LOW_RATES = (0.001, 0.01, 0.1)


@dataclass(frozen=True)
class Interval:
    """An estimate and limits that hold, each way, with the confidence of the metrics they belong to."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Membership:
    """What an attack's scores are worth. Limits take the scores to be independent; in one run they nearly are.

    Attributes:
        auc: Chance that a member's score is above a non-member's, ties by half.
        tpr: False positive rate -> true positive rate of the lowest threshold that keeps to it.
        members: Number of members.
        others: Number of non-members. Of a false positive rate below one over it nothing can be measured.
        confidence: Of each interval by itself.
        roc: The curve, for a plot.
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
    """The metrics of membership inference from scores.

    Args:
        scores: One a candidate, shape (candidates,); high says "member". NaN counts as the highest.
        members: Who is one, bool, shape (candidates,).
        confidence: Of each interval, in (0, 1).
        false_positive_rates: Where the true positive rate is told.

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
            f"scores and members must have one shape, the latter bool, got {scores.shape}, {members.shape}."
        )
    present, absent = scores[members], scores[~members]
    if not len(present) or not len(absent):
        raise ValueError("members must hold some of both: True and False.")
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
    r"""Limits of an AUC whose smaller class has ``smaller`` scores, for whatever two continuous laws.

    An AUC of :math:`a` is measured with a variance of at most :math:`a (1 - a) / \min(m, n)` (Birnbaum and Klose), the
    variance of a proportion; the limits are Wilson's for it. They are wider than need be for ordinary scores, and do
    not close at 0 or 1.

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
    """The threshold was chosen on the non-members: given it, the members above it are binomial."""
    hits = round(value * members)
    return Interval(
        value,
        float(clopper_pearson_lower(hits, members, error / 2)),
        float(clopper_pearson_upper(hits, members, error / 2)),
    )
