"""Bugs of the seal: something of a finished run can be swapped, and nobody notices."""

from tacita.ledger import hash_chain as chain
from tacita.ledger import journal
from tacita.runs.sealed_run import SealedRun
from tests.planted.plant import bug, put

REPORT = "tests/tables/test_table_statement.py::test_tampering_is_found"
SEAL = "tests/ledger/test_seal.py::"


@bug(65, caught_by=[f"{REPORT}[the_seal_cut_off,_and_the_anchor]"])
def unsealed_run_accepted():
    """A ledger whose seal was cut off with its anchor is taken for that of a finished run."""
    whole = SealedRun._faults

    def faults(self):
        return tuple(fault for fault in whole(self) if "it has no seal" not in fault)

    put(SealedRun, "_faults", faults)


@bug(
    65,
    caught_by=[
        SEAL + "test_nothing_may_be_added",
        "tests/tables/test_table_statement.py::test_nothing_is_added_to_a_sealed_ledger",
    ],
)
def added_after_the_seal():
    """A sealed ledger takes more lines."""
    put(journal.Journal, "check_not_sealed", lambda self: None)


@bug(65, caught_by=[f"{REPORT}[the_ledger_removed]", f"{REPORT}[a_line_edited]"])
def ledger_not_looked_at():
    """Predictions are made, and files are verified, whatever became of the ledger."""

    def faults(self):
        files = {path.name for path in self.folder.iterdir() if path.is_file()}
        self._files = {name: chain.sha256((self.folder / name).read_bytes()) for name in files}
        return ()

    put(SealedRun, "_faults", faults)


@bug(
    65,
    caught_by=[
        "tests/runs/test_sealed_run.py::test_a_run_changed_while_it_was_stopped_after_its_seal_is_not_finished_in_silence"
    ],
)
def changed_between_seal_and_tidying():
    """A model that is swapped while a run is stopped after its seal is called the run's."""
    put(SealedRun, "intact", classmethod(lambda cls, folder: cls(folder)))
    put(SealedRun, "read", lambda self, name: _first_bytes(self.folder / name))


def _first_bytes(path):
    return path.read_bytes().removesuffix(b"x")
