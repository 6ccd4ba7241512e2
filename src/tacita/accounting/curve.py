r"""The privacy curve of a composition, :math:`\delta(\epsilon)` for every epsilon, and what an attacker gains from it.

Place: accountant, composition -> [accounting.curve] -> ledger, statement and report.
Sources: Blackwell (1953) by way of Dong, Roth and Su (2022), Proposition 2.13 (the trade-off curve from all deltas);
Gomez et al. (2025), https://arxiv.org/abs/2503.10945 (mu beside epsilon); Kairouz, Oh and Viswanath (2015), Theorem 2.1
(the region of both error rates). Proofs: docs/derivations/accounting.md, section 12.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from tacita import _validate
from tacita.accounting import accountant
from tacita.accounting.events import Spend
from tacita.accounting.gaussian import ROOM, gaussian_deltas
from tacita.accounting.pld_accountant import has_pld, pairs_of
from tacita.accounting.privacy_profiles import profile

POINTS = 400  # epsilons at which a curve is held against that of mu
LARGEST_EPSILON = 700.0
ROUNDED_UP = 1 + 1e-9
LARGEST_MU = 1e6
CLOSE = 1e-6  # relative, of mu
ACCURACY_ROUNDING = 4 * 2.0**-53  # of the few operations of an attacker's accuracy, relative

Deltas = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class PrivacyCurve:
    r"""An upper bound of delta at every epsilon >= 0, in both directions of every pair of neighbours.

    Attributes:
        deltas: Returns deltas at an array of epsilons >= 0, rounded up.
        whole: Whether the whole curve is known. ``False``: at least one part of it is the conversion of a Rényi curve
            or of an (epsilon, delta), which is looser than what is true.
    """

    deltas: Deltas
    whole: bool

    def true_positives(self, rates: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
        r"""Return the largest true positive rate of any attack at each false positive rate.

        It is the least, over ``epsilons``, of :math:`e^\epsilon\alpha + \delta(\epsilon)` and
        :math:`1 - e^{-\epsilon}(1 - \delta(\epsilon) - \alpha)`. Each epsilon alone is a bound; with all epsilons it is
        the trade-off curve.

        Args:
            rates: False positive rates, in [0, 1].
            epsilons: Where the curve is looked at, each >= 0 and at most 700.
        """
        deltas, odds = self.deltas(epsilons)[:, None], np.exp(epsilons)[:, None]
        rising = odds * rates + deltas
        mirrored = 1 - (1 - deltas - rates) / odds
        return np.minimum(1.0, np.min(np.minimum(rising, mirrored), axis=0) * ROUNDED_UP)

    def gaussian_mu(self, epsilon: float) -> float | None:
        r"""Return the least mu whose Gaussian curve lies above this one at every epsilon from 0 to ``epsilon``.

        Both are compared at points of a grid. Between two points this curve is below its chord in :math:`e^\epsilon`,
        and the Gaussian one is above its tangent at the left point: so the tangent has to be above both ends.

        Args:
            epsilon: >= 0 and finite. Above it, this curve is at most what it is there.

        Returns:
            mu, rounded up; ``None`` if none that is useful is known, or if the curve is not wholly known: each of its
            points then takes as long as a whole curve, and mu would be far larger than what is true.
        """
        if not (self.whole and epsilon <= LARGEST_EPSILON):
            return None
        points = np.linspace(0.0, epsilon, POINTS) if epsilon > 0 else np.zeros(1)
        wanted = self.deltas(points)
        if wanted[0] >= 1:
            return None
        if wanted[0] <= 0:
            return 0.0
        low, high = 0.0, 1e-3
        while not _lies_above(high, points, wanted):
            low, high = high, 2 * high
            if high > LARGEST_MU:
                return None
        while high - low > CLOSE * high:
            middle = (low + high) / 2
            low, high = (low, middle) if _lies_above(middle, points, wanted) else (middle, high)
        return high


def _lies_above(mu: float, points: np.ndarray, wanted: np.ndarray) -> bool:
    """Return whether the tangents of the Gaussian curve of ``mu`` lie above ``wanted``, at both ends of each step."""
    deltas, odds = gaussian_deltas(points, np.array(mu)) / ROUNDED_UP, np.exp(points)
    if np.any(deltas < wanted):
        return False
    slopes = -ndtr(-points[:-1] / mu - mu / 2) * ROUNDED_UP
    return bool(np.all(deltas[:-1] + slopes * np.diff(odds) >= wanted[1:]))


def privacy_curve(spends: Sequence[Spend]) -> PrivacyCurve:
    """Return delta at every epsilon >= 0 for all ``spends`` together.

    Args:
        spends: Sessions that may share records, fixed before the first release; all under one relation.

    Raises:
        ValueError: The relations differ.

    Example:
        >>> from tacita.accounting import FullBatchLaw, GaussianSumEvent
        >>> once = GaussianSumEvent(
        ...     relation="add_or_remove_one", sampling=FullBatchLaw(), max_contribution=(1.0,), noise_std=(2.0,))
        >>> curve = privacy_curve([Spend(once, 4)])
        >>> curve.deltas(np.array([0.0, 1.0])).round(6).tolist(), round(curve.gaussian_mu(3.0), 4)
        ([0.382925, 0.126937], 1.0)
    """
    merged = accountant.merged(spends)
    additive = math.fsum(spend.guarantee.additive_delta for spend in merged)
    gap = math.fsum(spend.guarantee.coupling_gap for spend in merged)
    alone = _of_noise(merged)

    def deltas(epsilons: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            swapped = gap * (1 + np.exp(np.minimum(epsilons, LARGEST_EPSILON)))
        return np.minimum(1.0, alone.deltas(epsilons) + additive + swapped)

    return PrivacyCurve(deltas, alone.whole)


def _of_noise(spends: tuple[Spend, ...]) -> PrivacyCurve:
    """Return the curve without failures that are added to it."""
    if not spends:
        return PrivacyCurve(lambda epsilons: np.zeros(len(epsilons)), True)
    if not all(spend.guarantee.private for spend in spends):
        return PrivacyCurve(lambda epsilons: np.ones(len(epsilons)), True)
    mu = accountant.gaussian_mu(spends)
    if mu is not None:
        return PrivacyCurve(lambda epsilons: gaussian_deltas(epsilons, np.array(mu)) * (1 + ROOM), True)
    closed = len(spends) == 1 and spends[0].guarantee.delta is not None
    if not closed and all(map(has_pld, spends)) and not any(spend.guarantee.rdp_may_be_less for spend in spends):
        return PrivacyCurve(profile(tuple(pairs_of(spends))), True)
    return PrivacyCurve(
        lambda epsilons: np.array([accountant.noise_delta(spends, float(one)) for one in epsilons]), closed
    )


def worst_curve(curves: Sequence[PrivacyCurve]) -> PrivacyCurve:
    """Return the curve of a record that is in one of several classes, whichever it is: the largest delta."""
    return PrivacyCurve(
        lambda epsilons: np.max([curve.deltas(epsilons) for curve in curves], axis=0),
        all(curve.whole for curve in curves),
    )


def attack_accuracy(epsilon: float, delta: float, *, prior: float = 0.5) -> float:
    r"""Return the largest chance that an attacker is right who must tell two neighbouring data sets apart.

    The attacker knows all other units, holds one of the two data sets for the true one with probability ``prior``
    before, sees everything that was released, and names one of them. Over the releases and the attacker's belief, the
    guess is right with probability at most

    .. math:: \max\left(1 - \frac{1 - \delta}{1 + e^{\epsilon}},\; p + (1 - p) \delta,\; 1 - p + p \delta\right),
              \qquad p = \text{prior}.

    Guarantee: an upper bound for every method that is (epsilon, delta)-private under the neighbouring relation, rounded
    up. At ``prior`` 1/2 it is :math:`(e^\epsilon + \delta) / (1 + e^\epsilon)`.

    Args:
        epsilon: >= 0; ``inf`` for no guarantee.
        delta: In [0, 1).
        prior: The attacker's belief before, in (0, 1).

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> [round(attack_accuracy(epsilon, 1e-5), 3) for epsilon in (0.0, 0.1, 1.0, 4.0)]
        [0.5, 0.525, 0.731, 0.982]
        >>> round(attack_accuracy(1.0, 1e-5, prior=0.9), 3)  # the prior alone is right more often
        0.9
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be >= 0, got {epsilon!r}.")
    _validate.below_one("delta", delta)
    _validate.inside("prior", prior)
    if epsilon == math.inf:
        return 1.0
    told_apart = 1 - (1 - delta) / (1 + math.exp(min(epsilon, LARGEST_EPSILON)))
    likelier = max(prior, 1 - prior)
    return min(1.0, max(told_apart, likelier + (1 - likelier) * delta) * (1 + ACCURACY_ROUNDING))


def curve_accuracy(deltas: Deltas, *, prior: float = 0.5) -> float:
    r"""Return the largest chance that an attacker is right, from the curve and not from one of its points.

    The attacker is that of :func:`attack_accuracy`. With :math:`L = \max(p, 1 - p)`, the guess is right with
    probability at most

    .. math:: L + (1 - L)\, \delta\left(\ln \frac{L}{1 - L}\right),

    and no less is true of a pair of neighbours that has this curve. At ``prior`` 1/2 it is
    :math:`(1 + \delta(0)) / 2`.

    Args:
        deltas: Returns upper bounds of delta at an array of epsilons >= 0, in both directions.
        prior: The attacker's belief before, in (0, 1).

    Example:
        >>> round(curve_accuracy(lambda epsilons: gaussian_deltas(epsilons, np.array(1.0))), 4)  # Phi(1/2)
        0.6915
    """
    _validate.inside("prior", prior)
    likelier = max(prior, 1 - prior)
    at = max(0.0, math.log(likelier / (1 - likelier))) / ROUNDED_UP  # delta falls: a smaller epsilon is a bound
    found = likelier + (1 - likelier) * float(deltas(np.array([at]))[0])
    return min(1.0, found * (1 + ACCURACY_ROUNDING))
