"""Cyclic batches: every record in one group for the whole session."""

import numpy as np
import pytest

from tacita import _row_numbers
from tacita.random import QueryCoins, Randomness
from tacita.sampling import CyclicSampler

GROUPS, ROWS = 4, 600
both = pytest.mark.parametrize("assignment", ["coin", "index"])


def member(assignment, cycles=3, seed=0, ratchet_after=None):
    """Whether each row is in each query: (cycles, groups, rows)."""
    sampler = CyclicSampler(batches_per_cycle=GROUPS, num_records=ROWS, assignment=assignment)
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


def test_many_rows_are_in_the_same_groups(monkeypatch):
    small = member("coin")
    monkeypatch.setattr(_row_numbers, "IN_MEMORY", 10)
    assert (member("coin") == small).all()
