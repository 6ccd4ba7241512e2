"""Shuffled epochs: every record once an epoch, each epoch anew."""

import numpy as np
import pytest

from tacita import _row_numbers
from tacita.sampling import ShuffledEpochsSampler

BATCHES = 3
both = pytest.mark.parametrize("assignment", ["coin", "permutation"])


def epoch_of(sampler, epoch, coins, num_rows):
    """The batch of each row in one epoch; fails unless each row is in one batch."""
    batch, seen = np.full(num_rows, -1), np.zeros(num_rows, int)
    for place in range(sampler.batches_per_epoch):
        rows = sampler.draw(epoch * sampler.batches_per_epoch + place, coins, num_rows)
        batch[rows] = place
        seen[rows] += 1
    assert (seen == 1).all()
    return batch


def shuffled(assignment, num_records=6):
    return ShuffledEpochsSampler(batches_per_epoch=BATCHES, num_records=num_records, assignment=assignment)


@pytest.fixture(scope="module", params=["coin", "permutation"])
def epochs(request):
    """The assignment, and the batch of each of 6 rows in 6000 epochs of one session."""
    from tacita.random import QueryCoins, Randomness

    coins = QueryCoins(Randomness.insecure(0), "train-1")
    return request.param, np.stack([epoch_of(shuffled(request.param), e, coins, 6) for e in range(6000)])


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
    assignment, batch = epochs
    chance = 1 / BATCHES if assignment == "coin" else (6 / BATCHES - 1) / 5
    meet = [(batch[:, i] == batch[:, j]).sum() for i in range(6) for j in range(i)]
    assert_binomial(meet, len(batch), chance)


def test_by_permutation_sizes_differ_by_one_at_most(coins):
    for num_records in (6, 7, 8, 2):
        batch = epoch_of(shuffled("permutation", num_records), 4, coins(), num_records)
        sizes = np.bincount(batch, minlength=BATCHES)
        assert sizes.max() - sizes.min() <= 1


def test_by_coin_row_i_of_epoch_e_has_word_e_2_to_40_plus_i(coins):
    words = coins().for_session().words(6, offset=5 * 2**40)
    assert epoch_of(shuffled("coin"), 5, coins(), 6).tolist() == (words % np.uint64(BATCHES)).tolist()


@both
def test_a_later_epoch_needs_no_earlier_one(assignment, coins):
    sampler, one = shuffled(assignment), coins()
    late = epoch_of(sampler, 900, one, 6)
    epoch_of(sampler, 0, one, 6)
    assert epoch_of(sampler, 900, coins(), 6).tolist() == late.tolist()


def test_epochs_of_large_data_are_those_of_small_data(coins, monkeypatch):
    """Beyond a number of rows each batch is found block by block, without the whole assignment."""
    sampler = shuffled("coin", 60)
    small = [sampler.draw(query, coins(), 60).tolist() for query in range(3 * BATCHES)]
    monkeypatch.setattr(_row_numbers, "IN_MEMORY", 8)
    assert [np.asarray(sampler.batch(query, coins(), 60)).tolist() for query in range(3 * BATCHES)] == small
    assert small[:BATCHES] != small[BATCHES : 2 * BATCHES] != small[2 * BATCHES :]
