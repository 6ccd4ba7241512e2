"""The life of a run: started once, resumed under the same key with the same inputs, finished without private files."""

import pytest

import tacita
from tacita.accounting import FullBatchLaw, GaussianSumEvent
from tacita.errors import ResumeError
from tacita.ledger import Ledger
from tacita.random import Randomness
from tacita.training.folder import RunFolder
from tacita.training.resumable_run import ResumableRun
from tacita.training.sealed_run import seal_run


def start(folder, seed: int = 0) -> ResumableRun:
    with ResumableRun.starting(RunFolder(folder), Randomness.insecure(seed)) as run:
        return run


def tag(run: ResumableRun) -> str:
    return run.randomness.session_key("any").tag("any", parts=[])


def sealed(folder) -> None:
    with Ledger(folder / "ledger.jsonl", neighboring_relation="add_or_remove_one", privacy_unit="one row") as ledger:
        event = GaussianSumEvent(
            sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(9.0,)
        )
        ledger.register(event, planned_queries=1, purpose="train")
        seal_run(ledger, tacita.statement(ledger, delta=1e-5))


def test_a_stopped_run_is_found_with_its_key(tmp_path):
    first, again = start(tmp_path / "run", 1), start(tmp_path / "run", 2)
    assert (first.resumed, again.resumed, again.sealed) == (False, True, False)
    assert tag(first) == tag(again) != tag(start(tmp_path / "other", 2))


def test_the_folder_is_locked_while_settings_are_compared(tmp_path):
    with ResumableRun.starting(RunFolder(tmp_path)) as run:
        assert run.folder.key.exists()
        with pytest.raises(ResumeError, match="other settings"), ResumableRun.starting(RunFolder(tmp_path / "b")):
            raise ResumeError("other settings")


def test_inputs_are_held_against_those_of_the_start(tmp_path):
    start(tmp_path).bind(iter([b"schema", b"rows"]), "data or schema")
    start(tmp_path).bind(iter([b"schema", b"rows"]), "data or schema")
    for others in ([b"schema", b"row"], [b"schemarows"], []):
        with pytest.raises(ResumeError, match="data or schema are not those that the run in folder"):
            start(tmp_path).bind(iter(others), "data or schema")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff"])
def test_a_damaged_tag_is_refused(tmp_path, content):
    run = start(tmp_path)
    run.bind([b"rows"], "data")
    (run.folder.private / "input.json").write_bytes(content)
    with pytest.raises(ResumeError, match="cannot be read"):
        run.bind([b"rows"], "data")


def test_the_tag_shows_no_open_hash_of_the_inputs(tmp_path):
    stored = []
    for seed in range(2):
        run = start(tmp_path / str(seed), seed)
        run.bind([b"rows"], "data")
        stored.append((run.folder.private / "input.json").read_bytes())
    assert stored[0] != stored[1]


def test_a_sealed_run_has_its_private_files_removed_and_no_more(tmp_path):
    run = start(tmp_path)
    run.bind([b"rows"], "data")
    (run.folder.private / "working").mkdir()
    (tmp_path / ".model.tmp").touch()
    sealed(tmp_path)
    again = start(tmp_path)
    assert again.sealed
    again.check_sealed()
    again.finish()
    assert not run.folder.private.exists()
    assert not (tmp_path / ".model.tmp").exists()
    with pytest.raises(ResumeError, match="must be a new or an empty folder"):
        start(tmp_path)


def test_a_change_after_the_seal_is_found(tmp_path):
    start(tmp_path)
    sealed(tmp_path)
    (tmp_path / "statement.txt").write_text("epsilon 0")
    with pytest.raises(ResumeError, match="was changed since"):
        start(tmp_path).check_sealed()


def test_the_folder_is_named_as_the_caller_names_it(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for path, kind in ((file, ResumeError), (file / "run", ValueError)):
        with (
            pytest.raises(kind, match="output must be a"),
            ResumableRun.starting(RunFolder(path), argument="output"),
        ):
            pass
