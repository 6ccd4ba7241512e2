"""Bugs of second moments of a table, whose norms may be taken once."""

from tacita.linear import row_blocks, source
from tests.planted.plant import bug, put

MOMENT = "tests/linear/test_second_moment.py::"


@bug(20, caught_by=[MOMENT + "test_an_array_that_changes_between_queries_is_not_read_again"])
def norms_of_an_array_that_others_write_are_kept():
    """Second moments keep the norms of an array that the caller goes on writing."""
    put(source, "owned_row_blocks", row_blocks.as_row_blocks)


@bug(20, caught_by=[MOMENT + "test_a_table_gives_the_matrix_of_its_rows"])
def norms_without_further_entries():
    """The norm of a table's row leaves out the targets beside it."""

    def own(self, scale, constant):
        return self._table.norms(scale[: self._table.shape[1]], constant)

    put(row_blocks.WithColumns, "norms", own)
