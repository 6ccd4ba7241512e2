"""Samplers, audited apart: which rows a whole session draws has exactly the stated law, in single draws and in masks.

Three rows and a few queries, so that every outcome of a session can be listed with its exact chance.
"""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from tacita.random import QueryCoins, Randomness
from tacita.sampling import (
    AllocatedSampler,
    CyclicSampler,
    DisjointSampler,
    FixedSizeSampler,
    FullBatchSampler,
    PoissonSampler,
    Sampler,
    ShuffledEpochsSampler,
    UnitPoissonSampler,
)

ROWS = 3
RUNS = 40_000
SESSIONS = 4_000


def independent(rate, queries):
    """Every row in every query by a coin of its own."""
    for session in itertools.product((False, True), repeat=queries * ROWS):
        yield session, rate ** sum(session) * (1 - rate) ** (len(session) - sum(session))


def uniform(sessions):
    """Each of these sessions as likely as any other; one that is listed twice, twice as likely."""
    counts = Counter(sessions)
    for session, count in counts.items():
        yield session, count / counts.total()


def in_batches(assignments, queries):
    """Sessions from the batch of each row."""
    return [tuple(batch == query for query in range(queries) for batch in batches) for batches in assignments]


def subsets(size, queries):
    one = [tuple(row in chosen for row in range(ROWS)) for chosen in itertools.combinations(range(ROWS), size)]
    return [tuple(itertools.chain(*session)) for session in itertools.product(one, repeat=queries)]


def two_epochs(one_epoch):
    return [first + second for first, second in itertools.product(one_epoch, repeat=2)]


def truncated(rate, size, queries):
    """Of the rows that come up, a uniform subset of at most ``size`` stays."""
    one = Counter()
    for count in range(ROWS + 1):
        for drawn in itertools.combinations(range(ROWS), count):
            kept = list(itertools.combinations(drawn, min(size, count)))
            for batch in kept:
                row = tuple(row in batch for row in range(ROWS))
                one[row] += rate**count * (1 - rate) ** (ROWS - count) / len(kept)
    for session in itertools.product(one, repeat=queries):
        yield tuple(itertools.chain(*session)), math.prod(one[row] for row in session)


COINS = in_batches(itertools.product(range(2), repeat=ROWS), 2)
ORDERS = in_batches([[place * 2 // ROWS for place in order] for order in itertools.permutations(range(ROWS))], 2)
CASES = {
    "poisson": (PoissonSampler(sample_rate=0.4, num_records=10), 2, dict(independent(0.4, 2))),
    "truncated": (PoissonSampler(sample_rate=0.6, num_records=9, max_batch_size=1), 2, dict(truncated(0.6, 1, 2))),
    "truncated at two": (
        PoissonSampler(sample_rate=0.8, num_records=9, max_batch_size=2),
        2,
        dict(truncated(0.8, 2, 2)),
    ),
    "units": (UnitPoissonSampler(sample_rate=0.4, num_records=9, max_rows_per_unit=2), 2, dict(independent(0.4, 2))),
    "full batch": (FullBatchSampler(num_records=9), 2, {(True,) * 6: 1.0}),
    "fixed size": (FixedSizeSampler(batch_size=2, num_records=ROWS), 2, dict(uniform(subsets(2, 2)))),
    "one pass": (
        DisjointSampler(num_batches=2, num_records=ROWS),
        2,
        dict(uniform(in_batches([(0, 0, 1)], 2))),
    ),
    "allocated": (
        AllocatedSampler(batches_per_epoch=2, num_records=9),
        4,
        dict(uniform(two_epochs(COINS))),
    ),
    "cyclic, coin": (
        CyclicSampler(batches_per_cycle=2, num_records=9, assignment="coin"),
        4,
        dict(uniform([(*one, *one) for one in COINS])),
    ),
    "shuffled": (
        ShuffledEpochsSampler(batches_per_epoch=2, num_records=ROWS),
        4,
        dict(uniform(two_epochs(ORDERS))),
    ),
}
every = pytest.mark.parametrize(("sampler", "queries", "law"), CASES.values(), ids=CASES)


def many(sampler, queries, runs=RUNS, seed=0):
    """Memberships of many runs of a session: (runs, queries, rows)."""
    coins = QueryCoins(Randomness.insecure(seed), "audit-1")
    return np.stack([sampler.masks(query, coins, ROWS, runs) for query in range(queries)], axis=1)


def one_by_one(sampler, queries, sessions=SESSIONS):
    """The same from single draws, each session under a name of its own."""
    randomness = Randomness.insecure(1)
    names = [QueryCoins(randomness, f"train-{session}") for session in range(sessions)]
    return np.stack([[sampler.mask(query, coins, ROWS) for query in range(queries)] for coins in names])


def assert_sessions(found, law, assert_law):
    """No session that cannot be, and every other as often as stated; rare ones are pooled."""
    counts = Counter(map(tuple, found.reshape(len(found), -1).tolist()))
    assert counts.keys() <= law.keys(), "not the stated law: an outcome that cannot be"
    common = [session for session, chance in law.items() if chance * len(found) >= 20]
    rest = 1 - sum(law[session] for session in common)
    if len(common) == 1:
        return
    observed = [counts[session] for session in common]
    if rest * len(found) >= 20:
        assert_law([*observed, len(found) - sum(observed)], [*(law[session] for session in common), rest])
    else:  # what is left is too rare to count: given that it did not happen
        assert_law(observed, [law[session] / (1 - rest) for session in common])


@every
def test_masks_have_exactly_the_stated_law(sampler, queries, law, assert_law):
    assert_sessions(many(sampler, queries), law, assert_law)


@every
def test_draws_have_exactly_the_stated_law(sampler, queries, law, assert_law):
    assert_sessions(one_by_one(sampler, queries), law, assert_law)


@every
def test_masks_by_single_draws_have_the_same_law(sampler, queries, law, assert_law):
    coins = QueryCoins(Randomness.insecure(2), "audit-1")
    found = np.stack([Sampler.masks(sampler, query, coins, ROWS, 1500) for query in range(queries)], axis=1)
    assert_sessions(found, law, assert_law)


@every
def test_runs_are_independent(sampler, queries, law, assert_binomial):
    found = many(sampler, queries).reshape(RUNS, -1)
    same = (found[0::2] == found[1::2]).all(axis=1).sum()
    chance = sum(chance**2 for chance in law.values())
    assert same == RUNS // 2 if chance == 1 else not assert_binomial(same, RUNS // 2, chance)


@every
def test_masks_depend_on_coins_and_query_alone(sampler, queries, law):
    forward = many(sampler, queries, runs=50)
    coins = QueryCoins(Randomness.insecure(0), "audit-1")
    backward = np.stack([sampler.masks(query, coins, ROWS, 50) for query in reversed(range(queries))], axis=1)
    assert (forward == backward[:, ::-1]).all()


def test_no_rows_is_ordinary():
    sampler = PoissonSampler(sample_rate=0.4, num_records=10)
    assert sampler.masks(0, QueryCoins(Randomness.insecure(0), "audit-1"), 0, 5).shape == (5, 0)


# -- the check can fail


def wrong(name):
    found = many(CASES["poisson"][0], 2).copy()
    if name == "one coin for two rows":
        found[:, :, 1] = found[:, :, 0]
    if name == "one coin for two queries":
        found[:, 1] = found[:, 0]
    if name == "drawn five per cent more often":
        found = many(PoissonSampler(sample_rate=0.42, num_records=10), 2)
    return found


@pytest.mark.parametrize(
    "name", ["one coin for two rows", "one coin for two queries", "drawn five per cent more often"]
)
def test_the_check_can_fail(name, assert_law):
    with pytest.raises(AssertionError, match="law"):
        assert_sessions(wrong(name), CASES["poisson"][2], assert_law)


def test_the_check_sees_coins_in_place_of_a_permutation(assert_law):
    with pytest.raises(AssertionError, match="law"):
        assert_sessions(many(CASES["allocated"][0], 4), CASES["shuffled"][2], assert_law)
