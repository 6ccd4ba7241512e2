r"""Lower bounds on epsilon with a stated confidence, from the scores of runs in two worlds.

``present`` are the scores of runs on the data set with the canary, ``absent`` those of runs on its neighbour; a high
score means "present". Derivation: docs/derivations/audit.md.

If a mechanism is :math:`(\epsilon, \delta)`-private then every event :math:`A` has :math:`P(A) \le e^{\epsilon} Q(A) +
\delta` and :math:`Q(A) \le e^{\epsilon} P(A) + \delta`. So a lower limit of one rate and an upper limit of the other
give a lower bound on epsilon. The event (a threshold and one of the two directions) is chosen on the first fifth of the
runs and judged on the others by Clopper-Pearson limits. So the choice costs no confidence, and nothing is assumed about
the scores except that runs are independent. A run in one world may depend on the run of the same number in the other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special, stats

from tacita import _validate

SELECTION = 0.2  # the first runs, this share of them, choose the event; the others judge it
LEAST_RUNS = 10  # in each world
CANDIDATES = 160  # most thresholds to try
STANDARD_ERROR = 0.16  # a normal's probability beyond one standard deviation, on one side
# How events are ranked: (factor on the counts of the choosing runs, error of their limits over that of the judges).
CAREFUL = (1.0, 0.01)  # by their own lower confidence limit; ranking by point estimates would favour rare events
FORETOLD = ((1 - SELECTION) / SELECTION, 0.5)  # by the limit expected of the judges, where rare events cannot win

Direction = Literal["present", "absent"]  # the world to which the event points
Gain = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (lower limit of a rate, upper limit) -> value to maximise


def clopper_pearson_lower(successes, trials, error: float) -> np.ndarray:
    """Return a lower confidence limit of a probability, which exceeds it with probability at most ``error``, exactly.

    Args:
        successes: Counts, any shape; need not be integers.
        trials: Number of trials, broadcast against ``successes``.
        error: In (0, 1).

    Example:
        >>> round(float(clopper_pearson_lower(9, 10, 0.025)), 4)
        0.555
    """
    successes, trials = np.broadcast_arrays(np.asarray(successes, float), np.asarray(trials, float))
    limits = stats.beta.ppf(_error(error), np.maximum(successes, 1e-300), trials - successes + 1)
    return np.where(successes <= 0, 0.0, limits)


def clopper_pearson_upper(successes, trials, error: float) -> np.ndarray:
    """Return an upper confidence limit of a probability, which is below it with probability at most ``error``, exactly.

    Example:
        >>> round(float(clopper_pearson_upper(0, 100, 0.05)), 4)
        0.0295
    """
    successes, trials = np.broadcast_arrays(np.asarray(successes, float), np.asarray(trials, float))
    limits = stats.beta.isf(_error(error), successes + 1, np.maximum(trials - successes, 1e-300))
    return np.where(successes >= trials, 1.0, limits)


@dataclass(frozen=True)
class ScoreEvent:
    """The event that a score is above (or at most) a threshold, chosen without looking at the runs that judge it.

    Attributes:
        threshold: Threshold on the score.
        direction: The world to which the event points: ``"present"`` for scores above the threshold, ``"absent"`` for
            the others.
        hits: Number of judging runs of that world with the event, out of ``trials``.
        false_hits: Number of judging runs of the other world with the event, out of ``false_trials``.
        trials: Number of judging runs of the world to which the event points.
        false_trials: Number of judging runs of the other world.
    """

    threshold: float
    direction: Direction
    hits: int
    false_hits: int
    trials: int
    false_trials: int

    def limits(self, error: float) -> tuple[float, float]:
        """Return a lower limit of the event's rate and an upper limit of its rate in the other world.

        Both hold together with probability at least 1 - ``error``.
        """
        return (
            float(clopper_pearson_lower(self.hits, self.trials, error / 2)),
            float(clopper_pearson_upper(self.false_hits, self.false_trials, error / 2)),
        )


@dataclass(frozen=True)
class LowerBound:
    """A lower bound, and the event from which it was computed.

    Attributes:
        value: At most the true value, with probability ``confidence``.
        confidence: Of the bound.
        event: The event.
        true_rate: Lower limit of the event's rate in the world to which it points.
        false_rate: Upper limit of its rate in the other world.
    """

    value: float
    confidence: float
    event: ScoreEvent
    true_rate: float
    false_rate: float


def epsilon_lower_bound(present, absent, delta: float, confidence: float = 0.95) -> LowerBound:
    r"""Return a lower bound on epsilon at ``delta``: :math:`\ln((\text{TPR} - \delta) / \text{FPR})`, at least 0.

    Guarantee: for a mechanism that is :math:`(\epsilon, \delta)`-private under a relation in which the two worlds are
    neighbours, the bound exceeds epsilon with probability at most 1 - ``confidence``. This covers the choice of the
    threshold and of the direction.

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
    r"""Return a lower bound on mu of Gaussian DP: :math:`\Phi^{-1}(\text{TPR}) - \Phi^{-1}(\text{FPR})`, at least 0.

    Guarantee: for a :math:`\mu`-GDP mechanism, whatever its trade-off curve, the bound exceeds :math:`\mu` with
    probability at most 1 - ``confidence``. Converting it to an epsilon (``gaussian_epsilon(mu, delta)``) is an
    extrapolation, not a bound: it is right only if the trade-off curve *is* Gaussian.

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
    """Bound from below by how much a rate exceeds what a claim allows: ``TPR - allowed(FPR)``.

    A value > 0 refutes the claim. Guarantee: if ``allowed`` bounds the trade-off (no event of rate at most a in one
    world has a rate above ``allowed(a)`` in the other, in both directions), the value is > 0 with probability at most
    ``false_alarm``.

    Args:
        present: As in :func:`epsilon_lower_bound`.
        absent: As in :func:`epsilon_lower_bound`.
        allowed: False positive rate -> largest true positive rate that the claim allows; never decreasing.
        false_alarm: In (0, 1).
    """

    def gain(tpr: np.ndarray, fpr: np.ndarray) -> np.ndarray:
        return tpr - allowed(fpr)

    return _bound(present, absent, gain, 1 - _error(false_alarm), floor=-math.inf, choice=FORETOLD)


def promise(present, absent, allowed: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return the largest excess of the measured curve over what is allowed, in standard errors.

    It serves to choose among candidates and is no test: about 0 to 3 for a claim that is true and tight, more for one
    that is false.
    """
    present, absent = checked_scores("present", present), checked_scores("absent", absent)
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


def _bound(
    present, absent, gain: Gain, confidence: float, *, floor: float, choice: tuple[float, float] = CAREFUL
) -> LowerBound:
    error = 1 - _validate.inside("confidence", confidence)
    present, absent = checked_scores("present", present), checked_scores("absent", absent)
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
    """Return the threshold and direction of the largest gain, by limits from these runs; see ``CAREFUL``."""
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
    """Return thresholds to try: order statistics of both worlds, evenly spaced and denser at both ends."""
    found = []
    for scores in (np.sort(present), np.sort(absent)):
        ranks = np.geomspace(1, len(scores), CANDIDATES // 6).astype(int) - 1
        evenly = np.linspace(0, len(scores) - 1, CANDIDATES // 6).astype(int)
        found += [scores[ranks], scores[::-1][ranks], scores[evenly]]
    return np.unique(np.concatenate(found))


def _counted(present: np.ndarray, absent: np.ndarray, threshold: float, direction: Direction) -> ScoreEvent:
    hits, false_hits = int(np.sum(present > threshold)), int(np.sum(absent > threshold))
    if direction == "present":
        return ScoreEvent(threshold, direction, hits, false_hits, len(present), len(absent))
    return ScoreEvent(threshold, direction, len(absent) - false_hits, len(present) - hits, len(absent), len(present))


def _epsilon(tpr: np.ndarray, fpr: np.ndarray, delta: float) -> np.ndarray:
    return np.log(np.maximum(tpr - delta, 1e-300) / fpr)


def _mu(tpr: np.ndarray, fpr: np.ndarray) -> np.ndarray:
    low, high = special.ndtri(tpr), special.ndtri(fpr)  # tpr 0 gives -inf, fpr 1 gives inf: no bound
    return np.where(np.isneginf(low) | np.isposinf(high), -math.inf, low - np.where(np.isposinf(high), 0.0, high))


def checked_scores(name: str, scores) -> np.ndarray:
    """Return the scores as float64; NaN, the score of a release that is not finite, becomes the highest."""
    found = np.asarray(scores, float)
    if found.ndim != 1 or len(found) < 1:
        raise ValueError(f"{name} must have shape (runs,) with a run at least, got {found.shape}.")
    return np.where(np.isnan(found), math.inf, found)


def _error(error: float) -> float:
    return _validate.inside("error", error)
