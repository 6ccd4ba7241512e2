"""Bugs of the shuffle model: noise that is not there, shifts that are forgotten, messages that tell too much."""

from dataclasses import replace

from tacita.convex import (
    ShuffledSumEvent,
)
from tests.planted.plant import bug, put

EVENT = "tests/convex/test_shuffled_sum_event.py::"
ORACLE = "tests/convex/test_shuffle_oracles.py::"


@bug(1, caught_by=[EVENT + "test_what_is_not_proved_is_refused", ORACLE + "test_what_is_not_proved_is_refused"])
def shuffled_batches_of_random_size():
    """Batches that users join by a coin of their own are accepted, though their number of noise bits is random."""
    proofs = {
        law: replace(proof, charges=proof.if_absence_moves or proof.charges, if_absence_moves=None)
        for law, proof in ShuffledSumEvent.proofs.items()
    }
    put(ShuffledSumEvent, "proofs", proofs)
