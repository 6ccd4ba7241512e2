"""Bugs of whole runs: checkpoints, resume, and what is shown or left behind."""

import pickle

from tacita.runs import checkpoint
from tacita.training.loop import Checkpoints
from tests.planted.plant import bug, put, swap

LOOP = "tests/training/test_loop.py::"
CHECKPOINT = "tests/runs/test_checkpoint.py::"


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


@bug(44, caught_by=[CHECKPOINT + "test_a_checkpoint_cannot_hold_objects"])
def checkpoint_of_anything():
    """A checkpoint holds whatever objects pickle takes."""
    swap(checkpoint.save, lambda path, tree, head: path.write_bytes(pickle.dumps((tree, head))))


@bug(44, caught_by=[CHECKPOINT + "test_a_pickle_is_refused_and_not_run"])
def checkpoint_unpickled():
    """A checkpoint is loaded by pickle, which runs what it holds."""
    swap(checkpoint.load, lambda path: pickle.loads(path.read_bytes()))
