"""Fuzzing of a run's own files: whatever they hold, an error that is documented, in one line, or a sound reading."""

import json
import os
import pickle
import shutil
from contextlib import suppress

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tacita
from tacita.accounting import Ledger, verify_file
from tacita.accounting.chain import canonical, sha256
from tacita.accounting.journal import head_path
from tacita.random import Randomness
from tacita.training import checkpoint
from tests.accounting.conftest import Events
from tests.accounting.test_journal import ENTRIES
from tests.faults import runs
from tests.faults.mutations import as_json, changes, edits, with_changes, with_edits

MORE = 20 if os.environ.get("TACITA_AUDIT") else 1


def fuzz(examples):
    return settings(
        max_examples=examples * MORE,
        deadline=None,
        database=None,
        derandomize=MORE == 1,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def one_line(error):
    assert "\n" not in str(error)
    assert len(str(error)) < 2000


# --- ledger and anchor ---------------------------------------------------------------------------------------------


def _entries_of_every_event():
    """The lines of a ledger with every kind of event, as values."""
    lines = []
    for event in Events.one_of_each():
        memory = Ledger(neighboring_relation=event.relation, privacy_unit="one row")
        memory.register(event, planned_queries=1)
        lines.append(json.loads(memory._journal.lines[0]))
    return lines


LINES = [list(ENTRIES), *([line] for line in _entries_of_every_event())]


def chained(entries):
    lines, previous = [], "0" * 64
    for seq, entry in enumerate(entries):
        whole = {**entry, "seq": seq, "prev": previous} if isinstance(entry, dict) else entry
        lines.append(canonical(whole))
        previous = sha256(lines[-1])
    return lines, previous


def check_ledger(path):
    """Every way to read it: a LedgerError in one line, or a ledger whose plan is a number, or infinite."""
    assert verify_file(path).reason.count("\n") == 0
    for load in (Ledger.load, lambda path: Ledger.load(path, read_only=False)):
        try:
            ledger = load(path)
        except tacita.LedgerError as error:
            one_line(error)
        else:
            ledger.verify()
            repr(ledger.sessions)
            ledger.close()


@fuzz(60)
@given(chosen=edits)
def test_ledger_bytes(tmp_path_factory, chosen):
    folder = tmp_path_factory.mktemp("fuzz")
    lines, head = chained(ENTRIES)
    (folder / "l.jsonl").write_bytes(with_edits(b"\n".join(lines) + b"\n", chosen))
    head_path(folder / "l.jsonl").write_bytes(canonical({"count": len(lines), "head": head}))
    check_ledger(folder / "l.jsonl")


@fuzz(300)
@given(chosen=changes, which=st.sampled_from([0] * 10 + list(range(len(LINES)))))
def test_ledger_values(tmp_path_factory, chosen, which):
    """The chain holds again, so that only what the lines mean can be wrong."""
    folder = tmp_path_factory.mktemp("fuzz")
    lines, head = chained(with_changes(LINES[which], chosen))
    (folder / "l.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    head_path(folder / "l.jsonl").write_bytes(canonical({"count": len(lines), "head": head}))
    check_ledger(folder / "l.jsonl")


@fuzz(40)
@given(chosen=edits)
def test_anchor_bytes(tmp_path_factory, chosen):
    folder = tmp_path_factory.mktemp("fuzz")
    lines, head = chained(ENTRIES)
    (folder / "l.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    head_path(folder / "l.jsonl").write_bytes(with_edits(canonical({"count": len(lines), "head": head}), chosen))
    check_ledger(folder / "l.jsonl")


# --- key -----------------------------------------------------------------------------------------------------------


def key_file():
    randomness = Randomness.insecure(0)
    randomness.session_key("train-1")
    randomness.mark_drawn("train-1")
    return randomness


def check_key(path, content):
    path.write_bytes(content)
    try:
        Randomness.load(path)
        said = ""
    except tacita.ResumeError as error:
        said = str(error)
    assert said in ("", f"{str(path)!r} is no private key file of this version, or is damaged.")


@fuzz(60)
@given(chosen=edits)
def test_key_bytes(tmp_path_factory, chosen):
    path = tmp_path_factory.mktemp("fuzz") / "key.json"
    key_file().save(path)
    check_key(path, with_edits(path.read_bytes(), chosen))


@fuzz(60)
@given(chosen=changes)
def test_key_values(tmp_path_factory, chosen):
    path = tmp_path_factory.mktemp("fuzz") / "key.json"
    key_file().save(path)
    check_key(path, as_json(with_changes(json.loads(path.read_bytes()), chosen)))


# --- checkpoint ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that stands still in the middle."""
    folder = tmp_path_factory.mktemp("stopped") / "run"

    class Halt(Exception):
        pass

    def halt(made):
        if made == 2:
            raise Halt

    with pytest.raises(Halt), runs.telling(halt):
        runs.train(folder)
    return folder


def goes_on_or_says_why(stopped, folder, write):
    shutil.copytree(stopped, folder)
    write(folder / "private" / "checkpoint.safetensors")
    try:
        runs.train(folder)
    except tacita.ResumeError as error:
        one_line(error)
        return False
    return True


class Restored(Exception):
    pass


@pytest.fixture
def no_further(monkeypatch):
    """Stop a run where its training would begin."""

    def stop(self):
        raise Restored

    monkeypatch.setattr(tacita.GradientOracle, "backward", stop)


@fuzz(40)
@given(chosen=edits)
def test_checkpoint_bytes(tmp_path_factory, stopped, whole, chosen):
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    went_on = goes_on_or_says_why(stopped, folder, lambda path: path.write_bytes(with_edits(path.read_bytes(), chosen)))
    if went_on:  # what was changed says nothing
        runs.check_finished(folder, whole)


@fuzz(150)
@given(chosen=changes, head=st.booleans())
def test_checkpoint_values(tmp_path_factory, stopped, no_further, chosen, head):
    """Saved anew, so that its own hash, which is against damage, fits."""

    def write(path):
        tree, top = checkpoint.load(path)
        if head:
            top = with_changes(top, chosen)
        else:
            tree = _tensors(with_changes(_plain(tree), chosen))
        try:
            checkpoint.save(path, tree, top)
        except (TypeError, ValueError, AttributeError):  # it holds what no checkpoint can
            path.write_bytes(b"")

    with suppress(Restored):
        goes_on_or_says_why(stopped, tmp_path_factory.mktemp("fuzz") / "run", write)


def _plain(tree):
    """Tensors as lists under a name, so that they can be changed like all the rest."""
    if isinstance(tree, torch.Tensor):
        return {"tensor": tree.tolist()}
    if isinstance(tree, dict):
        return {name: _plain(value) for name, value in tree.items()}
    return [_plain(value) for value in tree] if isinstance(tree, list) else tree


def _tensors(tree):
    if isinstance(tree, dict) and tree.keys() == {"tensor"}:
        try:
            return torch.tensor(tree["tensor"])
        except (ValueError, TypeError, RuntimeError):
            return torch.zeros(7)
    if isinstance(tree, dict):
        return {name: _tensors(value) for name, value in tree.items()}
    return [_tensors(value) for value in tree] if isinstance(tree, list) else tree


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize(
    "name", ["ledger.jsonl", "ledger.head.json", "private/key.json", "private/checkpoint.safetensors"]
)
@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_no_file_of_a_run_is_unpickled(stopped, tmp_path, name, form):
    shutil.copytree(stopped, tmp_path / "run")
    if form == "pickle":
        (tmp_path / "run" / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    else:
        torch.save({"model": Bomb(tmp_path / "ran")}, tmp_path / "run" / name)
    with pytest.raises(tacita.TacitaError) as caught:
        runs.train(tmp_path / "run")
    one_line(caught.value)
    assert not (tmp_path / "ran").exists()


def test_nothing_of_ours_unpickles():
    """No reader of the library names one that runs what it reads."""
    from pathlib import Path

    source = Path(tacita.__file__).parent
    words = (
        "import pickle",
        "torch.load(",
        "joblib",
        "dill",
        "marshal",
        "shelve",
        "allow_pickle=True",
        "yaml.load",
        "eval(",
    )
    found = [
        (path.relative_to(source).as_posix(), word)
        for path in source.rglob("*.py")
        for word in words
        for line in path.read_text().splitlines()
        if word in line and f".{word}" not in line and f"_{word}" not in line
    ]
    assert found == []
