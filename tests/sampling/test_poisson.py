"""Poisson sampling: independent coins of the stated chance, and nothing else."""

import numpy as np
import pytest
import scipy.stats

from tacita.sampling import PoissonSampler, UnitPoissonSampler

ROWS, QUERIES, RATE = 40, 20_000, 0.1
SAMPLER = PoissonSampler(sample_rate=RATE, num_records=1000)  # the number of rows is not the declared one


@pytest.fixture(scope="module")
def masks():
    from tacita.random import QueryCoins, Randomness

    coins = QueryCoins(Randomness.insecure(0), "train-1")
    return np.stack([SAMPLER.mask(query, coins, ROWS) for query in range(QUERIES)])


def assert_batch_sizes(sizes, assert_law):
    """Sizes are Binomial(rows, rate); the ends are pooled."""
    law, low, high = scipy.stats.binom(ROWS, RATE), 0, 10
    counts = np.bincount(np.clip(sizes, low, high), minlength=high + 1)
    assert_law(counts, [*law.pmf(range(low, high)), law.sf(high - 1)])


def test_row_i_is_drawn_where_word_i_is_below_the_rate(coins):
    words = coins().for_query(5).words(ROWS)
    assert SAMPLER.mask(5, coins(), ROWS).tolist() == [int(word) < int(RATE * 2**64) for word in words]


def test_every_row_has_the_stated_chance(masks, assert_binomial):
    assert_binomial(masks.sum(axis=0), QUERIES, RATE)


@pytest.mark.parametrize("wrong", [0.975, 1.025])
def test_the_chance_check_can_fail(masks, assert_binomial, wrong):
    with pytest.raises(AssertionError, match="frequency"):
        assert_binomial(masks.sum(), QUERIES * ROWS, RATE * wrong)


def test_rows_are_drawn_in_pairs_as_if_alone(masks, assert_binomial):
    together = masks.T.astype(float) @ masks
    assert_binomial(together[np.triu_indices(ROWS, 1)], QUERIES, RATE**2)


def test_the_pair_check_sees_rows_that_share_a_coin(masks, assert_binomial):
    shared = masks.copy()
    shared[:, 1] = shared[:, 0]
    together = shared.T.astype(float) @ shared
    with pytest.raises(AssertionError, match="frequency"):
        assert_binomial(together[np.triu_indices(ROWS, 1)], QUERIES, RATE**2)


def test_queries_are_drawn_as_if_alone(masks, assert_binomial):
    for lag in (1, 2):
        assert_binomial((masks[:-lag] & masks[lag:]).sum(), (QUERIES - lag) * ROWS, RATE**2)


def test_the_batch_size_is_binomial(masks, assert_law):
    sizes = masks.sum(axis=1)
    assert_batch_sizes(sizes, assert_law)
    assert (sizes == 0).any()  # an empty batch is one of them


def test_the_batch_size_check_sees_a_narrower_law(assert_law):
    narrow = np.random.default_rng(0).binomial(ROWS // 2, 2 * RATE, QUERIES)  # the mean right, the variance 11 % off
    with pytest.raises(AssertionError, match="law"):
        assert_batch_sizes(narrow, assert_law)


def test_a_rate_of_one_draws_every_row(coins):
    everyone = PoissonSampler(sample_rate=1, num_records=ROWS)
    assert everyone.sample_rate == 1.0
    for query in range(5):
        assert everyone.draw(query, coins(), ROWS).tolist() == list(range(ROWS))


def test_a_unit_sampler_draws_rows_as_the_plain_one(coins):
    units = UnitPoissonSampler(sample_rate=RATE, num_records=1000, max_rows_per_unit=3)
    for query in range(5):
        assert units.draw(query, coins(), ROWS).tolist() == SAMPLER.draw(query, coins(), ROWS).tolist()


def test_the_rate_or_the_expected_size_is_given_not_both():
    assert PoissonSampler(expected_batch_size=25, num_records=1000) == PoissonSampler(
        sample_rate=0.025, num_records=1000
    )
    for settings in ({}, {"sample_rate": 0.1, "expected_batch_size": 100}):
        with pytest.raises(ValueError, match="exactly one of sample_rate and expected_batch_size"):
            PoissonSampler(num_records=1000, **settings)


def test_a_batch_size_given_as_rate_is_told_the_way_out():
    message = r"sample_rate must be in \(0, 1\], got 32. For 32 samples a step set expected_batch_size=32."
    with pytest.raises(ValueError, match=message):
        PoissonSampler(sample_rate=32, num_records=1000)


@pytest.mark.parametrize("rate", [0, -0.1, float("nan"), float("inf"), True, "0.1"])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match=r"sample_rate must be in \(0, 1\]"):
        PoissonSampler(sample_rate=rate, num_records=1000)


@pytest.mark.parametrize("size", [0, -3, 1001, float("nan"), float("inf")])
def test_an_expected_size_out_of_range_is_refused(size):
    with pytest.raises(ValueError, match="expected_batch_size must be"):
        PoissonSampler(expected_batch_size=size, num_records=1000)


@pytest.mark.parametrize("thrown", [1, 7, 64])
def test_coins_thrown_a_few_at_once_are_the_same_coins(monkeypatch, thrown):
    from tacita.random import QueryCoins, Randomness

    sampler, coins = PoissonSampler(sample_rate=0.3, num_records=100), QueryCoins(Randomness.insecure(0), "s")
    whole = sampler.draw(0, coins, 100)
    monkeypatch.setattr("tacita._row_numbers.BLOCK", thrown)
    assert sampler.draw(0, coins, 100).tolist() == whole.tolist()
    assert len(sampler.draw(0, coins, 0)) == 0


# -- At most so many rows.


@pytest.mark.parametrize("rate", [0.3, 1.0])
@pytest.mark.parametrize("size", [1, 11, 12, 40])
def test_the_rows_with_the_smallest_words_stay(coins, rate, size):
    limited = PoissonSampler(sample_rate=rate, num_records=1000, max_batch_size=size)
    full = 0
    for query in range(30):
        words = coins().for_query(query).words(ROWS)
        drawn = [row for row in range(ROWS) if int(words[row]) < int(rate * 2**64)]
        assert limited.draw(query, coins(), ROWS).tolist() == sorted(sorted(drawn, key=lambda row: words[row])[:size])
        full += len(drawn) > size
    assert full > 0 or size == 40
    assert len(limited.draw(0, coins(), 0)) == 0


@pytest.mark.parametrize("block", [8, 10**6])
def test_a_limit_holds_for_more_rows_than_are_held_at_once(block, coins, monkeypatch):
    limited = PoissonSampler(sample_rate=0.4, num_records=1000, max_batch_size=7)
    expected = limited.draw(3, coins(), 1000)
    monkeypatch.setattr("tacita._row_numbers.BLOCK", block)
    for rows in (limited.draw(3, coins(), 1000), np.asarray(limited.batch(3, coins(), 1000))):
        assert len(rows) == 7
        assert rows.tolist() == expected.tolist()
