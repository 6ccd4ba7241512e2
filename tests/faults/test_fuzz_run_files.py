"""Fuzzing of a run's own files: whatever they hold, an error that is documented, in one line, or a sound reading."""

import json
import os
import pickle
import shutil
from contextlib import suppress

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import to_builtins

import tacita
from tacita.accounting import FullBatchLaw, GaussianSumEvent
from tacita.ledger import Ledger, verify_file
from tacita.ledger.hash_chain import canonical, sha256
from tacita.ledger.journal import head_path
from tacita.ledger.records import Register, read_record
from tacita.random import Randomness
from tacita.runs import checkpoint
from tests.accounting.conftest import Events
from tests.faults import runs
from tests.faults.fuzzing import fuzz, one_line
from tests.faults.mutations import as_json, changes, edits, with_changes, with_edits
from tests.ledger.test_journal import ENTRIES

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


def check_ledger(path, outcomes):
    """To look at and to go on with: a LedgerError in one line that leaves the file as it was, or a sound ledger."""
    before, chain = path.read_bytes(), verify_file(path)
    assert chain.reason.splitlines() == ([] if chain.ok else [chain.reason])
    seen = outcomes.of(lambda: Ledger.load(path), tacita.LedgerError)
    if seen is not None:
        check_sound(seen)
    taken = outcomes.of(lambda: Ledger.load(path, read_only=False), tacita.LedgerError)
    if taken is None:
        assert path.read_bytes() == before
    else:
        assert chain.ok
        assert seen is not None
        assert [one.registration for one in taken.sessions] == [one.registration for one in seen.sessions]
        check_sound(taken)
        check_goes_on(taken, path, before)


def check_sound(ledger):
    """What is read is what would be written, and no more was made than was spent, nor spent than was planned."""
    ledger.verify()
    for one in ledger.sessions:
        record = Register.of(ledger.id, ledger._registry.terms, one.registration)
        written = read_record({**json.loads(canonical(to_builtins(record))), "v": 1, "seq": 0, "prev": ""})
        assert (written.terms, written.registration) == (record.terms, one.registration)
        assert 0 <= one.queries_made <= one.queries_spent <= one.planned_queries


def check_goes_on(ledger, path, before):
    """What was read stays, a torn last line aside; one more session is one more line, and all of it holds."""
    lines = before.split(b"\n")[: ledger.anchor.count]
    relation = ledger.neighboring_relation
    event = GaussianSumEvent(sampling=FullBatchLaw(), relation=relation, max_contribution=(1.0,), noise_std=(1e6,))
    with suppress(tacita.TacitaError):  # the cap, or the filter, may have no room for it
        ledger.register(event, planned_queries=1, purpose="later")
    ledger.close()
    assert path.read_bytes().split(b"\n")[: len(lines)] == lines
    assert verify_file(path).ok
    again = Ledger.load(path)
    assert [one.registration for one in again.sessions] == [one.registration for one in ledger.sessions]


@fuzz(60)
@given(chosen=edits)
@example(chosen=[])  # the one that is surely read
@example(chosen=[("token", 11, 1, 4)])  # a name of 3000 characters
def test_ledger_bytes(tmp_path_factory, outcomes, chosen):
    folder = tmp_path_factory.mktemp("fuzz")
    lines, head = chained(ENTRIES)
    (folder / "l.jsonl").write_bytes(with_edits(b"\n".join(lines) + b"\n", chosen))
    head_path(folder / "l.jsonl").write_bytes(canonical({"count": len(lines), "head": head}))
    check_ledger(folder / "l.jsonl", outcomes)


@fuzz(300)
@given(chosen=changes, which=st.sampled_from([0] * 10 + list(range(len(LINES)))))
def test_ledger_values(tmp_path_factory, outcomes, chosen, which):
    """The chain holds again, so that only what the lines mean can be wrong."""
    folder = tmp_path_factory.mktemp("fuzz")
    lines, head = chained(with_changes(LINES[which], chosen))
    (folder / "l.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    head_path(folder / "l.jsonl").write_bytes(canonical({"count": len(lines), "head": head}))
    check_ledger(folder / "l.jsonl", outcomes)


@fuzz(40)
@given(chosen=edits)
@example(chosen=[("token", 0, 0, 8)])  # a line break before it all, which is surely read
def test_anchor_bytes(tmp_path_factory, outcomes, chosen):
    folder = tmp_path_factory.mktemp("fuzz")
    lines, head = chained(ENTRIES)
    (folder / "l.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    head_path(folder / "l.jsonl").write_bytes(with_edits(canonical({"count": len(lines), "head": head}), chosen))
    check_ledger(folder / "l.jsonl", outcomes)


# --- key -----------------------------------------------------------------------------------------------------------


def key_file():
    randomness = Randomness.insecure(0)
    randomness.session_key("train-1")
    randomness.mark_drawn("train-1")
    return randomness


def check_key(path, content, outcomes):
    """Refused in just these words; or written again it is the same keys, names and generation, and no other."""
    path.write_bytes(content)
    found = outcomes.of(lambda: Randomness.load(path), tacita.ResumeError)
    if found is None:
        with pytest.raises(tacita.ResumeError) as caught:
            Randomness.load(path)
        assert str(caught.value) == f"{str(path)!r} is no private key file of this version, or is damaged."
        return
    found.save(path)
    again = Randomness.load(path)
    read = json.loads(content)
    written = json.loads(path.read_bytes())
    assert written["lineage"].pop() not in read["lineage"]  # each process adds its name
    assert decoded(written) == decoded(read)
    assert again.key == found.key
    assert (again.generation, again.secure) == (found.generation, found.secure)
    for session in read["sessions"]:
        assert again.session_key(session) == found.session_key(session)


def decoded(state):
    """A key file's values, its secrets as bytes."""
    sessions = {name: bytes.fromhex(secret) for name, secret in state["sessions"].items()}
    return {**state, "key": bytes.fromhex(state["key"]), "sessions": sessions, "drawn": set(state["drawn"])}


@fuzz(60)
@given(chosen=edits)
@example(chosen=[("token", 0, 0, 8)])  # a line break before it all, which is surely read
def test_key_bytes(tmp_path_factory, outcomes, chosen):
    path = tmp_path_factory.mktemp("fuzz") / "key.json"
    key_file().save(path)
    check_key(path, with_edits(path.read_bytes(), chosen), outcomes)


@fuzz(200)
@given(chosen=changes)
def test_key_values(tmp_path_factory, outcomes, chosen):
    path = tmp_path_factory.mktemp("fuzz") / "key.json"
    key_file().save(path)
    check_key(path, as_json(with_changes(json.loads(path.read_bytes()), chosen)), outcomes)


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


class Restored(Exception):
    """Raised where a run would ask for its next gradient."""


@pytest.fixture
def restored(monkeypatch):
    """Stops a run where its training would begin; the list holds what the last one had restored by then."""
    found, restore = [], checkpoint.TrainingState.from_tree

    def remember(state, tree):
        restore(state, tree)
        found[:] = [state]

    def stop(oracle):
        raise Restored

    monkeypatch.setattr(checkpoint.TrainingState, "from_tree", remember)
    monkeypatch.setattr(tacita.GradientOracle, "backward", stop)
    return found


@fuzz(40)
@given(chosen=st.just([]) | edits)  # of what was changed hardly a byte says nothing
def test_checkpoint_bytes(tmp_path_factory, outcomes, stopped, whole, chosen):
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(stopped, folder)
    path = folder / "private" / "checkpoint.safetensors"
    path.write_bytes(with_edits(path.read_bytes(), chosen))
    if outcomes.of(lambda: runs.train(folder), tacita.ResumeError) is not None:
        runs.check_finished(folder, whole)


@fuzz(60)
@given(chosen=changes, head=st.booleans())
def test_checkpoint_values(tmp_path_factory, outcomes, stopped, restored, **drawn):
    """Saved anew, so that its own hash, which is against damage, fits."""
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(stopped, folder)
    path = folder / "private" / "checkpoint.safetensors"
    save_changed(path, **drawn)

    def restore():
        try:
            runs.train(folder)
        except Restored:
            return restored.pop()
        state = restored.pop()
        assert state.stopped, "a run that was not ended asks for another step"
        return state

    state = outcomes.of(restore, tacita.ResumeError)
    if state is not None and not state.stopped:
        check_restored(state, checkpoint.load(path)[0])


def save_changed(path, chosen, head):
    tree, top = checkpoint.load(path)
    if head:
        top = with_changes(top, chosen)
    else:
        tree = _tensors(with_changes(_plain(tree), chosen))
    try:
        checkpoint.save(path, tree, top)
    except (TypeError, ValueError, AttributeError):  # it holds what no checkpoint can
        path.write_bytes(b"")


def check_restored(state, tree):
    """The run stands where the file says, with the file's numbers; no query stands before one that was released."""
    oracle = state.oracle
    assert same(tree["model"], state.to_tree()["model"])
    assert 0 <= tree["oracle"]["position"] <= oracle.gate.position <= runs.QUERIES
    assert tree["oracle"]["generation"] <= oracle.randomness.generation
    assert tree["oracle"]["identity"] == oracle.gate.identity


def same(tree, other):
    return json.dumps(_plain(tree), sort_keys=True) == json.dumps(_plain(other), sort_keys=True)


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
        "import joblib",
        "joblib.load",
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
