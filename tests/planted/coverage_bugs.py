"""Bugs of what lets programs cover more: lent memory, steps of an LSTM, weights that parameters give."""

from tacita.gradients.rules import lstm_steps
from tacita.gradients.rules.derived import Derived
from tests.planted.plant import bug, put

LSTM = "tests/gradients/rules/test_lstm_steps.py::"
RULES = "tests/gradients/rules/test_derived_weights.py::"


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
