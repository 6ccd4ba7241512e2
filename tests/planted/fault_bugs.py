"""Bugs of faults: disks, losses of power, kills, ledgers tampered with, a resume with something changed."""

import os

from tacita import _files
from tacita.ledger.journal import JournalFile
from tacita.oracles.gate import ReleaseGate
from tacita.runs.folder import RunFolder
from tacita.training.loop import Checkpoints
from tests.planted.plant import bug, put

FILE = "tests/faults/test_power_loss.py::test_a_replaced_file_is_the_old_one_or_the_new_one"
KILLED_AT_THE_END = "tests/faults/test_kill.py::test_a_run_killed_while_it_removes_its_key_is_finished_by_the_next_one"
LEDGERS = "tests/faults/test_ledgers.py::"
JOURNAL = "tests/ledger/test_journal.py::"


@bug(43, caught_by=[FILE])
def file_written_in_place():
    """A file is written over, so that an interrupted write leaves neither the old one nor the new one."""

    def over(path, pieces, *, mode=0o644):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, mode)
        os.ftruncate(handle, 0)
        for piece in pieces:
            os.write(handle, piece)
        os.fsync(handle)
        os.close(handle)

    put(_files, "replace_in_pieces", over)


@bug(11, caught_by=[JOURNAL + "test_a_second_writer_is_refused_and_a_reader_is_not"])
def two_writers():
    """Two processes write one ledger, and each knows its own lines alone."""
    put(JournalFile, "_take_lock", lambda self: None)


@bug(34, 43, caught_by=[LEDGERS + "test_a_key_or_checkpoint_of_another_run_is_refused"])
def checkpoint_of_another_run_accepted():
    """A checkpoint is taken for this run's whatever run wrote it."""
    put(Checkpoints, "_check", lambda self, state, head: None)
    put(ReleaseGate, "identity", property(lambda self: ""))  # a second check, of the key, stands behind it


@bug(43, caught_by=[KILLED_AT_THE_END])
def key_removed_before_the_checkpoint():
    """The key goes first: killed then, a run leaves a checkpoint that nobody will remove."""

    def finish(self):
        self.key.unlink(missing_ok=True)
        self.checkpoint.unlink(missing_ok=True)
        self.private.rmdir()

    put(RunFolder, "finish", finish)
