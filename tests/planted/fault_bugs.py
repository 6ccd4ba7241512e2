"""Bugs of faults: disks, losses of power, kills, ledgers tampered with, a resume with something changed."""

import os

from tacita import _files
from tacita._files import temporary_beside
from tacita.ledger import hash_chain as chain
from tacita.ledger.journal import Journal, JournalFile
from tacita.oracles.gate import ReleaseGate
from tacita.runs import checkpoint
from tacita.runs.folder import RunFolder
from tacita.tables import readers
from tacita.training.loop import Checkpoints
from tests.planted.callback_bugs import watched_without_flush
from tests.planted.plant import bug, put, swap

FILE = "tests/faults/test_power_loss.py::test_a_replaced_file_is_the_old_one_or_the_new_one"
LEDGER = "tests/faults/test_power_loss.py::test_a_ledger_covers_what_was_released_and_goes_on"
KILLED_AT_THE_END = "tests/faults/test_kill.py::test_a_run_killed_while_it_removes_its_key_is_finished_by_the_next_one"
LEDGERS = "tests/faults/test_ledgers.py::"
JOURNAL = "tests/ledger/test_journal.py::"


@bug(43, caught_by=[FILE])
def file_not_flushed_before_its_rename():
    """A new file takes the old one's name before its bytes are on disk."""

    def hasty(path, data, mode):
        handle = os.open(temporary_beside(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        os.write(handle, data)
        os.close(handle)
        os.replace(temporary_beside(path), path)

    put(_files, "_replace", hasty)


@bug(43, caught_by=[FILE])
def file_written_in_place():
    """A file is written over, so that an interrupted write leaves neither the old one nor the new one."""

    def over(path, data, mode):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, mode)
        os.ftruncate(handle, 0)
        os.write(handle, data)
        os.fsync(handle)
        os.close(handle)

    put(_files, "_replace", over)


@bug(11, 43, caught_by=[FILE])
def folder_not_flushed():
    """A rename is left to the system: a loss of power brings the old file back."""
    swap(_files.flush_folder, lambda folder: None)


@bug(11, caught_by=[LEDGER])
def new_folder_not_flushed():
    """The name of a run's new folder may be lost, and with it a ledger whose every line was flushed."""
    swap(_files.make_folder, lambda path, mode=0o777: path.mkdir(mode, parents=True, exist_ok=True))


@bug(11, caught_by=[LEDGER])
def anchor_ahead_of_the_lines():
    """The anchor counts lines that are not on disk yet, so that a loss of power looks like tampering."""

    def sync(self):
        if self._file is not None:
            self._file.write_anchor(self._anchor())
            self._file.sync()

    put(Journal, "_sync", sync)


@bug(
    11,
    caught_by=[JOURNAL + "test_a_full_disk_adds_nothing_and_the_session_goes_on_when_there_is_room[50]"],
)
def half_a_line_kept():
    """On a full disk half a line stays in the ledger."""
    put(JournalFile, "_undo", lambda self: None)


@bug(11, caught_by=[JOURNAL + "test_a_second_writer_is_refused_and_a_reader_is_not"])
def two_writers():
    """Two processes write one ledger, and each knows its own lines alone."""
    put(JournalFile, "_take_lock", lambda self: None)


@bug(11, caught_by=[JOURNAL + "test_tampering_shows_and_the_ledger_is_not_continued"])
def edited_ledger_accepted():
    """A line that was changed is read like any other."""
    swap(chain.find_fault, lambda lines, entries: "")


@bug(11, caught_by=[JOURNAL + "test_tampering_shows_and_the_ledger_is_not_continued"])
def shortened_ledger_accepted():
    """Lines taken from the end are not missed."""
    swap(chain.check_anchor, lambda lines, anchor: "")


@bug(34, 43, caught_by=[LEDGERS + "test_a_key_or_checkpoint_of_another_run_is_refused"])
def checkpoint_of_another_run_accepted():
    """A checkpoint is taken for this run's whatever run wrote it."""
    put(Checkpoints, "_check", lambda self, state, head: None)
    put(ReleaseGate, "identity", property(lambda self: ""))  # a second check, of the key, stands behind it


@bug(34, 43, caught_by=[LEDGERS + "test_a_missing_checkpoint_or_key_is_refused"])
def key_moved_on_without_a_checkpoint():
    """A run whose checkpoint is missing writes a new one, and moves the key on, before it is refused."""
    put(
        Checkpoints,
        "begin",
        lambda self, state: self.restore(state) if self.folder.checkpoint.exists() else self.save(state),
    )


@bug(34, caught_by=[KILLED_AT_THE_END])
def key_left_by_a_run_killed_at_its_end():
    """A run killed while it removes its private files is never finished, and its key stays."""
    put(RunFolder, "tidying", property(lambda self: False))


@bug(
    34,
    caught_by=[
        "tests/runs/test_checkpoint.py::test_finish_removes_the_private_folder",
        "tests/training/test_fit.py::test_writes_what_may_be_shared_and_removes_the_rest",
    ],
)
def key_left_behind_at_the_end():
    """The checkpoint is removed, and the key that opens every release is not."""

    def finish(self):
        self.checkpoint.unlink(missing_ok=True)

    put(RunFolder, "finish", finish)


@bug(43, caught_by=[KILLED_AT_THE_END])
def key_removed_before_the_checkpoint():
    """The key goes first: killed then, a run leaves a checkpoint that nobody will remove."""

    def finish(self):
        self.key.unlink(missing_ok=True)
        self.checkpoint.unlink(missing_ok=True)
        self.private.rmdir()

    put(RunFolder, "finish", finish)


@bug(48, caught_by=[LEDGERS + "test_another_optimizer_gets_fresh_noise_and_a_new_charge"])
def lines_redone_by_another_optimizer():
    """A run that goes on with another optimizer starts at numbers that were released under the old one."""
    put(ReleaseGate, "redo_nothing", lambda self: None)


@bug(43, 48, caught_by=[LEDGERS + "test_another_optimizer_really_steps"])
def another_optimizer_ignored():
    """The settings of the checkpoint's optimizer come back over those that were asked for, in silence."""
    swap(checkpoint.described, lambda optimizer: "")


@bug(11, 42, caught_by=["tests/training/test_fit.py::test_the_ledger_is_on_disk_before_a_loss_is_shown"])
def shown_before_the_ledger_is_on_disk():
    """A loss on public rows is shown while the lines of the queries behind it may still be lost."""
    watched_without_flush()


@bug(50, caught_by=["tests/faults/test_fuzz_table_files.py::test_no_way_to_read_quotes_a_cell"])
def row_of_the_wrong_width_is_quoted():
    """A reader complains of a row, and quotes it."""
    whole = readers.split_line

    def strict(line, reading):
        cells = whole(line, reading)
        if reading.header and len(cells) != 5:
            raise readers.DataStructureError(f"not a row: {line!r}")
        return cells

    swap(readers.split_line, strict)
