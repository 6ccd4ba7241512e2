"""Bugs of row numbers that are not in memory: other rows are read than those of the batch, or of the part."""

from tacita import _row_numbers
from tacita._row_numbers import ChosenRows, RowNumbers
from tacita.sampling import _assignment
from tests.planted.plant import bug, put, swap

ROWS = "tests/test_row_numbers.py::"


@bug(11, caught_by=[ROWS + "test_rows_at_places_are_those_of_arrays",
                    ROWS + "test_a_batch_of_a_part_reads_rows_of_that_part"])  # fmt: skip
def parts_read_from_the_first_row():
    """The places of a batch in a part of many rows are taken for row numbers: another part pays for the rows."""
    swap(_row_numbers.rows_at, lambda rows, places: places)


@bug(1, caught_by=[ROWS + "test_a_later_epoch_has_the_same_batch_too"])
def every_epoch_has_the_coins_of_the_first():
    """Where rows are many, each epoch deals the batches of the first one again."""
    before = _assignment.coin_batch
    swap(before, lambda *draw, offset=0: before(*draw, offset=0 * offset))


@bug(1, caught_by=[ROWS + "test_a_batch_is_the_same_rows_as_a_draw",
                   ROWS + "test_a_split_of_many_rows_has_the_same_parts"])  # fmt: skip
def coins_of_each_block_are_those_of_the_first():
    """Where rows are many, the coins of the first block serve every block: a record's coin is another one's, too."""
    before = ChosenRows.blocks
    put(ChosenRows, "blocks", lambda self: before(ChosenRows(self.num_rows, lambda _, count: self.chosen(0, count))))


@bug(63, caught_by=[ROWS + "test_what_a_caller_makes_is_read_and_checked"])
def row_numbers_believed_by_their_base():
    """Any class derived from row numbers is believed to hold each row once."""
    swap(_row_numbers.is_ascending, lambda rows: isinstance(rows, RowNumbers))
