"""Bugs of tables: a parser that tells about rows, types and bounds that were not bought."""

from types import SimpleNamespace

import numpy as np

from tacita.pipeline import purchases
from tacita.tables import budget, cells, readers
from tests.planted.plant import bug, put, swap

READERS = "tests/tables/test_readers.py::"
CELLS = "tests/tables/test_cells.py::"
PURCHASES = "tests/pipeline/test_purchases.py::"
BUDGET = "tests/tables/test_budget.py::"


@bug(50, caught_by=[CELLS + "test_what_float_might_take_is_no_number"])
def cells_parsed_by_float():
    """A cell goes to float(), whose message quotes it."""
    swap(cells.parse_number, float)


@bug(50, caught_by=[READERS + "test_a_broken_file_raises_one_line_that_shows_nothing_of_it"])
def parser_message_shown():
    """The message of a file's own parser is passed on."""
    names = readers._header

    def quoting(line, reading):
        try:
            return names(line, reading)
        except readers.DataStructureError as error:
            raise readers.DataStructureError(f"invalid header {line!r}") from error

    swap(names, quoting)


@bug(50, caught_by=[READERS + "test_a_row_of_the_wrong_width_keeps_its_place_and_counts_for_nothing"])
def row_of_the_wrong_width_raises():
    """A row with a cell too many stops the run, with the row in the message."""
    whole = readers.split_line

    def strict(line, reading):
        found = whole(line, reading)
        if len(found) != 2:
            raise ValueError(f"could not read {line!r}")
        return found

    swap(whole, strict)


@bug(
    18,
    50,
    caught_by=[
        PURCHASES + "test_every_count_gets_noise_std_times_its_own_normal_and_is_rounded",
    ],
)
def types_inferred_without_noise():
    """Types and bounds are read from exact counts."""
    put(purchases, "GaussianMechanism", lambda noise_multiplier: lambda values, noise_std, normals: values)


@bug(38, caught_by=[PURCHASES + "test_floating_point_noise_leaves_no_trace"])
def floating_point_noise_on_counts():
    """Counts get floating-point noise, whose low bits show that they are integers."""
    put(purchases, "np", SimpleNamespace(rint=lambda counts: counts))


@bug(
    18,
    caught_by=[
        BUDGET + "test_single_texts_stay_unreleased",
        BUDGET + "test_new_texts_pass_the_threshold_with_at_most_the_stated_chance",
    ],
)
def texts_of_one_record_released():
    """A text is released as soon as its noisy count is likely to be above one."""
    swap(budget.text_threshold, lambda noise_std, failure, new, rows=1: noise_std + rows)


@bug(15, caught_by=[BUDGET + "test_the_event_states_the_move_of_the_worst_neighbour"])
def purchases_by_the_row():
    """Counts are bought at the price of one row where a person has several."""
    put(budget.PurchasePlan, "_contribution", lambda self, histograms: histograms**0.5)


@bug(44, 50, caught_by=["tests/tables/test_pickles.py::test_an_object_in_an_npz_file_is_refused_and_not_run"])
def npz_unpickled():
    """Objects in an NPZ file are unpickled, which runs what they hold."""
    whole = np.load
    put(np, "load", lambda path, *, allow_pickle: whole(path, allow_pickle=True))
