"""Bugs of the median of means: it moves farther than stated, or is charged where nothing is proved."""

import math

import torch

from tacita.accounting import RELATIONS
from tacita.accounting.events.sampled import Proof
from tacita.convex import MedianOfMeans, MedianOfMeansEvent, median_of_means
from tacita.convex import median_event as medians
from tests.planted.plant import bug, put, swap

MEDIAN = "tests/convex/test_median_of_means.py::"
AUDIT = MEDIAN + "test_an_audit_nearly_reaches_the_claim"


@bug(51, caught_by=[MEDIAN + "test_groups_follow_from_labels_not_from_places_in_the_batch",
                    MEDIAN + "test_an_absent_record_moves_no_other"])  # fmt: skip
def groups_by_place_in_the_batch():
    """The groups of a median of means follow from the places in the batch, so one absent record moves all others."""
    before = MedianOfMeans._group_sums

    class Placed:
        def __init__(self, engine):
            self.shapes, self._engine = engine.shapes, engine

        def labelled(self):
            start = 0
            for labels, chunk in self._engine.labelled():
                yield torch.arange(start, start + len(labels)), chunk
                start += len(labels)

    put(MedianOfMeans, "_group_sums", lambda self, engine: before(self, Placed(engine)))


@bug(20, caught_by=[MEDIAN + "test_the_sensitivity_grows_with_the_square_root_of_the_dimension", AUDIT])
def one_coordinate_moves():
    """The sensitivity of a median of means is that of one coordinate."""
    before = MedianOfMeans._contribution

    def contribution(self, shapes):
        return before(self, shapes) / math.sqrt(self.block_sizes(shapes)["all"])

    put(MedianOfMeans, "_contribution", contribution)


@bug(20, caught_by=[MEDIAN + "test_v5_the_sensitivity_is_reached", AUDIT])
def an_odd_median_is_a_midpoint():
    """The sensitivity is halved as for an even number of groups, whatever their number."""
    before = MedianOfMeans._contribution

    def contribution(self, shapes):
        return before(self, shapes) * (0.5 if self.num_groups % 2 else 1.0)

    put(MedianOfMeans, "_contribution", contribution)


@bug(20, caught_by=[MEDIAN + "test_v5_the_sensitivity_is_reached",
                    MEDIAN + "test_no_record_moves_the_values_farther_than_stated"])  # fmt: skip
def an_even_median_is_the_upper_value():
    """An even number of groups takes the upper of the two middle values, which moves twice as far as the midpoint."""

    def upper(sums, axis):
        return sums.sort(dim=axis).values.select(axis, sums.shape[axis] // 2)

    swap(median_of_means._median, upper)


@bug(25, caught_by=[MEDIAN + "test_a_row_that_is_not_finite_counts_as_zero", MEDIAN + "test_an_empty_batch_is_zero"])
def what_is_not_finite_reaches_the_median():
    """A row of NaN enters its group's sum."""
    swap(
        median_of_means._finite_rows,
        lambda chunk, shapes: next(torch.ones(g.shape[: -len(shapes[n])], dtype=torch.bool) for n, g in chunk.items()),
    )


@bug(20, caught_by=[MEDIAN + "test_it_is_the_median_of_the_sums_of_groups",
                    MEDIAN + "test_no_record_moves_the_values_farther_than_stated"])  # fmt: skip
def coordinates_are_not_clamped():
    """A coordinate enters its group's sum as it is."""

    def steps(self, grads, finite, param_axes):
        kept = torch.where(finite[(..., *[None] * param_axes)], grads.double(), 0.0)
        return kept.div(self.max_coordinate).mul(median_of_means.LEVELS).round()

    put(MedianOfMeans, "_steps", steps)


@bug(1, caught_by=[MEDIAN + "test_what_is_not_proved_is_refused"])
def medians_where_records_come_and_go():
    """A median of means is charged under add_or_remove_one, where one more row moves all others to other groups."""
    proofs = MedianOfMeansEvent.proofs
    every = {law: Proof(dict.fromkeys(RELATIONS, "as if"), proof.guarantee) for law, proof in proofs.items()}
    put(medians.MedianOfMeansEvent, "proofs", every)
