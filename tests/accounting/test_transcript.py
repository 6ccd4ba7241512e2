"""How far a record moves a session of bounded residuals: against the transcripts themselves."""

import itertools
import math

import numpy as np
import pytest

from tacita.accounting.transcript import moved_by_shares, moved_when_clipped

CONTRIBUTION, RESIDUAL = 0.7, 1.9
FILTERS = [(1.0, 0.0), (0.6, 0.0), (0.6, 0.3), (0.1, 0.0), (0.02, 0.01)]  # share, leak


def transcript(positions, share, leak):
    """What a record that is drawn there moves in each query, at its worst: all residuals in one direction."""
    kept, moved = (1 - leak) * (1 - share), np.zeros(2000)
    for t in positions:
        moved[t] += CONTRIBUTION
        moved[t + 1 :] += share * RESIDUAL * kept ** np.arange(1999 - t)
    return np.linalg.norm(moved)


def bound(participations, share, leak, queries_per_epoch):
    return moved_by_shares(
        participations, CONTRIBUTION, RESIDUAL, share=share, leak=leak, queries_per_epoch=queries_per_epoch
    )


@pytest.mark.parametrize(("share", "leak"), FILTERS)
@pytest.mark.parametrize("queries_per_epoch", [1, 2, 3, 5])
@pytest.mark.parametrize("epochs", [1, 2, 3, 4])
def test_no_record_moves_more_wherever_it_is_in_its_epochs(epochs, queries_per_epoch, share, leak):
    most = bound(epochs, share, leak, queries_per_epoch)
    found = [
        transcript([e * queries_per_epoch + p for e, p in enumerate(places)], share, leak)
        for places in itertools.product(range(queries_per_epoch), repeat=epochs)
    ]
    assert max(found) <= most * (1 + 1e-12)
    assert max(found) >= most * (1 - 1e-12) or epochs > 2 or queries_per_epoch == 1
    assert max(found) >= 0.8 * most


@pytest.mark.parametrize(("share", "leak"), FILTERS)
def test_one_participation_moves_exactly_that(share, leak):
    assert transcript([3], share, leak) == pytest.approx(bound(1, share, leak, 1), rel=1e-12)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.01])
def test_the_best_split_of_a_threshold_in_one_pass(share):
    def needed(first):
        return moved_by_shares(1, first, 1 - first, share=share, leak=0.0, queries_per_epoch=1)

    assert needed(share / 2) == pytest.approx(math.sqrt(share / 2), rel=1e-12)
    assert all(needed(share / 2 * factor) > needed(share / 2) for factor in (0.5, 0.9, 1.1, 1.5))


@pytest.mark.parametrize(("share", "leak"), FILTERS)
@pytest.mark.parametrize("queries_per_epoch", [1, 50])
def test_a_fixed_share_never_costs_more(share, leak, queries_per_epoch):
    for participations in (0, 1, 2, 3, 10, 1000, 10**6):
        clipped = moved_when_clipped(participations, CONTRIBUTION, RESIDUAL)
        together = math.sqrt(participations) * (CONTRIBUTION + RESIDUAL)
        assert bound(participations, share, leak, queries_per_epoch) <= min(clipped, together) * (1 + 1e-12)


def test_who_never_takes_part_moves_nothing():
    assert bound(0, 0.5, 0.0, 1) == 0.0
    assert moved_when_clipped(0, CONTRIBUTION, RESIDUAL) == 0.0
