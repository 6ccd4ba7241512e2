"""Fixed-size sampling: uniform subsets."""

import numpy as np
import pytest

from tacita.random import QueryCoins, Randomness
from tacita.sampling import FixedSizeSampler

N, M, QUERIES = 12, 5, 10_000


@pytest.fixture(scope="module", params=[5, 9])
def masks(request):
    sampler = FixedSizeSampler(batch_size=request.param, num_records=N)
    coins = QueryCoins(Randomness.insecure(0), "train-1")
    return np.stack([sampler.mask(query, coins, N) for query in range(QUERIES)])


def test_every_batch_has_the_size(masks):
    assert len(set(masks.sum(axis=1).tolist())) == 1


def test_every_row_and_every_pair_has_its_chance(masks, assert_binomial):
    m = int(masks[0].sum())
    together = masks.T.astype(float) @ masks
    assert_binomial(np.diag(together), QUERIES, m / N)
    assert_binomial(together[np.triu_indices(N, 1)], QUERIES, m * (m - 1) / (N * (N - 1)))


def test_the_pair_check_sees_batches_of_neighbouring_rows(assert_binomial):
    starts = np.random.default_rng(0).integers(N, size=QUERIES)
    runs = np.stack([np.roll(np.arange(N) < M, start) for start in starts])  # every row's chance is right
    together = runs.T.astype(float) @ runs
    assert_binomial(np.diag(together), QUERIES, M / N)
    with pytest.raises(AssertionError, match="frequency"):
        assert_binomial(together[np.triu_indices(N, 1)], QUERIES, M * (M - 1) / (N * (N - 1)))


def test_every_subset_is_as_likely(assert_law, coins):
    sampler, one = FixedSizeSampler(batch_size=2, num_records=5), coins(1)
    counts = np.zeros((5, 5))
    for query in range(3000):
        counts[tuple(sampler.draw(query, one, 5))] += 1
    assert_law(counts[np.triu_indices(5, 1)], np.full(10, 0.1))


def test_queries_are_drawn_as_if_alone(masks, assert_binomial):
    m = int(masks[0].sum())
    both = (masks[0::2] & masks[1::2]).sum(axis=0)  # disjoint pairs of queries
    assert_binomial(both, QUERIES // 2, (m / N) ** 2)


def test_all_of_the_records_is_a_batch(coins):
    assert FixedSizeSampler(batch_size=4, num_records=4).draw(0, coins(), 4).tolist() == [0, 1, 2, 3]
