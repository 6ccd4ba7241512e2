"""The life of a run: what each start finds, what it is held to, and what is left of it."""

from typing import Any

import pytest
import torch

import tacita
from tacita.accounting import FullBatchLaw, GaussianSumEvent
from tacita.runs.folder import RunFolder
from tacita.runs.run_facts import run_id
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.sealed_run import MODEL, publish

RELATION: Any = dict(neighboring_relation="add_or_remove_one", privacy_unit="one row")

EVENT = GaussianSumEvent(
    sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,)
)


def start(path, seed=None, **settings):
    return RunLifecycle.start(RunFolder(path), None if seed is None else tacita.Randomness.insecure(seed), **settings)


def tag(run):
    return run.tag([b"same"])


def sealed(run):
    """Make the weights and the statement, and end the ledger with their hashes."""
    with run.ledger(**RELATION) as ledger:
        ledger.register(EVENT, planned_queries=1)
        ledger.sessions[0].open()
        ledger.sessions[0].close()
        publish(ledger, lambda files: tacita.statement(ledger, 1e-6, files=files), weights={"weight": torch.zeros(2)})


def test_a_run_is_new_then_unfinished_then_sealed_then_gone(tmp_path):
    first = start(tmp_path / "run")
    assert (first.resumed, first.sealed) == (False, False)
    again = start(tmp_path / "run", 0)
    assert (again.resumed, again.sealed) == (True, False)
    assert tag(again) == tag(first) != tag(start(tmp_path / "other"))  # its own key, not the one handed in
    sealed(again)
    last = start(tmp_path / "run")
    assert (last.resumed, last.sealed) == (True, True)
    assert last.sealed_run().stated["delta"] == 1e-6
    last.folder.key.unlink()  # killed before its folder was removed
    last = start(tmp_path / "run")
    assert (last.resumed, last.sealed) == (False, True)
    last.finish()
    assert not (tmp_path / "run" / "private").exists()
    with pytest.raises(tacita.ResumeError, match=r"a new or an empty folder.* not empty: it holds a finished run"):
        start(tmp_path / "run")


def test_every_process_of_a_run_has_the_same_name_for_it(tmp_path):
    name = run_id(RunLifecycle.start(RunFolder(tmp_path / "run")).randomness)
    other = RunLifecycle.start(RunFolder(tmp_path / "run")).randomness
    other.ratchet()
    assert run_id(other) == name


def test_the_settings_are_compared_while_the_folder_is_locked(tmp_path):
    def refuse(run):
        assert run.folder.key.exists()
        raise tacita.ResumeError("other settings")

    for _ in range(2):  # the lock is released
        with pytest.raises(tacita.ResumeError, match="other settings"):
            start(tmp_path / "run", check=refuse)
    assert start(tmp_path / "run").resumed


def test_a_run_that_lost_its_key_is_refused(tmp_path):
    run = start(tmp_path / "run")
    run.bind([b"data"])
    run.folder.key.unlink()
    with pytest.raises(tacita.ResumeError, match=r"folder 'run' has lost its private key key.json"):
        start(tmp_path / "run")


def test_a_run_without_a_key_on_disk_is_never_resumed(tmp_path):
    run = start(tmp_path / "run", resumable=False)
    assert not run.folder.key.exists()
    (run.folder.private / "file").touch()
    for path in (tmp_path / "run", start(tmp_path / "other").folder.path):
        with pytest.raises(tacita.ResumeError, match="never resumed"):
            start(path, resumable=False)
    run.finish()
    assert not (tmp_path / "run").exists()


def test_a_run_is_held_to_what_it_was_started_with(tmp_path):
    inputs = start(tmp_path / "run").bind(iter([b"schema", b"rows"]))
    again = start(tmp_path / "run")
    assert again.bind(iter([b"schema", b"rows"])) == inputs
    for others in ([b"schema", b"row"], [b"schemarows"], []):
        with pytest.raises(tacita.ResumeError, match="settings or data are not those that the run in folder 'run'"):
            again.bind(iter(others))
    with pytest.raises(tacita.ResumeError, match=r"^the schema are not those"):
        again.bind([], "the schema")
    assert again.folder.binding.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damaged", [b"", b"1", b"[]", b"{}", b"\xff", b"[" * 10**5])
def test_a_damaged_binding_is_refused(tmp_path, damaged):
    run = start(tmp_path / "run")
    run.bind([b"rows"])
    run.folder.binding.write_bytes(damaged)
    with pytest.raises(tacita.ResumeError, match=r"input.json cannot be read"):
        run.bind([b"rows"])


def test_the_tag_shows_no_open_hash_of_the_inputs(tmp_path):
    stored = []
    for seed in range(2):
        run = start(tmp_path / str(seed), seed)
        run.bind([b"rows"])
        stored.append(run.folder.binding.read_bytes())
    assert stored[0] != stored[1]


def test_a_ledger_that_was_lost_is_not_begun_anew(tmp_path):
    run = start(tmp_path / "run")
    run.folder.checkpoint.write_bytes(b"one")
    with pytest.raises(tacita.ResumeError, match=r"ledger.jsonl of the run .* is missing"), run.ledger(**RELATION):
        pass


def test_a_run_that_fails_lets_go_of_its_ledger(tmp_path):
    run = start(tmp_path / "run")
    with pytest.raises(KeyError), run.ledger(**RELATION):
        raise KeyError
    with run.ledger(**RELATION) as ledger:
        assert ledger.path == run.folder.ledger


def test_a_sealed_run_has_its_private_files_removed_and_no_more(tmp_path):
    run = start(tmp_path / "run")
    run.bind([b"rows"])
    (run.folder.private / "working").mkdir()
    (run.folder.private / "working" / "file").touch()
    (run.folder.private / "file").touch()
    (tmp_path / "run" / ".model.tmp").touch()
    sealed(run)
    published = {path.name for path in (tmp_path / "run").iterdir()} - {"private", ".model.tmp"}
    start(tmp_path / "run").finish()
    assert {path.name for path in (tmp_path / "run").iterdir()} == published > {MODEL}


def test_the_key_is_the_last_private_file_that_is_removed(tmp_path, monkeypatch):
    run, seen = start(tmp_path / "run"), []
    run.bind([b"rows"])
    (run.folder.private / "working").mkdir()
    remove = "tacita.runs.folder.remove_durably"
    monkeypatch.setattr(remove, lambda path: (seen.append({one.name for one in path.parent.iterdir()}), path.unlink()))
    run.finish()
    assert seen[-1] == {"key.json"}


def test_a_file_that_was_changed_after_the_seal_is_refused(tmp_path):
    sealed(start(tmp_path / "run"))
    (tmp_path / "run" / MODEL).write_bytes(b"another")
    with pytest.raises(tacita.ResumeError, match="was changed since"):
        start(tmp_path / "run").sealed_run()


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_the_folder_is_named_as_the_caller_names_it(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises((tacita.ResumeError, ValueError), match="output must be a"):
        start(tmp_path / name, argument="output")
    assert (tmp_path / "file").is_file()


def test_a_run_in_memory_leaves_nothing_to_remove():
    run = RunLifecycle.start(None)
    with run.ledger(**RELATION) as ledger:
        assert run.bind([b"a"]) == run.tag([b"a"])
        words = publish(ledger, lambda files: tacita.statement(ledger, 1e-6), weights={"weight": torch.zeros(2)})
    run.finish()
    assert words.to_json()["delta"] == 1e-6
    assert ledger.sealed is None
