r"""From the scores of two worlds to a lower bound on epsilon, with a stated confidence.

Place: [audit.bounds], numbers in, numbers out. ``present`` are scores of runs on the data set with the canary,
``absent`` of runs on its neighbour; a high score says "present". Derivation: docs/derivations/audit.md.

If a mechanism is :math:`(\epsilon, \delta)`-private then every event :math:`A` has :math:`P(A) \le e^{\epsilon} Q(A) +
\delta` and :math:`Q(A) \le e^{\epsilon} P(A) + \delta`. So each rate measured from below, and its partner from above,
give a lower bound on epsilon. The event is chosen (a threshold, one of the two directions) on the first fifth of the
runs, and judged on the others by Clopper-Pearson limits: the choice costs no confidence, and nothing is assumed about
the scores but that runs are independent. A run in one world may depend on the run of the same number in the other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special, stats

from tacita import _validate

SELECTION = 0.2  # of the runs, the first ones, choose the event; the others judge it
LEAST_RUNS = 10  # a world
CANDIDATES = 160  # thresholds tried, at most
STANDARD_ERROR = 0.16  # the tail beyond one of a normal
# How runs choose: (each counts as so many of them, the error of their limits over that of the judges').
CAREFUL = (1.0, 0.01)  # by what they are sure of themselves: else the rarest events, known least, look best
FORETOLD = ((1 - SELECTION) / SELECTION, 0.5)  # by what they foretell of the judges: for what rare events cannot win

Direction = Literal["present", "absent"]  # the world that the event points at
Gain = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (rate from below, rate from above) -> what is to be large


def clopper_pearson_lower(successes, trials, error: float) -> np.ndarray:
    """A lower limit of a probability: above it with a chance of at most ``error``, exactly.

    Args:
        successes: Counts, any shape; between whole numbers the limit interpolates.
        trials: Number of trials, broadcast against it.
        error: In (0, 1).

    Example:
        >>> round(float(clopper_pearson_lower(9, 10, 0.025)), 4)
        0.555
    """
    successes, trials = np.broadcast_arrays(np.asarray(successes, float), np.asarray(trials, float))
    limits = stats.beta.ppf(_error(error), np.maximum(successes, 1e-300), trials - successes + 1)
    return np.where(successes <= 0, 0.0, limits)


def clopper_pearson_upper(successes, trials, error: float) -> np.ndarray:
    """An upper limit of a probability: below it with a chance of at most ``error``, exactly.

    Example:
        >>> round(float(clopper_pearson_upper(0, 100, 0.05)), 4)
        0.0295
    """
    successes, trials = np.broadcast_arrays(np.asarray(successes, float), np.asarray(trials, float))
    limits = stats.beta.isf(_error(error), successes + 1, np.maximum(trials - successes, 1e-300))
    return np.where(successes >= trials, 1.0, limits)


@dataclass(frozen=True)
class Event:
    """Scores above (or at most) a threshold, chosen without looking at the runs that judge it.

    Attributes:
        threshold: Of the score.
        direction: ``"present"``: scores above the threshold; ``"absent"``: the others.
        hits: How many judging runs of the world that it points at are in it, of ``trials``.
        false_hits: How many of the other world.
        trials: Judging runs of that world.
        false_trials: Judging runs of the other.
    """

    threshold: float
    direction: Direction
    hits: int
    false_hits: int
    trials: int
    false_trials: int

    def limits(self, error: float) -> tuple[float, float]:
        """(its rate from below, that of the other world from above); both hold but for a chance of ``error``."""
        return (
            float(clopper_pearson_lower(self.hits, self.trials, error / 2)),
            float(clopper_pearson_upper(self.false_hits, self.false_trials, error / 2)),
        )


@dataclass(frozen=True)
class LowerBound:
    """What was measured, and the event that showed it.

    Attributes:
        value: At most the true value, with probability ``confidence``.
        confidence: Of the bound.
        event: The event.
        true_rate: Lower limit of the event's rate in the world that it points at.
        false_rate: Upper limit of its rate in the other.
    """

    value: float
    confidence: float
    event: Event
    true_rate: float
    false_rate: float


def epsilon_lower_bound(present, absent, delta: float, confidence: float = 0.95) -> LowerBound:
    r"""A lower bound on epsilon at ``delta``: :math:`\ln((\text{TPR} - \delta) / \text{FPR})`, at least 0.

    Guarantee: for a mechanism that is :math:`(\epsilon, \delta)`-private under a relation that holds both worlds, the
    bound exceeds epsilon with a chance of at most 1 - ``confidence``. That chance covers the choice of the threshold
    and of the direction.

    Args:
        present: Scores of independent runs with the canary, shape (runs,); NaN counts as the highest score.
        absent: Scores of independent runs without it.
        delta: In (0, 1).
        confidence: In (0, 1).

    Raises:
        ValueError: A setting is out of range, or a world has fewer than 10 runs.

    Example:
        >>> from tacita.accounting import gaussian_epsilon
        >>> rng = np.random.default_rng(0)
        >>> found = epsilon_lower_bound(rng.normal(1, 1, 100_000), rng.normal(0, 1, 100_000), delta=1e-2)
        >>> 0.8 < found.value / gaussian_epsilon(1.0, 1e-2) < 1.0
        True
    """
    _validate.inside("delta", delta)
    return _bound(present, absent, lambda tpr, fpr: _epsilon(tpr, fpr, delta), confidence, floor=0.0)


def mu_lower_bound(present, absent, confidence: float = 0.95) -> LowerBound:
    r"""A lower bound on the mu of Gaussian differential privacy: :math:`\Phi^{-1}(\text{TPR}) - \Phi^{-1}(\text{FPR})`.

    Guarantee: no mechanism that is :math:`\mu`-GDP has a larger one, but for a chance of 1 - ``confidence``, whatever
    its trade-off curve. To read it as an epsilon at some delta (``gaussian_epsilon(mu, delta)``) is right where the
    curve *is* Gaussian, and only there: an extrapolation, not a bound.

    Source: Dong, Roth and Su (2022), https://arxiv.org/abs/1905.02383; Nasr et al. (2023),
    https://arxiv.org/abs/2302.07956.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> found = mu_lower_bound(rng.normal(1, 1, 100_000), rng.normal(0, 1, 100_000))
        >>> 0.96 < found.value < 1.0
        True
    """
    return _bound(present, absent, _mu, confidence, floor=0.0)


def excess(present, absent, allowed: Callable[[np.ndarray], np.ndarray], false_alarm: float) -> LowerBound:
    """By how much a rate exceeds what is allowed: ``TPR - allowed(FPR)``; a claim is refuted where it is > 0.

    Guarantee: if ``allowed`` bounds the trade-off (no event of rate at most a in one world has a rate above
    ``allowed(a)`` in the other, in both directions) the value is > 0 with a chance of at most ``false_alarm``.

    Args:
        present: As in :func:`epsilon_lower_bound`.
        absent: As there.
        allowed: False positive rate -> largest true positive rate; does not fall.
        false_alarm: In (0, 1).
    """

    def gain(tpr: np.ndarray, fpr: np.ndarray) -> np.ndarray:
        return tpr - allowed(fpr)

    return _bound(present, absent, gain, 1 - _error(false_alarm), floor=-math.inf, choice=FORETOLD)


def promise(present, absent, allowed: Callable[[np.ndarray], np.ndarray]) -> float:
    """How far a measured curve is above what is allowed, in standard errors, where it is farthest: to choose by.

    About 0 to 3 for a claim that is true and tight, more for one that is false; no test.
    """
    present, absent = _scores("present", present), _scores("absent", absent)
    thresholds = _candidates(present, absent)
    hits, false_hits = (len(s) - np.searchsorted(np.sort(s), thresholds, side="right") for s in (present, absent))
    ways = (
        (hits, len(present), false_hits, len(absent)),
        (len(absent) - false_hits, len(absent), len(present) - hits, len(present)),
    )
    best = -math.inf
    for successes, trials, failures, others in ways:
        excesses = successes / trials - allowed(failures / others)
        low = clopper_pearson_lower(successes, trials, STANDARD_ERROR)
        high = clopper_pearson_upper(failures, others, STANDARD_ERROR)
        best = max(best, float(np.max(excesses / (excesses - (low - allowed(high)) + 1 / trials))))
    return best


def auc(present, absent) -> float:
    """Area under the ROC curve: the chance that a score with the canary is above one without, ties by half.

    Example:
        >>> auc([1.0, 2.0], [0.0, 1.0])
        0.875
    """
    present, absent = _scores("present", present), _scores("absent", absent)
    ranks = stats.rankdata(np.concatenate([present, absent]))[: len(present)]
    return float((ranks.sum() - len(present) * (len(present) + 1) / 2) / (len(present) * len(absent)))


def tpr_at_fpr(present, absent, fpr: float) -> float:
    """True positive rate of the lowest threshold whose measured false positive rate is at most ``fpr``.

    An estimate, not a bound.

    Example:
        >>> tpr_at_fpr([0.0, 1.0, 2.0, 3.0], [0.0, 0.5, 1.0, 1.5], fpr=0.25)
        0.5
    """
    present, absent = _scores("present", present), _scores("absent", absent)
    allowed = math.floor(fpr * len(absent))
    if allowed >= len(absent):
        return 1.0
    return float(np.mean(present > np.sort(absent)[len(absent) - 1 - allowed]))


@dataclass(frozen=True)
class Roc:
    """A measured trade-off curve, with limits that hold threshold by threshold: for both rates together.

    Attributes:
        fpr: False positive rates, ascending.
        tpr: True positive rates there.
        fpr_low: Clopper-Pearson limit of the false positive rate from below.
        fpr_high: From above.
        tpr_low: Likewise of the true positive rate.
        tpr_high: From above.
    """

    fpr: np.ndarray
    tpr: np.ndarray
    fpr_low: np.ndarray
    fpr_high: np.ndarray
    tpr_low: np.ndarray
    tpr_high: np.ndarray

    def band(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest true positive rate at each of the false positive rates, with both rates' errors.

        The lower edge goes through (FPR from above, TPR from below), the upper one through (FPR from below, TPR from
        above). Where no threshold's limit reaches, the edges are 0 and 1.
        """
        return (
            np.interp(self.fpr, self.fpr_high, self.tpr_low, left=0.0),
            np.interp(self.fpr, self.fpr_low, self.tpr_high, right=1.0),
        )


def roc(present, absent, confidence: float = 0.95, points: int = 200) -> Roc:
    """The measured ROC curve at false positive rates on a logarithmic grid, for a plot.

    The limits are of each threshold by itself. Thresholds are scores without the canary: at the r-th highest of n the
    false positive rate follows Beta(r, n - r + 1), whose lower quantile is the limit of Clopper and Pearson, and whose
    upper quantile is below theirs.
    """
    present, absent = np.sort(_scores("present", present)), np.sort(_scores("absent", absent))
    ranks = np.unique(
        np.geomspace(1, len(absent), points).astype(int)
    )  # so many runs without the canary are at or above
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


def _bound(
    present, absent, gain: Gain, confidence: float, *, floor: float, choice: tuple[float, float] = CAREFUL
) -> LowerBound:
    error = 1 - _validate.inside("confidence", confidence)
    present, absent = _scores("present", present), _scores("absent", absent)
    if min(len(present), len(absent)) < LEAST_RUNS:
        raise ValueError(f"each world must have at least {LEAST_RUNS} runs, got {len(present)} and {len(absent)}.")
    first, second = (max(2, int(SELECTION * len(scores))) for scores in (present, absent))
    chosen = _best_event(present[:first], absent[:second], gain, (choice[0], choice[1] * error))
    event = _counted(present[first:], absent[second:], *chosen)
    true_rate, false_rate = event.limits(error)
    value = float(gain(np.array(true_rate), np.array(false_rate)))
    return LowerBound(max(floor, value), confidence, event, true_rate, false_rate)


def _best_event(
    present: np.ndarray, absent: np.ndarray, gain: Gain, choice: tuple[float, float]
) -> tuple[float, Direction]:
    """Threshold and direction of the largest gain by limits from these runs, each counted so many times."""
    weight, error = choice
    thresholds = _candidates(present, absent)
    above = [len(s) - np.searchsorted(np.sort(s), thresholds, side="right") for s in (present, absent)]
    best: tuple[float, float, Direction] = (-math.inf, float(thresholds[0]), "present")
    for direction in ("present", "absent"):
        hits, false_hits = above if direction == "present" else (len(absent) - above[1], len(present) - above[0])
        sizes = (len(present), len(absent)) if direction == "present" else (len(absent), len(present))
        low = clopper_pearson_lower(weight * hits, weight * sizes[0], error)
        high = clopper_pearson_upper(weight * false_hits, weight * sizes[1], error)
        gains = gain(low, high)
        at = int(np.argmax(gains))
        if gains[at] > best[0]:
            best = (float(gains[at]), float(thresholds[at]), direction)
    return best[1], best[2]


def _candidates(present: np.ndarray, absent: np.ndarray) -> np.ndarray:
    """Order statistics of both worlds, evenly and dense at both ends."""
    found = []
    for scores in (np.sort(present), np.sort(absent)):
        ranks = np.geomspace(1, len(scores), CANDIDATES // 6).astype(int) - 1
        evenly = np.linspace(0, len(scores) - 1, CANDIDATES // 6).astype(int)
        found += [scores[ranks], scores[::-1][ranks], scores[evenly]]
    return np.unique(np.concatenate(found))


def _counted(present: np.ndarray, absent: np.ndarray, threshold: float, direction: Direction) -> Event:
    hits, false_hits = int(np.sum(present > threshold)), int(np.sum(absent > threshold))
    if direction == "present":
        return Event(threshold, direction, hits, false_hits, len(present), len(absent))
    return Event(threshold, direction, len(absent) - false_hits, len(present) - hits, len(absent), len(present))


def _epsilon(tpr: np.ndarray, fpr: np.ndarray, delta: float) -> np.ndarray:
    return np.log(np.maximum(tpr - delta, 1e-300) / fpr)


def _mu(tpr: np.ndarray, fpr: np.ndarray) -> np.ndarray:
    low, high = special.ndtri(tpr), special.ndtri(fpr)  # tpr 0 gives -inf, fpr 1 gives inf: no bound
    return np.where(np.isneginf(low) | np.isposinf(high), -math.inf, low - np.where(np.isposinf(high), 0.0, high))


def _scores(name: str, scores) -> np.ndarray:
    """As float64; NaN, which a score of a poisoned release is, is the highest."""
    found = np.asarray(scores, float)
    if found.ndim != 1 or len(found) < 1:
        raise ValueError(f"{name} must have shape (runs,) with a run at least, got {found.shape}.")
    return np.where(np.isnan(found), math.inf, found)


def _error(error: float) -> float:
    return _validate.inside("error", error)
