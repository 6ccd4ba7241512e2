"""How far a record moves a session of bounded residuals: against the transcripts themselves."""

import itertools
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from tacita.error_feedback.participation_sensitivity import checked_share, moved_by_shares, moved_when_clipped

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
    assert max(found) <= most
    assert max(found) >= most * (1 - 1e-8) or epochs > 2 or queries_per_epoch == 1
    assert max(found) >= 0.8 * most


@pytest.mark.parametrize(("share", "leak"), FILTERS)
def test_one_participation_moves_exactly_that(share, leak):
    assert transcript([3], share, leak) == pytest.approx(bound(1, share, leak, 1), rel=1e-8)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.01])
def test_the_best_split_of_a_threshold_in_one_pass(share):
    def needed(first):
        return moved_by_shares(1, first, 1 - first, share=share, leak=0.0, queries_per_epoch=1)

    assert needed(share / 2) == pytest.approx(math.sqrt(share / 2), rel=1e-8)
    assert all(needed(share / 2 * factor) > needed(share / 2) for factor in (0.5, 0.9, 1.1, 1.5))


@pytest.mark.parametrize(("share", "leak"), FILTERS)
@pytest.mark.parametrize("queries_per_epoch", [1, 50])
def test_a_fixed_share_never_costs_more(share, leak, queries_per_epoch):
    for participations in (0, 1, 2, 3, 10, 1000, 10**6):
        clipped = moved_when_clipped(participations, CONTRIBUTION, RESIDUAL)
        together = math.sqrt(participations) * (CONTRIBUTION + RESIDUAL)
        assert bound(participations, share, leak, queries_per_epoch) <= min(clipped, together) * (1 + 1e-8)


def test_who_never_takes_part_moves_nothing():
    assert bound(0, 0.5, 0.0, 1) == 0.0
    assert moved_when_clipped(0, CONTRIBUTION, RESIDUAL) == 0.0


@pytest.mark.parametrize("scale", [1e-170, 1.0, 1e160])
@pytest.mark.parametrize("share", [1.0, 0.3, 1e-6])
def test_norms_of_any_size(scale, share):
    """Their squares may be no numbers."""
    one = moved_by_shares(3, 0.7, 1.9, share=share, leak=0.1, queries_per_epoch=2)
    found = moved_by_shares(3, 0.7 * scale, 1.9 * scale, share=share, leak=0.1, queries_per_epoch=2)
    assert found == pytest.approx(one * scale, rel=1e-12)
    assert moved_by_shares(3, 0.0, 0.0, share=share, leak=0.1, queries_per_epoch=2) == 0.0


@pytest.mark.parametrize("share", [0.3, 1e-3, 1e-6])
@pytest.mark.parametrize("leak", [0.0, 1e-9, 0.2])
def test_rounding_is_on_the_safe_side(share, leak):
    """Against the formula in 60 digits."""
    with localcontext() as context:
        context.prec = 60
        for k, q in ((1, 1), (2, 1), (3, 7), (1000, 1), (20, 10**6)):
            c, r, s, lam = (Decimal(x) for x in (CONTRIBUTION, RESIDUAL, share, leak))
            kept = (1 - lam) * (1 - s)
            tail = s * r / (1 - kept**2)
            product = [None, *(kept ** (d - 1) * (s * r * c + kept * s * r * tail) for d in (1, q, q + 1))]
            square = k * (c * c + s * r * tail) + 2 * (
                Decimal(k // 2) * product[1] + Decimal((k - 1) // 2) * product[2]
            )
            if k > 2:
                square += 2 * (k - 2) * product[3] * (1 - kept ** (q * (k - 2))) / (1 - kept**q)
            found = Decimal(bound(k, share, leak, q))
            assert square.sqrt() <= found <= square.sqrt() * (1 + Decimal("3e-9"))


def test_shares_that_float64_cannot_tell_from_nothing_are_refused():
    for share in (0.0, 1e-7, 1.0001, math.nan, True):
        with pytest.raises(ValueError, match="injected_share must be in"):
            checked_share(share)
    assert checked_share(1e-6) == 1e-6
