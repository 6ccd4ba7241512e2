"""Cyclic batches: every record in one group for the whole session."""

import numpy as np
import pytest

from tacita import _row_numbers
from tacita.random import QueryCoins, Randomness
from tacita.sampling import CyclicSampler

GROUPS, ROWS = 4, 600
both = pytest.mark.parametrize("assignment", ["coin", "index"])


def member(assignment, cycles=3, seed=0, ratchet_after=None, turn_rate=1.0):
    """Whether each row is in each query: (cycles, groups, rows)."""
    sampler = CyclicSampler(batches_per_cycle=GROUPS, num_records=ROWS, assignment=assignment, turn_rate=turn_rate)
    randomness = Randomness.insecure(seed)
    coins, found = QueryCoins(randomness, "train-1"), []
    for query in range(cycles * GROUPS):
        found.append(sampler.mask(query, coins, ROWS))
        if query == ratchet_after:
            randomness.ratchet()
    return np.stack(found).reshape(cycles, GROUPS, ROWS)


@both
def test_a_record_is_in_the_same_group_in_every_cycle(assignment):
    found = member(assignment)
    assert (found.sum(axis=1) == 1).all()
    assert (found == found[0]).all()


@both
def test_a_checkpoint_moves_nobody_and_another_session_does(assignment):
    assert (member(assignment, ratchet_after=5) == member(assignment)).all()
    assert (member(assignment, seed=1) == member(assignment)).all() == (assignment == "index")


def test_groups_by_index_differ_by_one_record_at_most():
    sizes = member("index")[0].sum(axis=1)
    assert sizes.max() - sizes.min() <= 1


@both
@pytest.mark.parametrize("turn_rate", [1.0, 0.3])
def test_many_rows_are_in_the_same_groups(monkeypatch, assignment, turn_rate):
    small = member(assignment, turn_rate=turn_rate)
    monkeypatch.setattr(_row_numbers, "IN_MEMORY", 10)
    assert (member(assignment, turn_rate=turn_rate) == small).all()


@both
def test_records_enter_in_the_turns_of_their_own_group_alone(assignment):
    whole, sampled = member(assignment), member(assignment, turn_rate=0.3, ratchet_after=5)
    assert not (sampled & ~whole).any()
    assert sampled.sum() == pytest.approx(0.3 * whole.sum(), rel=0.2)
    assert (sampled[0] != sampled[1]).any()


def test_an_epoch_of_sampled_turns_is_as_long_as_by_poisson_sampling():
    for groups, batches in ((2, 3), (16, 100), (7, 49), (64, 1000)):
        sampler = CyclicSampler(
            batches_per_cycle=groups, num_records=ROWS, assignment="coin", turn_rate=groups / batches
        )
        assert sampler.queries_per_epoch == batches
        assert sampler.sample_rate == 1 / batches


def test_sessions_of_older_ledgers_have_the_same_name():
    plain = CyclicSampler(batches_per_cycle=2, num_records=3, assignment="coin")
    assert repr(plain) == "CyclicSampler(batches_per_cycle=2, num_records=3, assignment='coin')"
    sampled = CyclicSampler(batches_per_cycle=2, num_records=3, assignment="coin", turn_rate=0.5)
    assert repr(sampled) == repr(plain)[:-1] + ", turn_rate=0.5)"
