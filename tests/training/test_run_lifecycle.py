"""The life of a run: what each start finds, what it is held to, and what is left of it."""

from typing import Any

import pytest
import torch

import tacita
from tacita.accounting import FullBatchLaw, GaussianSumEvent
from tacita.training.folder import RunFolder
from tacita.training.run_lifecycle import RunLifecycle
from tacita.training.sealed_run import MODEL

RELATION: Any = dict(neighboring_relation="add_or_remove_one", privacy_unit="one row")

EVENT = GaussianSumEvent(
    sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,)
)


def start(path, **settings):
    return RunLifecycle.start(RunFolder(path), **settings)


def sealed(run):
    """Make the weights and the statement, and end the ledger with their hashes."""
    with run.ledger(**RELATION) as ledger:
        ledger.register(EVENT, planned_queries=1)
        ledger.sessions[0].open()
        ledger.sessions[0].close()
        run.seal(ledger, lambda files: tacita.statement(ledger, 1e-6, files=files), weights={"weight": torch.zeros(2)})


def test_a_run_is_new_then_unfinished_then_sealed_then_gone(tmp_path):
    first = start(tmp_path / "run")
    assert (first.found, first.sealed) == ("nothing", False)
    again = start(tmp_path / "run", randomness=tacita.Randomness.insecure(0))
    assert again.found == "unfinished"
    same = first.randomness.session_key("one").tag("same", parts=[])
    assert again.randomness.session_key("one").tag("same", parts=[]) == same  # its own key, not the one handed in
    sealed(again)
    last = start(tmp_path / "run")
    assert last.sealed
    assert last.sealed_run().stated["delta"] == 1e-6
    last.finish()
    assert not (tmp_path / "run" / "private").exists()
    with pytest.raises(tacita.ResumeError, match="not empty"):
        start(tmp_path / "run")


def test_a_run_is_held_to_what_it_was_started_with(tmp_path):
    assert start(tmp_path / "run").bind("a") == "a"
    again = start(tmp_path / "run")
    assert again.bind("a") == "a"
    with pytest.raises(tacita.ResumeError, match="started with other settings or other data"):
        again.bind("b")
    with pytest.raises(tacita.ResumeError, match=r"^the schema is another one$"):
        again.bind("b", refusal="the schema is another one")
    assert again.folder.binding.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damaged", [b"", b"1", b"{}", b"\xff", b"[" * 10**5])
def test_a_damaged_binding_is_refused(tmp_path, damaged):
    run = start(tmp_path / "run")
    run.bind("a")
    run.folder.binding.write_bytes(damaged)
    with pytest.raises(tacita.ResumeError, match=r"input.json cannot be read"):
        run.bind("a")


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


def test_a_file_that_was_changed_after_the_seal_is_refused(tmp_path):
    sealed(start(tmp_path / "run"))
    (tmp_path / "run" / MODEL).write_bytes(b"another")
    with pytest.raises(tacita.ResumeError, match="was changed since"):
        start(tmp_path / "run").sealed_run()


def test_a_run_in_memory_leaves_nothing_to_remove():
    run = RunLifecycle.start(None)
    with run.ledger(**RELATION) as ledger:
        assert run.bind("a") == "a"
        words = run.seal(ledger, lambda files: tacita.statement(ledger, 1e-6), weights={"weight": torch.zeros(2)})
    run.finish()
    assert words.to_json()["delta"] == 1e-6
    assert ledger.sealed is None
