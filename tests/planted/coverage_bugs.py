"""Bugs of what lets the ghost engine cover more: lent memory, steps of an LSTM, weights that parameters give."""

from tacita.gradients import batches, data, retention
from tacita.gradients.ghost import channel_map, engine, lstm_steps
from tacita.gradients.ghost.derived import Derived
from tests.planted.plant import bug, put

LOOP = "tests/gradients/test_loop.py::"
LENT = "tests/gradients/test_lent_memory.py::"
LSTM = "tests/gradients/test_lstm_steps.py::"
MAPS = "tests/gradients/test_channel_map.py::"
RULES = "tests/gradients/test_derived_weights.py::"


@bug(53, caught_by=[LENT + "test_what_is_written_in_some_calls_only_is_a_copy"])
def lent_memory_without_copy_on_write():
    """What a trial has not seen written is lent as a view, which a later call may write."""
    put(data, "_lent", lambda array, indices: array[int(indices[0]) : int(indices[-1]) + 1])


@bug(53, caught_by=[LENT + "test_no_rule_writes_a_gradient_that_is_the_batch_itself"])
def address_of_lent_memory_asked_for():
    """The engine asks where what is lent lies, so that PyTorch copies the whole data set for each batch."""
    put(batches, "memory_address", lambda tensor: tensor.untyped_storage().data_ptr())
    put(engine, "memory_address", lambda tensor: tensor.untyped_storage().data_ptr())


@bug(53, caught_by=[LOOP + "test_running_statistics_are_not_written_by_a_function"])
def running_statistics_of_some_calls():
    """A function writes running statistics into buffers for some records, and their versions stay as they are."""
    put(retention, "_running", lambda func, args, kwargs: ())


@bug(54, caught_by=[LSTM + "test_the_gradients_are_those_of_the_loop"])
def steps_taken_for_rows():
    """Where a record has several rows, the steps of an LSTM run over positions and rows in the order of memory."""
    put(lstm_steps, "_to_rows", lambda records: records.reshape(-1, records.shape[1], records.shape[-1]))


@bug(54, caught_by=[RULES + "test_rows_are_pulled_back_in_their_order"])
def pulled_back_in_another_order():
    """Gradients of a standardised weight are pulled back a few rows at a time, the last rows first."""
    pulled = Derived.pulled

    def turned(self, grads, **settings):
        return [one.flip(0) for one in pulled(self, grads, **settings)]

    put(Derived, "pulled", turned)


@bug(54, caught_by=[MAPS + "test_the_graph_alone_tells_what_may_mix_channels"])
def means_taken_for_means_of_a_channel():
    """Any mean that a weight is normalised by counts as one over the numbers of a channel, and only a trial decides."""
    put(channel_map, "_by_channel", lambda small, whole: True)


@bug(54, caught_by=[MAPS + "test_what_may_mix_channels_has_no_map"])
def hooks_of_a_weight_left_out():
    """A normalised weight's pull-back is read from its graph, and nobody compares it with what autograd does."""
    put(channel_map, "_agrees", lambda made, tensor, leaves: True)


@bug(53, caught_by=[MAPS + "test_memory_that_a_rule_of_the_users_own_returns_is_not_written"])
def gradients_of_others_overwritten():
    """Gradients are pulled back in place in the memory that a rule of the user's own returned, maybe the data's."""
    pulled = Derived.pulled
    put(Derived, "pulled", lambda self, grads, *, overwrite=False: pulled(self, grads, overwrite=True))
