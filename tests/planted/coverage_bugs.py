"""Bugs of what lets the ghost engine cover more: lent memory, steps of an LSTM, weights that parameters give."""

from contextlib import nullcontext

from torch import Tensor

from tacita.gradients import lent_memory, retention
from tacita.gradients.ghost import capture, engine, lstm_steps
from tacita.gradients.ghost.derived import Derived
from tests.planted.plant import bug, put

LOOP = "tests/gradients/test_loop.py::"
LENT = "tests/gradients/test_lent_memory.py::"
LSTM = "tests/gradients/test_lstm_steps.py::"
RULES = "tests/gradients/test_derived_weights.py::"


@bug(53, caught_by=[LENT + "test_what_is_written_in_some_calls_only_is_refused_before_it_is_written"])
def lent_memory_not_watched():
    """What a trial has not seen written is lent, and nobody looks whether a later call writes it."""
    put(capture, "nothing_lent_is_written", lambda tensors: nullcontext())


@bug(53, caught_by=[LENT + "test_what_is_written_in_some_calls_only_is_refused_before_it_is_written"])
def running_statistics_in_lent_memory():
    """A batch normalisation keeps its running mean in a record, as no schema of PyTorch's tells."""
    put(lent_memory, "_UNDECLARED", set())


@bug(53, caught_by=[LOOP + "test_running_statistics_are_not_written_by_a_function"])
def running_statistics_of_some_calls():
    """A function writes running statistics into buffers for some records, and their versions stay as they are."""
    put(retention, "_running", lambda func, args, kwargs: ())


@bug(53, caught_by=[LENT + "test_outs_and_lists_are_watched_without_vmap_too"])
def lists_of_lent_memory_not_watched():
    """An operator that writes a list of tensors may write lent memory, unless vmap refuses it."""
    put(lent_memory, "_tensors", lambda given: [given] if isinstance(given, Tensor) else [])


@bug(53, caught_by=[LENT + "test_a_rule_of_the_users_own_never_writes_the_data_for_a_rule_of_ours"])
def rule_behind_a_rule_not_watched():
    """A rule of tacita's that passes calls on to one of the user's is taken for one that writes nothing."""
    put(engine, "_is_ours", lambda rule: type(rule).__module__.startswith("tacita."))


@bug(53, caught_by=[LENT + "test_a_rule_of_the_users_own_never_writes_the_data_for_a_rule_of_ours"])
def merging_not_watched():
    """Nobody looks whether a rule of the user's own writes lent memory while it merges calls."""
    put(engine, "_lent_to", lambda found, chunk: [])


@bug(54, caught_by=[LSTM + "test_the_gradients_are_those_of_the_loop"])
def steps_taken_for_rows():
    """Where a record has several rows, the steps of an LSTM run over positions and rows in the order of memory."""
    put(lstm_steps, "_to_rows", lambda records: records.reshape(-1, records.shape[1], records.shape[-1]))


@bug(54, caught_by=[RULES + "test_rows_are_pulled_back_in_their_order"])
def pulled_back_in_another_order():
    """Gradients of a standardised weight are pulled back a few rows at a time, the last rows first."""
    pulled = Derived.pulled

    def turned(self, grads):
        return [one.flip(0) for one in pulled(self, grads)]

    put(Derived, "pulled", turned)
