"""AboveThreshold: the exact law of its answers on neighbouring values, the draws, and an audit by simulation."""

import math

import numpy as np
import pytest
import scipy.stats

import tacita
from tacita import accounting as acc
from tacita.second_order.above_threshold import AboveThreshold

FALSE_ALARM = 1e-6


def laplace_cdf(x):
    return np.where(x < 0, np.exp(np.minimum(x, 0)) / 2, 1 - np.exp(-np.maximum(x, 0)) / 2)


def answer_law(values, *, threshold, threshold_scale, query_scale):
    """Exact probabilities: the first value that passes is j = 0, 1, ..., or none. By quadrature over the threshold."""
    grid = np.linspace(-45, 45, 30_001)
    density = np.exp(-np.abs(grid)) / 2
    passes = laplace_cdf((threshold + threshold_scale * grid[:, None] - np.asarray(values)) / query_scale)
    fails = np.cumprod(1 - passes, axis=1)
    before = np.hstack([np.ones((len(grid), 1)), fails[:, :-1]])
    law = np.hstack([before * passes, fails[:, -1:]])
    return np.trapezoid(law * density[:, None], grid, axis=0)


def scales(mechanism):
    return {"threshold_scale": mechanism.threshold_scale, "query_scale": mechanism.query_scale}


def worst_ratio(one, two, **noise):
    """Largest log-ratio of any answer between two worlds' values."""
    p, q = (answer_law(values, threshold=0.0, **noise) for values in (one, two))
    return float(np.abs(np.log(p) - np.log(q)).max())


MECHANISM = AboveThreshold(epsilon=1.0, sensitivity=0.01)
S = MECHANISM.sensitivity


def neighbours(rejected, height, sign=1):
    """Values of two worlds, each moved by the sensitivity: many move up, the last one down."""
    one = np.array([height] * rejected + [height])
    return one, one + sign * S * np.array([1.0] * rejected + [-1.0])


# -- exact


def test_the_scales():
    assert MECHANISM.threshold_scale == pytest.approx(0.02)
    assert MECHANISM.query_scale == pytest.approx(0.04)
    event = MECHANISM.event("replace_one")
    assert (event.sensitivity, event.threshold_scale, event.query_scale) == (0.01, 0.02, 0.04)
    assert event.epsilon == pytest.approx(1.0)
    assert not event.per_query


def test_the_accuracy_is_dwork_and_roth_s():
    assert MECHANISM.accuracy(20, 0.05) == pytest.approx(8 * 0.01 * (math.log(20) + math.log(40)))
    assert AboveThreshold(epsilon=2.0, sensitivity=0.01).accuracy(20, 0.05) == MECHANISM.accuracy(20, 0.05) / 2


def test_a_value_passes_below_the_noisy_threshold():
    draws = {"threshold_draw": 2.0, "query_draw": -1.0}
    limit = 1.0 + 0.02 * 2.0 + 0.04 * 1.0
    assert MECHANISM(limit - 1e-9, threshold=1.0, **draws)
    assert not MECHANISM(limit + 1e-9, threshold=1.0, **draws)
    assert not MECHANISM(math.nan, threshold=1.0, **draws)
    assert not MECHANISM(math.inf, threshold=1.0, **draws)
    assert MECHANISM(-math.inf, threshold=1.0, **draws)


@pytest.mark.parametrize("rejected", [0, 1, 5, 30])
@pytest.mark.parametrize("height", [-0.1, 0.0, 0.03, 0.3])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_answer_tells_more_than_epsilon(rejected, height, sign):
    """However many values fail: the exact law of which value passes first, in both worlds."""
    assert worst_ratio(*neighbours(rejected, height, sign), **scales(MECHANISM)) <= MECHANISM.epsilon * (1 + 1e-4)


def test_epsilon_is_nearly_reached():
    reached = max(
        worst_ratio(*neighbours(30, height, sign), **scales(MECHANISM)) for height in (0.0, 0.3) for sign in (1, -1)
    )
    assert reached > 0.9 * MECHANISM.epsilon


@pytest.mark.parametrize(
    ("wrong", "noise"),
    [
        ("both of scale s / epsilon, as printed in the paper", {"threshold_scale": 0.01, "query_scale": 0.01}),
        ("no factor 2 for replaced records", {"threshold_scale": 0.01, "query_scale": 0.02}),
        ("2 s / epsilon for both", {"threshold_scale": 0.02, "query_scale": 0.02}),
    ],
)
def test_less_noise_tells_more(wrong, noise):
    reached = max(worst_ratio(*neighbours(30, height, sign), **noise) for height in (0.0, 0.3, 0.6) for sign in (1, -1))
    assert reached > 1.2 * MECHANISM.epsilon, wrong


def redrawn_law(values, *, threshold_scale, query_scale):
    """As :func:`answer_law`, the threshold's noise drawn anew for every value."""
    grid = np.linspace(-45, 45, 30_001)
    density = np.exp(-np.abs(grid)) / 2
    passes = laplace_cdf((threshold_scale * grid[:, None] - np.asarray(values)) / query_scale)
    passes = np.trapezoid(passes * density[:, None], grid, axis=0)
    fails = np.cumprod(1 - passes)
    return np.append(np.append(1.0, fails[:-1]) * passes, fails[-1])


def test_a_threshold_redrawn_for_every_value_tells_more_with_every_value():
    ratios = []
    for rejected in (10, 30, 60):
        laws = [redrawn_law(values, **scales(MECHANISM)) for values in neighbours(rejected, 0.0)]
        ratios.append(float(np.abs(np.log(laws[0]) - np.log(laws[1])).max()))
    assert ratios == pytest.approx([1.67, 4.70, 9.25], rel=1e-2)  # where 1 is claimed


@pytest.mark.parametrize(
    ("name", "value"), [("epsilon", 0.0), ("epsilon", math.nan), ("sensitivity", 0.0), ("sensitivity", math.inf)]
)
def test_wrong_settings(name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        AboveThreshold(**{"epsilon": 1.0, "sensitivity": 0.01, name: value})


# -- the draws


def laplaces(count, seed=0):
    return tacita.Randomness.insecure(seed).key.stream("test").laplaces(count)


def test_laplace_draws_are_made_of_the_words():
    stream = tacita.Randomness.insecure(3).key.stream("test")
    words = stream.words(50, offset=7)
    expected = [(1 if int(w) & 1 else -1) * -math.log(((int(w) >> 11) + 1) / 2**53) for w in words]
    assert stream.laplaces(50, offset=7).tolist() == pytest.approx(expected, rel=1e-12)


def test_laplace_draws_have_their_law():
    """Their lengths are exponential, so that twice their sum is chi-square with two degrees a draw; signs are coins."""
    count = 10**6
    draws = laplaces(count)
    low, high = scipy.stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], df=2 * count)
    total = 2 * np.abs(draws).sum()
    assert low < total < high
    assert scipy.stats.kstest(draws[:100_000], scipy.stats.laplace.cdf).pvalue > FALSE_ALARM
    positive = int((draws > 0).sum())
    assert scipy.stats.binomtest(positive, count).pvalue > FALSE_ALARM
    for wrong in (0.99, 1.01):
        assert not low < wrong * total < high


def test_laplace_tails_reach_36():
    class Extreme(tacita.random.Stream):
        def words(self, count, offset=0):
            return np.array([0, 1, 2**64 - 1, 2**64 - 2], np.uint64)[:count]

    found = Extreme(bytes(32)).laplaces(4)
    assert found.tolist() == pytest.approx([-53 * math.log(2), 53 * math.log(2), 0.0, 0.0], abs=1e-15)


# -- an audit: simulated sessions on neighbouring values


def simulated(values, mechanism, runs, seed):
    """Which value passes first (the number of values: none), in ``runs`` sessions."""
    draws = laplaces(runs * (len(values) + 1), seed).reshape(runs, -1)
    passes = mechanism(values, threshold=0.0, threshold_draw=draws[:, :1], query_draw=draws[:, 1:])
    return np.where(passes.any(axis=1), passes.argmax(axis=1), len(values))


def lower_bound(one, two, runs):
    """A lower bound on epsilon, wrong with probability at most 1e-6: exact binomial intervals of one event's chances.

    The event (the last value passes) is fixed beforehand.
    """
    level = FALSE_ALARM / 2
    most = scipy.stats.beta.ppf(1 - level, one + 1, runs - one)
    least = scipy.stats.beta.ppf(level, two, runs - two + 1)
    return math.log(least / most)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_audit_the_claim_is_consistent(epsilon):
    mechanism, runs = AboveThreshold(epsilon=epsilon, sensitivity=S), 200_000
    one, two = neighbours(5, 0.0)
    hits = [int((simulated(values, mechanism, runs, seed) == 5).sum()) for seed, values in enumerate((one, two))]
    bound = lower_bound(*hits, runs)
    assert bound <= epsilon
    assert bound > 0.5 * epsilon  # the event does tell the worlds apart


@pytest.mark.parametrize("factor", [4, 8])
def test_audit_the_scales_printed_in_the_paper_are_refuted(factor, monkeypatch):
    """Noise of scale s / epsilon (AboveThreshold's own factors forgotten), and half of it (a replaced record's too)."""

    monkeypatch.setattr(AboveThreshold, "threshold_scale", 4 * S / factor)
    monkeypatch.setattr(AboveThreshold, "query_scale", 4 * S / factor)
    mechanism, runs = AboveThreshold(epsilon=1.0, sensitivity=S), 200_000
    hits = [
        int((simulated(values, mechanism, runs, seed) == 5).sum()) for seed, values in enumerate(neighbours(5, 0.0))
    ]
    assert lower_bound(*hits, runs) > mechanism.epsilon


# -- accuracy


def test_answers_are_as_accurate_as_stated():
    """But with probability beta: every value at most h - a passes, none above h + a."""
    k, beta, runs = 20, 0.2, 20_000
    a = MECHANISM.accuracy(k, beta)
    for values, wrong in (([a * 1.0001] * k, "pass"), ([-a * 1.0001] * k, "fail")):
        draws = laplaces(runs * (k + 1), 5).reshape(runs, -1)
        passes = MECHANISM(np.array(values), threshold=0.0, threshold_draw=draws[:, :1], query_draw=draws[:, 1:])
        misses = int((passes.any(axis=1) if wrong == "pass" else ~passes.all(axis=1)).sum())
        assert scipy.stats.binom.sf(misses - 1, runs, beta) > FALSE_ALARM


def test_an_accuracy_of_a_third_is_not_kept():
    k, beta, runs = 20, 0.2, 20_000
    a = MECHANISM.accuracy(k, beta) / 3
    draws = laplaces(runs * (k + 1), 5).reshape(runs, -1)
    passes = MECHANISM(np.array([a] * k), threshold=0.0, threshold_draw=draws[:, :1], query_draw=draws[:, 1:])
    assert scipy.stats.binom.sf(int(passes.any(axis=1).sum()) - 1, runs, beta) < FALSE_ALARM


def test_its_event_survives_the_ledger():
    ledger = tacita.Ledger(neighboring_relation="replace_one", privacy_unit="one row")
    ledger.register(MECHANISM.event("replace_one"), planned_queries=30)
    assert ledger.epsilon(1e-6) == pytest.approx(1.0, rel=1e-5)
    assert acc.delta([acc.Spend(MECHANISM.event("replace_one"), 30)], 1.0).delta == 0
