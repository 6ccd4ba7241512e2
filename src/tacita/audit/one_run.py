r"""A lower bound on epsilon from one training run: many canaries, each in the data by its own fair coin.

Place: [audit.one_run], numbers in, numbers out. ``scores`` say how much the releases of the run point at each canary's
presence, ``included`` is what the coins said. The auditor guesses some of the coins and is right on too many of them:
that refutes (epsilon, delta)-privacy. Canaries share one run, so that right guesses are *not* independent; the bound
needs only that the coins are.

Source: Steinke, Nasr and Jagielski (2023), https://arxiv.org/abs/2305.08846. For delta = 0 the bound is their Theorem
5.1; for delta > 0 it is our own, since the expression that is in use, f(v) + 2 m delta max_i (f(v - i) - f(v)) / i, is
exceeded by mechanisms that we can write down. Proof and counterexample: docs/derivations/one-run-audit.md.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special, stats

from tacita import _validate
from tacita.audit.bounds import clopper_pearson_lower

FRACTIONS = (
    0.02,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
)  # of the canaries: numbers of guesses tried, each at its share of the error
FALSE_ALARM = 1e-6  # of a verdict
DELTA_SHARE = 0.1  # of a verdict's false alarm, that its delta costs at most
SCAN = 48  # values of epsilon tried before the last one that is refuted is refined
REFINEMENTS = 24  # bisections of that step
BLOCK = 2**22  # entries of a table held at once


@dataclass(frozen=True, kw_only=True)
class OneRunBound:
    """What one run showed.

    Attributes:
        epsilon: Lower bound: at most the true epsilon at ``delta``, with probability ``confidence``.
        delta: As asked for.
        confidence: Of the bound; it covers the choice among the numbers of guesses tried.
        canaries: How many coins there were.
        guesses: How many of them were guessed, where the bound is largest.
        correct: How many of these guesses were right.
        largest: The bound if all guesses had been right: no larger claim can be refuted by so many canaries.
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
    """A lower bound on epsilon from the canaries' scores in one run.

    Guarantee: if the run is (epsilon, delta)-private towards each canary's coin, given all others, and ``scores``
    depend on the coins through the run's releases alone, the bound exceeds epsilon with a chance of at most
    1 - ``confidence``. Nothing else is assumed about the scores.

    Args:
        scores: One a canary, shape (canaries,); high says "included". NaN says nothing, and counts as the middle.
        included: What the coins said, bool, shape (canaries,).
        delta: In (0, 1), or 0.
        confidence: In (0, 1).
        guesses: How many canaries to guess: the highest half of them as included, the lowest as left out. Fixed before
            the scores are seen. ``None``: six fractions of the canaries are tried, each at a sixth of the error.

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
    """The delta that a verdict on a claim at ``delta`` is made at: so small that it costs little of the false alarm.

    A run that shows everything with chance delta, and else nothing, is (0, delta)-private, so that no test at delta
    itself has a smaller false alarm. Each canary's delta adds at most itself to a p-value.
    """
    return min(delta, DELTA_SHARE * FALSE_ALARM / len(FRACTIONS) / _validate.count("canaries", canaries))


def guess_numbers(canaries: int, guesses: int | None = None) -> tuple[int, ...]:
    """The numbers of guesses that are tried: the one that is given, or the public fractions of the canaries."""
    _validate.count("canaries", canaries)
    if guesses is None:
        return tuple(sorted({max(1, round(fraction * canaries)) for fraction in FRACTIONS}))
    if _validate.count("guesses", guesses) > canaries:
        raise ValueError(f"guesses must be <= canaries = {canaries}, got {guesses}.")
    return (guesses,)


def correct_guesses(scores: np.ndarray, included: np.ndarray, guesses: int) -> np.ndarray:
    """How many of ``guesses`` guesses are right: of the highest half "included", of the lowest "left out".

    Ties go by the canary's number, which no coin knows. An odd guess is one of inclusion.

    Args:
        scores: (..., canaries), whatever number of runs at once.
        included: Bool, of the same shape.
        guesses: How many in each run.
    """
    scores = np.where(np.isnan(scores), np.nanmedian(_finite(scores), axis=-1, keepdims=True), scores)
    order = np.argsort(scores, axis=-1, kind="stable")
    low, high = guesses // 2, guesses - guesses // 2
    said_in = np.take_along_axis(included, order[..., order.shape[-1] - high :], axis=-1)
    said_out = ~np.take_along_axis(included, order[..., :low], axis=-1)
    return said_in.sum(-1) + said_out.sum(-1)


def p_value(correct: int, guesses: int, canaries: int, *, epsilon: float, delta: float) -> float:
    r"""The largest chance that an (epsilon, delta)-private run lets an auditor have ``correct`` or more right guesses.

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
    """The largest epsilon that ``correct`` of ``guesses`` right guesses refute at 1 - ``confidence``; 0 if none.

    Every epsilon below a refuted one is refuted too, since privacy at the smaller one is privacy at the larger.

    Example:
        >>> round(lower_bound(100, 100, 100, delta=0.0, confidence=0.95), 3)  # log(q / (1 - q)) with q^100 = 0.05
        3.493
    """
    if not 0 <= correct <= guesses <= canaries or guesses < 1:
        raise ValueError(f"0 <= correct <= guesses <= canaries must hold, got {correct}, {guesses}, {canaries}.")
    error = 1 - _validate.delta("confidence", confidence)
    _share(delta)
    # With delta = 0 this is the answer, and above it nothing is refuted with any delta.
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
    r"""The weights :math:`w_1 \dots w_r`: where, in guesses still to come, a chance of delta a coin does most harm.

    Coins are told one after another, in a random order. At the k-th, it is one that is guessed, as the n-th from the
    end, with the hypergeometric chance below, whatever the guesses are. The peaks fall with n, so that the worst place
    for each coin's delta is at the smallest n.
    """
    _share(delta)
    weights = np.zeros(guesses)
    if guesses == canaries:
        return weights + delta
    rows = max(1, BLOCK // guesses)
    for start in range(1, canaries + 1, rows):
        left = np.arange(start, min(start + rows, canaries + 1))[:, None]  # coins not told yet, this one included
        taken = np.minimum(np.cumsum(_chance(left, np.arange(1, guesses + 1), canaries, guesses), axis=1), delta)
        weights += np.diff(taken, axis=1, prepend=0.0).sum(axis=0)
    return weights


def _chance(left: np.ndarray, n: np.ndarray, canaries: int, guesses: int) -> np.ndarray:
    """That of ``left`` coins drawn from all just ``n`` are guessed ones, and that the first of them is one."""
    factorial = special.gammaln(np.arange(canaries + 2) + 1.0)

    def choose(a, b):
        inside = (b >= 0) & (b <= a)
        b = np.where(inside, b, 0)
        return np.where(inside, factorial[a] - factorial[b] - factorial[a - b], -np.inf)

    log = choose(np.asarray(guesses), n) + choose(np.asarray(canaries - guesses), left - n) - choose(canaries, left)
    return np.exp(log) * n / left


def _peaks(guesses: int, q: float) -> np.ndarray:
    """The largest probability of a value of Bin(n - 1, q), for n = 1 ... guesses."""
    trials = np.arange(guesses)
    mode = np.minimum(np.floor((trials + 1) * q), trials)
    beside = np.maximum(mode - 1, 0)  # where rounding put the mode one too high
    return np.maximum(stats.binom.pmf(mode, trials, q), stats.binom.pmf(beside, trials, q))


def _checked(scores, included) -> tuple[np.ndarray, np.ndarray]:
    scores, included = np.asarray(scores, dtype=np.float64), np.asarray(included)
    if scores.ndim != 1 or scores.shape != included.shape or included.dtype != np.bool_:
        raise ValueError(
            f"scores and included must have one shape (canaries,), the latter bool, got {scores.shape} and "
            f"{included.shape}, {included.dtype}."
        )
    return scores, included


def _finite(scores: np.ndarray) -> np.ndarray:
    """A run without any score that says something gets zeros."""
    return np.where(np.isnan(scores).all(axis=-1, keepdims=True), 0.0, scores)


def _share(delta: float) -> float:
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1), got {delta}.")
    return delta
