"""The bound of one run: never below what a private mechanism can do, exact on small cases, useful on large ones."""

import numpy as np
import pytest
from scipy import stats

from tacita.accounting import gaussian_epsilon
from tacita.testing.one_run.bound import (
    _weights,
    correct_guesses,
    guess_numbers,
    lower_bound,
    one_run_bound,
    p_value,
    strict_delta,
)
from tests.testing.worst_case import most_right_guesses

FALSE_ALARM = 1e-6
# canaries, guesses, epsilon, delta: all that a linear program does in a moment
SMALL = [
    (1, 1, 1.0, 0.05),
    (2, 2, 1.0, 0.05),
    (3, 3, 1.0, 0.05),
    (3, 2, 1.0, 0.05),
    (3, 1, 0.5, 0.05),
    (4, 4, 2.0, 0.01),
    (4, 4, 0.0, 0.02),
    (4, 3, 0.5, 0.02),
    (4, 2, 1.0, 0.01),
]


def in_use(correct: int, guesses: int, canaries: int, *, epsilon: float, delta: float) -> float:
    """The expression of the paper's code: f(v) + 2 m delta max_i (f(v - i) - f(v)) / i."""
    q = 1 / (1 + np.exp(-epsilon))
    below = np.cumsum(stats.binom.pmf(np.arange(correct)[::-1], guesses, q))
    return stats.binom.sf(correct - 1, guesses, q) + 2 * canaries * delta * np.max(below / np.arange(1, correct + 1))


# -- no mechanism does better


@pytest.mark.parametrize(("canaries", "guesses", "epsilon", "delta"), SMALL)
def test_no_private_mechanism_exceeds_the_p_value(canaries, guesses, epsilon, delta):
    for correct in range(1, guesses + 1):
        best = most_right_guesses(canaries, guesses, correct, epsilon, delta)
        assert best <= p_value(correct, guesses, canaries, epsilon=epsilon, delta=delta) + 1e-9


@pytest.mark.parametrize(("canaries", "epsilon", "delta"), [(1, 1.0, 0.05), (2, 1.0, 0.05), (3, 1.0, 0.05)])
def test_it_is_reached_where_all_guesses_must_be_right(canaries, epsilon, delta):
    best = most_right_guesses(canaries, canaries, canaries, epsilon, delta)
    assert best == pytest.approx(p_value(canaries, canaries, canaries, epsilon=epsilon, delta=delta), abs=1e-9)


def test_the_program_sees_a_p_value_that_forgets_delta():
    best = most_right_guesses(3, 3, 3, 1.0, 0.05)
    assert best > p_value(3, 3, 3, epsilon=1.0, delta=0.0) + 0.03


@pytest.mark.parametrize(("canaries", "guesses", "correct"), [(2, 2, 1), (3, 3, 1), (3, 2, 1)])
def test_the_expression_in_use_is_exceeded(canaries, guesses, correct):
    best = most_right_guesses(canaries, guesses, correct, 1.0, 0.05)
    assert best > in_use(correct, guesses, canaries, epsilon=1.0, delta=0.05) + 1e-3


def refuted_truth(canaries: int, epsilon: float, delta: float, right: float, confidence: float = 0.95) -> float:
    """The exact chance that the bound exceeds ``epsilon`` if each of all guesses is right with chance ``right``."""
    counts = np.arange(canaries + 1)
    bounds = [lower_bound(int(v), canaries, canaries, delta=delta, confidence=confidence) for v in counts]
    return float(stats.binom.pmf(counts, canaries, right)[np.array(bounds) > epsilon].sum())


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("canaries", [20, 200])
def test_the_error_is_kept_and_used_up(canaries, epsilon):
    """Randomised response is the worst case of delta = 0: the exact law of its right guesses is binomial."""
    q = 1 / (1 + np.exp(-epsilon))
    wrong = refuted_truth(canaries, epsilon, 0.0, q)
    assert wrong <= 0.05
    next_wrong = wrong + stats.binom.pmf(stats.binom.isf(wrong + 1e-12, canaries, q), canaries, q)
    assert next_wrong > 0.05  # one more count would break it
    tenfold = refuted_truth(canaries, epsilon, 0.01, q + (1 - q) * 0.01)  # and, in one of 100 coins, the truth
    assert tenfold <= 0.05


def test_more_error_than_stated_would_be_seen():
    """At an epsilon that is a fifth too small the same law breaks the confidence."""
    q = 1 / (1 + np.exp(-1.2))
    assert refuted_truth(200, 1.0, 0.0, q) > 0.05


# -- the choice of the number of guesses


def refuted_nothing(runs: int, canaries: int, confidence: float) -> int:
    """How many of ``runs`` runs whose scores know no coin get a bound above 0."""
    rng = np.random.default_rng(0)
    included = rng.random((runs, canaries)) < 0.5
    scores = rng.normal(size=(runs, canaries))
    tried = guess_numbers(canaries)
    each = 1 - (1 - confidence) / len(tried)
    hit = np.zeros(runs, dtype=bool)
    for number in tried:
        counts = np.arange(number + 1)
        bounds = np.array([lower_bound(int(v), number, canaries, delta=0.0, confidence=each) for v in counts])
        hit |= bounds[correct_guesses(scores, included, number)] > 0
    return int(hit.sum())


def test_trying_six_numbers_costs_no_confidence():
    runs = 20_000
    assert refuted_nothing(runs, 100, 0.95) <= stats.binom.isf(FALSE_ALARM, runs, 0.05)
    # one_run_bound tries the same numbers, each at its share
    rng = np.random.default_rng(1)
    included = rng.random(100) < 0.5
    scores = rng.normal(2.0 * included)
    each = 1 - 0.05 / 6
    found = one_run_bound(scores, included, delta=1e-4)
    bounds = [
        lower_bound(int(correct_guesses(scores, included, r)), r, 100, delta=1e-4, confidence=each)
        for r in guess_numbers(100)
    ]
    assert found.epsilon == max(bounds) > 0


def test_trying_them_all_at_the_full_error_would_be_seen():
    runs = 20_000
    assert refuted_nothing(runs, 100, 1 - 0.05 * 6) > stats.binom.isf(FALSE_ALARM, runs, 0.05)


# -- a Gaussian mechanism of known mu, one coordinate a canary


def gaussian_runs(mu: float, runs: int, canaries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    included = rng.random((runs, canaries)) < 0.5
    return rng.normal(mu * included), included


@pytest.mark.parametrize(
    ("mu", "delta", "reaches"),
    [(0.5, 1e-5, 0.20), (1.0, 1e-5, 0.30), (2.0, 1e-5, 0.27), (2.0, 1e-4, 0.30), (3.0, 1e-6, 0.20)],
)
def test_gaussian_below_the_truth_and_a_stated_fraction_of_it(mu, delta, reaches):
    truth, runs = gaussian_epsilon(mu, delta), 24
    found = [one_run_bound(s, c, delta=delta).epsilon for s, c in zip(*gaussian_runs(mu, runs, 1000, 2), strict=True)]
    assert np.sum(np.array(found) > truth) <= stats.binom.isf(FALSE_ALARM, runs, 0.05)
    assert np.median(found) >= reaches * truth


def test_a_false_claim_is_refuted():
    claimed = gaussian_epsilon(0.4, 1e-5)  # and the noise is a tenth of what that takes
    for scores, included in zip(*gaussian_runs(4.0, 10, 1000, 3), strict=True):
        assert one_run_bound(scores, included, delta=1e-5).epsilon > claimed


def test_what_many_canaries_cannot_show_is_said():
    included = np.arange(100) % 2 == 0
    found = one_run_bound(np.where(included, 1.0, -1.0), included, delta=1e-5)
    assert found.epsilon == found.largest
    assert found.largest < one_run_bound(np.tile(included, 10) * 1.0, np.tile(included, 10), delta=1e-5).largest


# -- verdicts


@pytest.mark.parametrize("canaries", [50, 1000])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0])
def test_a_verdicts_delta_costs_little_of_its_false_alarm(canaries, epsilon):
    for guesses in guess_numbers(canaries):
        delta = strict_delta(canaries, 1e-5)
        cost = [p_value(guesses, guesses, canaries, epsilon=epsilon, delta=d) for d in (0.0, delta, 1e-5)]
        assert cost[1] - cost[0] <= 0.1 * FALSE_ALARM / 6
        assert cost[2] - cost[0] > FALSE_ALARM / 6 or guesses < 10  # the claim's own delta would use up all of it


def test_a_verdicts_delta_is_never_above_the_claims():
    assert strict_delta(1000, 1e-12) == 1e-12
    assert 0 < strict_delta(1000, 1e-3) < 1e-10


# -- parts


def test_right_guesses_are_counted_at_both_ends():
    scores = np.array([[0.0, 1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0, 0.0]])
    included = np.array([[False, True, False, False, True]] * 2)
    np.testing.assert_array_equal(correct_guesses(scores, included, 2), [2, 0])
    np.testing.assert_array_equal(correct_guesses(scores, included, 3), [2, 1])  # one more guess of "included"
    np.testing.assert_array_equal(correct_guesses(scores, included, 5), [2, 2])


def test_scores_that_say_nothing_do_not_raise():
    included = np.arange(60) % 3 == 0
    for scores in (np.full(60, np.nan), np.zeros(60), np.where(included, np.nan, np.inf), np.full(60, -np.inf)):
        assert one_run_bound(scores, included, delta=1e-5).epsilon >= 0


@pytest.mark.parametrize(("canaries", "guesses", "delta"), [(10, 3, 0.01), (60, 7, 1e-4), (60, 59, 0.3), (8, 8, 0.1)])
def test_weights_against_the_definition(canaries, guesses, delta):
    expected = np.zeros(guesses)
    for left in range(1, canaries + 1):
        rest = delta
        for n in range(1, min(guesses, left) + 1):
            chance = stats.hypergeom.pmf(n, canaries, guesses, left) * n / left
            expected[n - 1] += min(rest, chance)
            rest -= min(rest, chance)
    np.testing.assert_allclose(_weights(canaries, guesses, delta), expected, rtol=1e-9, atol=1e-15)
    assert _weights(canaries, guesses, delta).sum() <= canaries * delta * (1 + 1e-12)


def test_the_bound_falls_with_delta_and_rises_with_right_guesses():
    bounds = [[lower_bound(v, 100, 500, delta=d, confidence=0.95) for v in (80, 90, 100)] for d in (0.0, 1e-5, 1e-3)]
    assert np.all(np.diff(bounds, axis=0) <= 1e-12)
    assert np.all(np.diff(bounds, axis=1) >= 0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"delta": 1.0}, "delta must be in"),
        ({"delta": -0.1}, "delta must be in"),
        ({"confidence": 1.0}, "confidence"),
        ({"guesses": 61}, "guesses must be <= canaries = 60, got 61"),
        ({"guesses": 0}, "guesses"),
        ({"included": np.ones(60)}, "included"),
        ({"included": np.ones(59, dtype=bool)}, "shape"),
    ],
)
def test_wrong_settings_are_named(changes, says):
    settings = {"included": np.arange(60) % 2 == 0, "delta": 1e-5, **changes}
    with pytest.raises(ValueError, match=says):
        one_run_bound(np.zeros(60), settings.pop("included"), **settings)
