"""Bugs of traced steps: what a line of operators no longer sees."""

from tacita.gradients import engine_choice, operators, traced, traced_step
from tests.planted.plant import bug, put, swap

TRACED = "tests/gradients/test_traced.py::"


@bug(caught_by=[TRACED + "test_what_changes_is_seen", TRACED + "test_what_the_loss_refers_to_is_seen"])
def a_line_is_never_made_anew():
    """The network changes, and the operators of the old one run on."""
    put(traced._State, "same", lambda self, other: True)


@bug(caught_by=[TRACED + "test_swaps_are_seen"])
def entries_of_a_modules_dictionaries_are_not_seen():
    """An adapter gets another scale, and the line keeps the old one."""
    put(traced, "_entries", lambda module: ())


@bug(caught_by=[TRACED + "test_what_is_not_seen_is_the_same_for_all_batches"])
def a_line_for_each_size():
    """Each number of rows gets a line of its own when it is first drawn, so records meet code by how many they are."""

    def begun(self, chunk):
        self.lines.size = chunk.size
        self._line = self.lines.line(self, self.groups_asked, 1)
        tensors, _ = traced.flatten(chunk.batch, chunk.size)
        fixed = traced.fixed_tensors(traced.ModuleTree(self.model), self.params).values()
        return self._line.begin([*self.params.values(), *fixed, *tensors])

    def line(self, engine, groups, arrays):
        engine.groups_asked = groups
        key = (self.size, arrays, tuple(groups.items()))
        if key not in self._lines:
            self._lines[key] = traced.trace(engine, self._like, self.size, groups, arrays)
        return self._lines[key]

    put(traced.TracedEngine, "_begun", begun)
    put(traced.Lines, "line", line)


@bug(caught_by=[TRACED + "test_rows_are_added_that_count_for_nothing"])
def rows_that_are_added_count():
    """The copies of the first row that fill up a batch have its weight, too."""
    whole = traced.filled_up

    def filled_up(tensor, size, *, zeros=False):
        return whole(tensor, size)

    swap(whole, filled_up)


@bug(caught_by=[TRACED + "test_numbers_that_would_be_drawn_once_are_refused"])
def a_draw_is_made_once_for_all_steps():
    """Numbers that the code draws by itself are drawn when a step is traced, and stay the same."""
    put(traced, "generator_states", lambda: ())
    put(engine_choice, "generator_states", lambda: ())
    put(operators.OperatorCheck, "_check_draw", lambda self, args, kwargs: None)
    put(engine_choice, "_coins_of_rows", lambda engine_of, alike: "")


@bug(caught_by=[TRACED + "test_a_model_that_writes_its_batch_is_refused"])
def a_line_writes_what_it_was_given():
    """A model that writes its batch is traced, and halves it once more at each step."""
    put(traced_step, "_check", lambda module: None)


@bug(caught_by=[TRACED + "test_rows_that_are_not_finite_count_for_nothing"])
def a_row_that_is_not_finite_meets_no_mask():
    """A row of weight 0 is multiplied by 0 whatever it holds, and 0 times NaN is NaN."""
    whole = traced_step.Halfway.sums
    put(traced_step.Halfway, "sums", lambda self, weights, *, masked: whole(self, weights, masked=False))


@bug(caught_by=[TRACED + "test_autocast_around_a_query_is_seen"])
def lines_do_not_ask_for_autocast():
    """A step that was traced without autocast runs under it, or the other way round."""
    put(traced, "_switches", lambda device: ())
