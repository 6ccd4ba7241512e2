"""Epochs: every record in one batch of each, by its own coin or by a permutation, each epoch anew."""

import numpy as np
import pytest

from tacita import _row_numbers
from tacita.random import QueryCoins, Randomness
from tacita.sampling import AllocatedSampler, ShuffledEpochsSampler

BATCHES = 3
KINDS = [AllocatedSampler, ShuffledEpochsSampler]
both = pytest.mark.parametrize("kind", KINDS)


def epoch_of(sampler, epoch, coins, num_rows):
    """The batch of each row in one epoch; fails unless each row is in one batch."""
    batch, seen = np.full(num_rows, -1), np.zeros(num_rows, int)
    for place in range(sampler.batches_per_epoch):
        rows = sampler.draw(epoch * sampler.batches_per_epoch + place, coins, num_rows)
        batch[rows] = place
        seen[rows] += 1
    assert (seen == 1).all()
    return batch


def made(kind, num_records=6):
    return kind(batches_per_epoch=BATCHES, num_records=num_records)


@pytest.fixture(scope="module", params=KINDS)
def epochs(request):
    """The assignment, and the batch of each of 6 rows in 6000 epochs of one session."""
    coins = QueryCoins(Randomness.insecure(0), "train-1")
    return request.param, np.stack([epoch_of(made(request.param), e, coins, 6) for e in range(6000)])


def test_each_row_is_uniform_over_the_batches(epochs, assert_law):
    for row in range(6):
        assert_law(np.bincount(epochs[1][:, row], minlength=BATCHES), np.full(BATCHES, 1 / BATCHES))


def test_epochs_are_drawn_as_if_alone(epochs, assert_law):
    for row in range(6):
        for lag in (1, 2, 3):
            pair = BATCHES * epochs[1][:-lag, row] + epochs[1][lag:, row]
            pair = pair[:: lag + 1]  # pairs that share no epoch
            assert_law(np.bincount(pair, minlength=BATCHES**2), np.full(BATCHES**2, BATCHES**-2))


def test_the_epoch_check_sees_one_shuffle_for_all_epochs(assert_law):
    batch = np.random.default_rng(0).integers(BATCHES, size=3000)
    with pytest.raises(AssertionError, match="law"):
        assert_law(np.bincount(BATCHES * batch + batch, minlength=BATCHES**2), np.full(BATCHES**2, BATCHES**-2))


def test_two_rows_meet_as_the_assignment_says(epochs, assert_binomial):
    kind, batch = epochs
    chance = 1 / BATCHES if kind is AllocatedSampler else (6 / BATCHES - 1) / 5
    meet = [(batch[:, i] == batch[:, j]).sum() for i in range(6) for j in range(i)]
    assert_binomial(meet, len(batch), chance)


def test_by_permutation_sizes_differ_by_one_at_most(coins):
    for num_records in (6, 7, 8, 2):
        batch = epoch_of(made(ShuffledEpochsSampler, num_records), 4, coins(), num_records)
        sizes = np.bincount(batch, minlength=BATCHES)
        assert sizes.max() - sizes.min() <= 1


def test_by_coin_row_i_of_epoch_e_has_word_e_2_to_40_plus_i(coins):
    words = coins().for_session().words(6, offset=5 * 2**40)
    assert epoch_of(made(AllocatedSampler), 5, coins(), 6).tolist() == (words % np.uint64(BATCHES)).tolist()


@both
def test_a_later_epoch_needs_no_earlier_one(kind, coins):
    sampler, one = made(kind), coins()
    late = epoch_of(sampler, 900, one, 6)
    epoch_of(sampler, 0, one, 6)
    assert epoch_of(sampler, 900, coins(), 6).tolist() == late.tolist()


def test_epochs_of_large_data_are_those_of_small_data(coins, monkeypatch):
    """Beyond a number of rows each batch is found block by block, without the whole assignment."""
    sampler = made(AllocatedSampler, 60)
    small = [sampler.draw(query, coins(), 60).tolist() for query in range(3 * BATCHES)]
    monkeypatch.setattr(_row_numbers, "IN_MEMORY", 8)
    assert [np.asarray(sampler.batch(query, coins(), 60)).tolist() for query in range(3 * BATCHES)] == small
    assert small[:BATCHES] != small[BATCHES : 2 * BATCHES] != small[2 * BATCHES :]


# -- one pass


@pytest.fixture(scope="module")
def first_epochs():
    """The batch of each of 6 rows in the first epoch of 5000 sessions."""
    randomness = Randomness.insecure(0)
    return np.stack([epoch_of(made(AllocatedSampler), 0, QueryCoins(randomness, f"train-{i}"), 6) for i in range(5000)])


def test_each_session_draws_its_coins(first_epochs, assert_law):
    for row in range(6):
        assert_law(np.bincount(first_epochs[:, row], minlength=BATCHES), np.full(BATCHES, 1 / BATCHES))


def test_coins_of_two_records_are_independent(first_epochs, assert_law):
    for first in range(6):
        for second in range(first):
            pair = BATCHES * first_epochs[:, first] + first_epochs[:, second]
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
    before = epoch_of(made(AllocatedSampler, 50), 0, coins, 50)
    randomness.ratchet()
    assert epoch_of(made(AllocatedSampler, 50), 0, coins, 50).tolist() == before.tolist()


@pytest.mark.parametrize("batches", [1, 7, 50, 60])
def test_each_record_is_in_one_batch_of_any_number(batches, coins):
    sampler = AllocatedSampler(batches_per_epoch=batches, num_records=50)
    assert (epoch_of(sampler, 0, coins(), 50) < batches).all()
