"""Bugs of whole runs: checkpoints, resume, and what is shown or left behind."""

import pickle
import sys

from tacita.gradients import functional
from tacita.ledger import Ledger, Statement
from tacita.oracles import GradientOracle, ReleaseGate
from tacita.oracles.query_draws import QueryDraws
from tacita.runs import checkpoint
from tacita.runs.checkpoint import TrainingState
from tacita.runs.folder import RunFolder
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.training import fingerprint
from tacita.training.loop import Checkpoints
from tests.planted.plant import bug, put, swap

ORACLE = "tests/oracles/test_gradient_oracle.py::"
FIT = "tests/training/test_fit.py::"
LOOP = "tests/training/test_loop.py::"
CHECKPOINT = "tests/runs/test_checkpoint.py::"

RESUMED = FIT + "test_resumed_equals_uninterrupted_bit_for_bit"


@bug(42, caught_by=[ORACLE + "test_printing_an_oracle_shows_settings_and_no_data"])
def data_in_the_repr():
    """Printing an oracle shows its records."""
    put(GradientOracle, "__repr__", lambda self: f"{self.settings}, {self.source._rows._arrays}")


@bug(42, caught_by=[ORACLE + "test_an_error_shows_no_value_of_the_data"])
def data_in_a_message():
    """An error shows the losses that it complains of."""
    swap(functional.described, str)


@bug(1, 71, caught_by=["tests/oracles/test_gate.py::test_a_session_is_not_continued_under_another_key"])
def another_key_accepted():
    """A session goes on under another key, which deals the batches of one pass anew."""
    put(ReleaseGate, "identity", property(lambda self: ""))


@bug(43, caught_by=["tests/oracles/test_gate.py::test_an_older_key_is_ratcheted_forward"])
def position_forgotten():
    """A resumed run starts again at its first query."""
    whole = GradientOracle.load_state_dict
    put(GradientOracle, "load_state_dict", lambda self, state: whole(self, {**state, "position": 0}))


@bug(43, caught_by=[RESUMED])
def sampler_restarted():
    """A resumed run draws its batches from the first one on."""
    whole = QueryDraws.batch

    def batch(self, query):
        self._drawn = getattr(self, "_drawn", -1) + 1
        return whole(self, self._drawn)

    put(QueryDraws, "batch", batch)


@bug(43, caught_by=[RESUMED])
def optimizer_forgotten():
    """A resumed run has a new optimizer."""
    whole = TrainingState.from_tree
    put(TrainingState, "from_tree", lambda self, tree: whole(self, {**tree, "optimizer": self.to_tree()["optimizer"]}))


@bug(
    43,
    caught_by=[
        FIT + "test_changed_data_on_resume_are_an_error_that_tells_nothing_of_them",
    ],
)
def anything_resumed():
    """A run goes on with other settings or other data."""
    swap(fingerprint.data_fingerprint, lambda oracle, dataset: "")


@bug(46, caught_by=["tests/ledger/test_statement.py::test_a_statement_at_a_large_delta_says_what_it_allows"])
def large_delta_in_silence():
    """A statement at a delta that allows to publish a whole record says nothing of it."""
    put(sys.modules[Statement.__module__], "_on_large_delta", lambda delta, num_units: [])


@bug(43, caught_by=["tests/runs/test_run_lifecycle.py::test_a_run_is_held_to_what_it_was_started_with"])
def bound_to_nothing():
    """A run writes down what it was started with, and nobody looks."""
    put(RunLifecycle, "bind", lambda self, parts, inputs="": self.tag(parts))


@bug(11, 43, caught_by=[FIT + "test_an_older_copy_of_the_ledger_and_its_anchor_is_not_resumed"])
def older_ledger_resumed():
    """A run goes on with a ledger that lacks the last queries."""
    whole = Ledger.verify
    put(Ledger, "verify", lambda self, anchor=None: whole(self))


@bug(11, 43, caught_by=[LOOP + "test_lines_are_on_disk_before_a_checkpoint_and_the_key_comes_last"])
def checkpoint_before_the_ledger():
    """A checkpoint leaves the process while lines of its queries are still in memory."""
    whole = Checkpoints.save

    def hasty(self, state):
        flush = state.oracle.session.flush
        state.oracle.session.flush = lambda: None
        whole(self, state)
        state.oracle.session.flush = flush

    put(Checkpoints, "save", hasty)


@bug(34, 43, caught_by=[LOOP + "test_lines_are_on_disk_before_a_checkpoint_and_the_key_comes_last"])
def key_before_the_checkpoint():
    """The key moves on before the checkpoint that needs it is on disk."""

    def save(self, state):
        oracle = state.oracle
        oracle.session.flush()
        oracle.ratchet()
        oracle.randomness.save(self.folder.key)
        checkpoint.save(self.folder.checkpoint, state.to_tree(), {"binding": self.binding, "anchor": []})

    put(Checkpoints, "save", save)


@bug(34, caught_by=[LOOP + "test_a_checkpoint_moves_the_key_on"])
def key_stays_at_a_checkpoint():
    """The key file never moves on, so that all that was ever drawn can be drawn again."""
    put(ReleaseGate, "advance_key", lambda self, generation: None)


@bug(44, caught_by=[CHECKPOINT + "test_a_checkpoint_cannot_hold_objects"])
def checkpoint_of_anything():
    """A checkpoint holds whatever objects pickle takes."""
    swap(checkpoint.save, lambda path, tree, head: path.write_bytes(pickle.dumps((tree, head))))


@bug(44, caught_by=[CHECKPOINT + "test_a_pickle_is_refused_and_not_run"])
def checkpoint_unpickled():
    """A checkpoint is loaded by pickle, which runs what it holds."""
    swap(checkpoint.load, lambda path: pickle.loads(path.read_bytes()))


@bug(
    41,
    caught_by=[
        FIT + "test_writes_what_may_be_shared_and_removes_the_rest",
        CHECKPOINT + "test_finish_removes_the_private_folder",
    ],
)
def private_files_left_behind():
    """Checkpoint and key stay in the folder of a finished run."""
    put(RunFolder, "finish", lambda self: None)


@bug(41, caught_by=[FIT + "test_the_key_is_private_while_the_run_goes_on"])
def checkpoint_readable_by_all():
    """The checkpoint, which may hold raw gradients, can be read by everybody on the machine."""
    whole = checkpoint.replace_durably

    def shared(path, data, *, mode):
        whole(path, data)

    put(checkpoint, "replace_durably", shared)
