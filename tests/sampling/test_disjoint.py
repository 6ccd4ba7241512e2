"""One pass: every record in one batch; by coin, in a uniform one, whatever the others do."""

import numpy as np
import pytest

from tacita.random import QueryCoins, Randomness
from tacita.sampling import DisjointSampler

BATCHES = 4


def batch_of(sampler, coins, num_rows):
    """The batch of each row, from the draws; fails unless each row is in one batch."""
    batch, seen = np.full(num_rows, -1), np.zeros(num_rows, int)
    for query in range(sampler.max_queries):
        rows = sampler.draw(query, coins, num_rows)
        batch[rows] = query
        seen[rows] += 1
    assert (seen == 1).all()
    return batch


@pytest.mark.parametrize("assignment", ["coin", "index"])
@pytest.mark.parametrize("num_batches", [1, 3, 7, 50, 60])
def test_each_record_is_in_one_batch(assignment, num_batches, coins):
    sampler = DisjointSampler(num_batches=num_batches, num_records=50, assignment=assignment)
    batch = batch_of(sampler, coins(), 50)
    assert ((batch >= 0) & (batch < num_batches)).all()


@pytest.mark.parametrize(("num_records", "num_batches"), [(10, 4), (9, 3), (7, 7), (3, 5), (1000, 17)])
def test_by_index_row_i_is_in_batch_i_times_batches_over_records(num_records, num_batches, coins):
    sampler = DisjointSampler(num_batches=num_batches, num_records=num_records, assignment="index")
    batch = batch_of(sampler, coins(), num_records)
    assert batch.tolist() == [i * num_batches // num_records for i in range(num_records)]
    sizes = np.bincount(batch, minlength=num_batches)
    assert sizes.max() - sizes.min() <= 1


def test_by_coin_row_i_has_word_i_of_the_session(coins):
    sampler = DisjointSampler(num_batches=BATCHES, num_records=99, assignment="coin")
    expected = coins().for_session().words(30) % np.uint64(BATCHES)
    assert batch_of(sampler, coins(), 30).tolist() == expected.tolist()


@pytest.fixture(scope="module")
def assignments():
    """The batch of each of 6 rows in 5000 sessions."""
    sampler = DisjointSampler(num_batches=BATCHES, num_records=6, assignment="coin")
    randomness = Randomness.insecure(0)
    return np.stack([batch_of(sampler, QueryCoins(randomness, f"train-{i}"), 6) for i in range(5000)])


def test_each_coin_is_uniform(assignments, assert_law):
    for row in range(6):
        assert_law(np.bincount(assignments[:, row], minlength=BATCHES), np.full(BATCHES, 1 / BATCHES))


def test_coins_of_two_records_are_independent(assignments, assert_law):
    for first in range(6):
        for second in range(first):
            pair = BATCHES * assignments[:, first] + assignments[:, second]
            assert_law(np.bincount(pair, minlength=BATCHES**2), np.full(BATCHES**2, BATCHES**-2))


def test_the_pair_check_sees_a_balanced_assignment(assert_law):
    generator = np.random.default_rng(0)
    balanced = np.stack([generator.permutation(6) * BATCHES // 6 for _ in range(5000)])
    pair = BATCHES * balanced[:, 0] + balanced[:, 1]
    with pytest.raises(AssertionError, match="law"):
        assert_law(np.bincount(pair, minlength=BATCHES**2), np.full(BATCHES**2, BATCHES**-2))


def test_the_assignment_outlives_a_ratchet():
    randomness = Randomness.insecure(0)
    coins = QueryCoins(randomness, "train-1")
    before = batch_of(DisjointSampler(num_batches=BATCHES, num_records=50, assignment="coin"), coins, 50)
    randomness.ratchet()
    after = batch_of(DisjointSampler(num_batches=BATCHES, num_records=50, assignment="coin"), coins, 50)
    assert before.tolist() == after.tolist()
