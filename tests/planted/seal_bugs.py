"""Bugs of the seal: something of a finished run can be swapped, and nobody notices."""

from tacita.cli import trust
from tacita.ledger import hash_chain as chain
from tacita.ledger import journal
from tacita.ledger.records import Seal, statement_sha256
from tacita.ledger.registry import SessionRegistry
from tacita.runs.folder import RunFolder
from tacita.runs.sealed_run import SealedRun
from tacita.tables.models import ModelSpec
from tests.planted.plant import bug, put, swap

REPORT = "tests/tables/test_table_statement.py::test_tampering_is_found"
FOUND = "tests/runs/test_sealed_run.py::test_tampering_is_found"
SEAL = "tests/ledger/test_seal.py::"
TRUST = "tests/cli/test_trust.py::"


def without(*names):
    """Files of these names are not sealed."""
    whole = Seal.of.__func__

    def of(cls, statement, files, after):
        return whole(cls, statement, {name: digest for name, digest in files.items() if name not in names}, after)

    put(Seal, "of", classmethod(of))


@bug(65, caught_by=[f"{FOUND}[fit-another_model]", f"{FOUND}[by_hand-another_model]"])
def model_not_sealed():
    """The hash of the model stands in the statement alone, where it can be changed with the model."""
    without("model.safetensors")


@bug(65, caught_by=[f"{REPORT}[preprocessing_edited]"])
def preprocessing_not_sealed():
    """Bounds, categories and classes can be changed after the run, and predictions with them."""
    without("preprocessing.json")


@bug(65, caught_by=[f"{REPORT}[the_configuration_edited]", f"{REPORT}[the_configuration_removed]"])
def configuration_not_sealed():
    """What config.toml says is not what the run was made with."""
    without("config.toml")


@bug(65, caught_by=["tests/runs/test_sealed_run.py::test_tampering_is_found[fit-statement.txt]"])
def words_not_sealed():
    """The statement that people read says what nobody checks."""
    without("statement.txt")


@bug(65, caught_by=[f"{REPORT}[a_null_added]"])
def statement_not_sealed():
    """A field that somebody adds to the statement is taken for one of it."""
    put(SealedRun, "_faults", _without_statement(SealedRun._faults))


def _without_statement(whole):
    def faults(self):
        return tuple(fault for fault in whole(self) if "is not the statement that" not in fault)

    return faults


@bug(65, caught_by=[f"{FOUND}[by_hand-an_epsilon_before_the_epsilon]"])
def bytes_of_the_statement_not_looked_at():
    """A name that stands twice in the statement has another value for another reader."""
    put(SealedRun, "_same_statement", lambda self, seal: statement_sha256(self.stated) == seal.statement)


@bug(65, caught_by=[f"{FOUND}[fit-an_anchor_of_nothing]", f"{FOUND}[by_hand-an_earlier_anchor]"])
def anchor_of_a_sealed_ledger_put_back():
    """The anchor beside a sealed ledger counts nothing, so that lines can be written anew under it."""
    swap(journal._put_back, lambda reading, own: "")


@bug(65, caught_by=["tests/runs/test_sealed_run.py::test_a_seal_over_another_model_than_the_statement_names"])
def statement_and_seal_not_compared():
    """The last line is written anew over another model than the statement names."""
    put(SealedRun, "_named", lambda self: {})


@bug(65, caught_by=[f"{REPORT}[weights_edited]", f"{FOUND}[by_hand-another_model]"])
def sealed_files_not_looked_at():
    """The seal is there, and no file is held against it."""
    put(SealedRun, "_differs", lambda self, name: False)


@bug(65, caught_by=[f"{REPORT}[the_seal_cut_off,_and_the_anchor]"])
def unsealed_run_accepted():
    """A ledger whose seal was cut off with its anchor is taken for that of a finished run."""
    whole = SealedRun._faults

    def faults(self):
        return tuple(fault for fault in whole(self) if "it has no seal" not in fault)

    put(SealedRun, "_faults", faults)


@bug(65, caught_by=[f"{REPORT}[a_blank_line_after_the_seal]", SEAL + "test_whatever_follows_it_shows"])
def torn_line_after_the_seal():
    """What follows the seal is taken for a torn line, and passed over."""
    whole = journal._contradiction
    swap(whole, lambda reading, anchor, name: whole(chain.LedgerLines(*_torn_away(reading)), anchor, name))


def _torn_away(reading):
    return reading.lines, reading.entries, reading.size, reading.fault, False


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


@bug(65, caught_by=[SEAL + "test_a_seal_out_of_place_is_no_ledger", SEAL + "test_open_sessions_are_not_sealed"])
def sealed_with_open_sessions():
    """A session that may still release something is open when its ledger is sealed."""
    put(SessionRegistry, "check_sealable", lambda self: None)


@bug(65, caught_by=[f"{REPORT}[the_ledger_removed]", f"{REPORT}[a_line_edited]"])
def ledger_not_looked_at():
    """Predictions are made, and files are verified, whatever became of the ledger."""

    def faults(self):
        files = {path.name for path in self.folder.iterdir() if path.is_file()}
        self._files = {name: chain.sha256((self.folder / name).read_bytes()) for name in files}
        return ()

    put(SealedRun, "_faults", faults)


@bug(65, caught_by=["tests/runs/test_sealed_run.py::test_only_sealed_bytes_are_read"])
def read_without_a_hash():
    """A file that is swapped between the check and the use is used."""
    put(SealedRun, "read", lambda self, name: (self.folder / name).read_bytes())


@bug(65, caught_by=[TRUST + "test_predict_imports_code_only_if_it_is_trusted"])
def code_of_a_run_imported():
    """A run's files name code, and predict imports it."""
    put(ModelSpec, "is_code", property(lambda self: False))


@bug(65, caught_by=[TRUST + "test_a_configuration_imports_code_only_if_it_is_trusted"])
def code_of_a_configuration_imported():
    """A configuration names code, and what reads it imports it."""
    swap(trust.check_code, lambda config, *, trusted, given=None: None)


@bug(65, caught_by=["tests/faults/test_kill.py::test_stopped_around_the_seal_of_a_table"])
def finished_without_its_seal():
    """A run that is killed before its seal is taken for a finished one."""
    put(RunFolder, "tidying", property(lambda self: self.private.is_dir() and (self.path / "statement.json").exists()))


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
