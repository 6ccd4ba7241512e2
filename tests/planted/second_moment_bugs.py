"""Bugs of second moments of a table, whose norms may be taken once."""

from tacita.linear import row_blocks, table_rows
from tests.planted.plant import bug, put

MOMENT = "tests/linear/test_second_moment.py::"


@bug(20, caught_by=[MOMENT + "test_an_array_that_changes_between_queries_is_measured_again"])
def norms_of_an_array_that_others_write_are_kept():
    """Second moments keep the norms of an array that the caller goes on writing."""
    made = table_rows.TableRowsSource.__init__

    def shared(self, features, **more):
        made(self, row_blocks.as_row_blocks(features), **more)

    put(table_rows.TableRowsSource, "__init__", shared)
