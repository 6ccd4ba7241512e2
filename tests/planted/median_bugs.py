"""Bugs of the median of means: it moves farther than stated, or is charged where nothing is proved."""

from tacita.accounting import RELATIONS
from tacita.accounting.events.sampled import Proof
from tacita.convex import MedianOfMeansEvent
from tacita.convex import median_event as medians
from tests.planted.plant import bug, put

MEDIAN = "tests/convex/test_median_of_means.py::"


@bug(1, caught_by=[MEDIAN + "test_what_is_not_proved_is_refused"])
def medians_where_records_come_and_go():
    """A median of means is charged under add_or_remove_one, where one more row moves all others to other groups."""
    proofs = MedianOfMeansEvent.proofs
    every = {law: Proof(dict.fromkeys(RELATIONS, "as if"), proof.guarantee) for law, proof in proofs.items()}
    put(medians.MedianOfMeansEvent, "proofs", every)
