r"""A lower bound on epsilon from one training run: many canaries, each in the data by its own fair coin.

``scores`` say how strongly the run's releases suggest that each canary is in the data; ``included`` holds the outcomes
of the coins. The auditor guesses some of the coins. If too many guesses are right, that refutes (epsilon,
delta)-privacy. All canaries share one run, so right guesses are *not* independent; the bound only needs the coins to be
independent.

Source: Steinke, Nasr and Jagielski (2023), https://arxiv.org/abs/2305.08846. For delta = 0 the bound is their Theorem
5.1. For delta > 0 it is our own: the expression in common use, f(v) + 2 m delta max_i (f(v - i) - f(v)) / i, is
exceeded by mechanisms that can be written down. Proof and counterexample: docs/derivations/one-run-audit.md.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special, stats

from tacita import _validate
from tacita.testing.bounds import clopper_pearson_lower

# Numbers of guesses to try, as fractions of the canaries; each gets an equal share of the error.
FRACTIONS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
FALSE_ALARM = 1e-6  # of a verdict
DELTA_SHARE = 0.1  # largest share of a verdict's false alarm that its delta may cost
SCAN = 48  # steps of the grid of epsilons on which the largest refuted one is searched
REFINEMENTS = 24  # bisections after that
BLOCK = 2**22  # entries of a table in memory at once


@dataclass(frozen=True, kw_only=True)
class OneRunBound:
    """A lower bound on epsilon from one run, and the guesses that gave it.

    Attributes:
        epsilon: The lower bound; at most the true epsilon at ``delta``, with probability ``confidence``.
        delta: The delta that was asked for.
        confidence: Of the bound; it covers the choice among the numbers of guesses tried.
        canaries: Number of canaries, and so of coins.
        guesses: Number of guesses that gave the largest bound.
        correct: How many of these guesses were right.
        largest: The bound if all guesses had been right. So many canaries cannot refute a larger claim.
    """

    epsilon: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    correct: int
    largest: float


def one_run_bound(
    scores,
    included,
    *,
    delta: float,
    confidence: float = 0.95,
    guesses: int | None = None,
) -> OneRunBound:
    """Return a lower bound on epsilon from the canaries' scores in one run.

    Guarantee: if the run is (epsilon, delta)-private with respect to each canary's coin, given all others, and
    ``scores`` depend on the coins through the run's releases alone, the bound exceeds epsilon with probability at most
    1 - ``confidence``. Nothing else is assumed about the scores.

    Args:
        scores: One score per canary, shape (canaries,); high means "included". NaN carries no information and counts
            as the median.
        included: The outcomes of the coins, bool, shape (canaries,).
        delta: In [0, 1).
        confidence: In (0, 1).
        guesses: Number of canaries to guess: those with the highest scores as included, as many with the lowest as left
            out. It must be fixed before the scores are seen. With ``None``, six fractions of the canaries are tried,
            each at a sixth of the error.

    Raises:
        ValueError: A setting is out of range, or the shapes differ.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> included = rng.random(1000) < 0.5
        >>> found = one_run_bound(rng.normal(3.0 * included, 1.0), included, delta=1e-5)
        >>> found.guesses, found.correct, round(found.epsilon, 1), round(found.largest, 1)
        (500, 500, 4.6, 5.3)
    """
    scores, included = _checked(scores, included)
    canaries = len(scores)
    tried = guess_numbers(canaries, guesses)
    each = 1 - (1 - _validate.delta("confidence", confidence)) / len(tried)
    right = [int(correct_guesses(scores, included, number)) for number in tried]
    bounds = [lower_bound(v, r, canaries, delta=delta, confidence=each) for v, r in zip(right, tried, strict=True)]
    best = int(np.argmax(bounds))
    return OneRunBound(
        epsilon=bounds[best],
        delta=delta,
        confidence=confidence,
        canaries=canaries,
        guesses=tried[best],
        correct=right[best],
        largest=max(lower_bound(r, r, canaries, delta=delta, confidence=each) for r in tried),
    )


def strict_delta(canaries: int, delta: float) -> float:
    """Return the smaller delta at which the verdict on a claim at ``delta`` is made.

    A run that reveals everything with probability delta, and nothing otherwise, is (0, delta)-private. So no test at
    ``delta`` itself can have a false alarm below delta. Each canary's delta adds at most itself to a p-value; the
    returned delta costs at most a tenth of the verdict's false alarm.
    """
    return min(delta, DELTA_SHARE * FALSE_ALARM / len(FRACTIONS) / _validate.count("canaries", canaries))


def guess_numbers(canaries: int, guesses: int | None = None) -> tuple[int, ...]:
    """Return the numbers of guesses to try: the given one, or the public fractions of the canaries."""
    _validate.count("canaries", canaries)
    if guesses is None:
        return tuple(sorted({max(1, round(fraction * canaries)) for fraction in FRACTIONS}))
    if _validate.count("guesses", guesses) > canaries:
        raise ValueError(f"guesses must be <= canaries = {canaries}, got {guesses}.")
    return (guesses,)


def correct_guesses(scores: np.ndarray, included: np.ndarray, guesses: int) -> np.ndarray:
    """Count the right ones among ``guesses`` guesses: "included" for the highest scores, "left out" for the lowest.

    Half of the guesses are of each kind; if their number is odd, one more is "included". Ties are broken by the
    canary's number, which does not depend on the coins.

    Args:
        scores: (..., canaries), for any number of runs at once.
        included: Bool, of the same shape.
        guesses: Number of guesses in each run.
    """
    scores = np.where(np.isnan(scores), np.nanmedian(_finite(scores), axis=-1, keepdims=True), scores)
    order = np.argsort(scores, axis=-1, kind="stable")
    low, high = guesses // 2, guesses - guesses // 2
    said_in = np.take_along_axis(included, order[..., order.shape[-1] - high :], axis=-1)
    said_out = ~np.take_along_axis(included, order[..., :low], axis=-1)
    return said_in.sum(-1) + said_out.sum(-1)


def p_value(correct: int, guesses: int, canaries: int, *, epsilon: float, delta: float) -> float:
    r"""Bound the probability of at least ``correct`` right guesses in an (epsilon, delta)-private run.

    :math:`P(\text{right} \ge v) \le P(\mathrm{Bin}(r, q) \ge v) + (1 - q) \sum_{n=1}^{r} w_n \max_j
    P(\mathrm{Bin}(n - 1, q) = j)` with :math:`q = e^{\epsilon} / (1 + e^{\epsilon})`, r of m coins guessed, and weights
    :math:`\sum_n w_n \le m \delta` that depend on m, r and delta alone.

    Args:
        correct: v.
        guesses: r, at least 1 and at most m; fixed beforehand.
        canaries: m.
        epsilon: >= 0.
        delta: In [0, 1).

    Example:
        >>> round(p_value(8, 10, 10, epsilon=0.0, delta=0.0), 4)  # ten fair coins
        0.0547
    """
    q = float(special.expit(_validate.non_negative("epsilon", epsilon)))
    honest = stats.binom.sf(correct - 1, guesses, q)
    return float(min(1.0, honest + (1 - q) * np.dot(_weights(canaries, guesses, delta), _peaks(guesses, q))))


def lower_bound(correct: int, guesses: int, canaries: int, *, delta: float, confidence: float) -> float:
    """Return the largest epsilon that ``correct`` right guesses of ``guesses`` refute; 0 if they refute none.

    An epsilon is refuted if its p-value is at most 1 - ``confidence``. Every smaller epsilon is then refuted too, since
    privacy at a smaller epsilon implies privacy at a larger one.

    Example:
        >>> round(lower_bound(100, 100, 100, delta=0.0, confidence=0.95), 3)  # log(q / (1 - q)) with q^100 = 0.05
        3.493
    """
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise ValueError(f"0 <= correct <= guesses <= canaries must hold, got {correct}, {guesses}, {canaries}.")
    error = 1 - _validate.delta("confidence", confidence)
    _share(delta)
    # The answer for delta = 0, which is an upper limit of the answer for every delta.
    most = float(special.logit(clopper_pearson_lower(correct, guesses, error)))
    if delta == 0 or most <= 0:
        return max(0.0, most)

    def refuted(epsilon: float) -> bool:
        return p_value(correct, guesses, canaries, epsilon=epsilon, delta=delta) <= error

    step = most / SCAN
    found = next((i for i in range(SCAN, -1, -1) if refuted(i * step)), None)
    if found is None:
        return 0.0
    low, high = found * step, min(most, (found + 1) * step)
    for _ in range(REFINEMENTS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


@lru_cache(maxsize=64)
def _weights(canaries: int, guesses: int, delta: float) -> np.ndarray:
    r"""Return the weights :math:`w_1 \dots w_r` of :func:`p_value`.

    Weight n is the delta that is spent where n guesses, the current one included, are still to come. The proof reveals
    the coins one after another, in a random order. With the hypergeometric probability of :func:`_chance`, the coin
    that is revealed is a guessed one and n guesses are still to come, whatever the guesses are. The peaks fall with n,
    so each coin's delta does most harm at the smallest n.
    """
    _share(delta)
    weights = np.zeros(guesses)
    if guesses == canaries:
        return weights + delta
    rows = max(1, BLOCK // guesses)
    for start in range(1, canaries + 1, rows):
        left = np.arange(start, min(start + rows, canaries + 1))[:, None]  # coins to be revealed, this one included
        taken = np.minimum(np.cumsum(_chance(left, np.arange(1, guesses + 1), canaries, guesses), axis=1), delta)
        weights += np.diff(taken, axis=1, prepend=0.0).sum(axis=0)
    return weights


def _chance(left: np.ndarray, n: np.ndarray, canaries: int, guesses: int) -> np.ndarray:
    """Return the probability that, of ``left`` random coins, exactly ``n`` are guessed and the first is one of them."""
    factorial = special.gammaln(np.arange(canaries + 2) + 1.0)

    def choose(a, b):
        inside = (b >= 0) & (b <= a)
        b = np.where(inside, b, 0)
        return np.where(inside, factorial[a] - factorial[b] - factorial[a - b], -np.inf)

    log = choose(np.asarray(guesses), n) + choose(np.asarray(canaries - guesses), left - n) - choose(canaries, left)
    return np.exp(log) * n / left


def _peaks(guesses: int, q: float) -> np.ndarray:
    """Return the largest probability of any value of Bin(n - 1, q), for n = 1 ... guesses."""
    trials = np.arange(guesses)
    mode = np.minimum(np.floor((trials + 1) * q), trials)
    beside = np.maximum(mode - 1, 0)  # where rounding put the mode one too high
    return np.maximum(stats.binom.pmf(mode, trials, q), stats.binom.pmf(beside, trials, q))


def _checked(scores, included) -> tuple[np.ndarray, np.ndarray]:
    scores, included = np.asarray(scores, dtype=np.float64), np.asarray(included)
    if scores.ndim != 1 or scores.shape != included.shape or included.dtype != np.bool_:
        raise ValueError(
            f"scores and included must both have shape (canaries,), and included must be bool, got {scores.shape} and "
            f"{included.shape}, {included.dtype}."
        )
    return scores, included


def _finite(scores: np.ndarray) -> np.ndarray:
    """Replace the scores of a run by zeros if all of them are NaN."""
    return np.where(np.isnan(scores).all(axis=-1, keepdims=True), 0.0, scores)


def _share(delta: float) -> float:
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1), got {delta}.")
    return delta
