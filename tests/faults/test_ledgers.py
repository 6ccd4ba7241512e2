"""A ledger edited, shortened, swapped, taken away, or wanted by two processes: a clear error, and nothing is lost."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tacita
from tacita.ledger.hash_chain import canonical, sha256
from tacita.tables import TableSettings, check_run, train_table
from tests.faults import runs
from tests.faults.calls import Stopped, watched


@pytest.fixture
def stopped(tmp_path):
    """A run that stands still after its second query, and what its ledger says was spent."""
    return stop(tmp_path / "run", after=2)


def stop(folder, after, **changes):
    folder.parent.mkdir(exist_ok=True)

    def halt(made):
        if made == after:
            raise Stopped

    with pytest.raises(Stopped), runs.telling(halt):
        runs.train(folder, **changes)
    return folder


def lines_of(folder):
    return (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)


def anchored(folder, lines):
    """Write ``lines`` with an anchor that fits them."""
    (folder / "ledger.jsonl").write_bytes(b"".join(lines))
    head = sha256(lines[-1].rstrip(b"\n")) if lines else "0" * 64
    (folder / "ledger.head.json").write_bytes(canonical({"count": len(lines), "head": head}))


def chained(entries):
    """Lines of these entries whose chain holds."""
    lines, previous = [], "0" * 64
    for seq, entry in enumerate(entries):
        lines.append(canonical({**entry, "seq": seq, "prev": previous}) + b"\n")
        previous = sha256(lines[-1].rstrip(b"\n"))
    return lines


def without_queries(folder):
    """The ledger as it was before any query, whole in itself: its hashes and its anchor fit."""
    anchored(folder, [line for line in lines_of(folder) if b'"kind":"query"' not in line])


def other_fingerprints(folder):
    entries = [json.loads(line) for line in lines_of(folder)]
    for entry in entries:
        if entry["kind"] == "query":
            entry["fingerprint"] = "0" * 32
    anchored(folder, chained(entries))


def with_more_queries(folder):
    *entries, last = (json.loads(line) for line in lines_of(folder))
    assert last["kind"] == "give_back"  # the forger takes it away: number 2 is reserved again
    anchored(folder, chained([*entries, {**entries[-1], "number": 2}]))


def more_noise(folder):
    """The event of the session says that there was ten times the noise."""
    entries = [json.loads(line) for line in lines_of(folder)]
    event = entries[0]["event"]
    text = json.dumps(event)
    noise = json.loads(text[text.index('"noise_std": ') + len('"noise_std": ') :].split("]")[0] + "]")
    entries[0]["event"] = json.loads(text.replace(json.dumps(noise), json.dumps([10 * n for n in noise])))
    assert entries[0]["event"] != event
    anchored(folder, chained(entries))


def swapped(folder):
    """Ledger and anchor of another run of the same settings."""
    other = stop(folder.parent / "other", after=1, randomness=tacita.Randomness.insecure(1))
    for name in ("ledger.jsonl", "ledger.head.json"):
        shutil.copy(other / name, folder / name)


def edit(name, change):
    def apply(folder):
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return apply


def gone(*names):
    def apply(folder):
        for name in names:
            (folder / name).unlink()

    return apply


TAMPERED = {
    "an edited line": edit("ledger.jsonl", lambda data: data.replace(b'"number":0', b'"number":1', 1)),
    "more noise than there was": more_noise,
    "the last line removed": edit("ledger.jsonl", lambda data: b"".join(data.splitlines(keepends=True)[:-2])),
    "all but the first removed": edit("ledger.jsonl", lambda data: data.splitlines(keepends=True)[0]),
    "emptied": edit("ledger.jsonl", lambda data: b""),
    "no ledger": gone("ledger.jsonl"),
    "no ledger and no anchor": gone("ledger.jsonl", "ledger.head.json"),
    "no anchor": gone("ledger.head.json"),
    "an edited anchor": edit(
        "ledger.head.json", lambda data: data.replace(b'"head":"', b'"head":"0', 1)[:-3] + b'"}\n'
    ),
    "an anchor of another number": edit("ledger.head.json", lambda data: data.replace(b'"count":', b'"count":9')),
    "an emptied anchor": edit("ledger.head.json", lambda data: b""),
    "an older ledger, whole in itself": without_queries,
    "another run's ledger": swapped,
    "other fingerprints, whole in itself": other_fingerprints,
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_run_does_not_go_on_with_a_ledger_that_was_tampered_with(stopped, whole, how):
    kept = {path.name: path.read_bytes() for path in stopped.iterdir() if path.is_file()}
    private = {path.name: path.read_bytes() for path in (stopped / "private").iterdir()}
    TAMPERED[how](stopped)
    with pytest.raises((tacita.LedgerError, tacita.ResumeError)) as caught:
        runs.train(stopped)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in (stopped / "private").iterdir()} == private
    assert not (stopped / "model.safetensors").exists()
    for name, content in kept.items():  # nothing is lost: with the true ledger the run goes on
        (stopped / name).write_bytes(content)
    runs.train(stopped)
    runs.check_finished(stopped, whole)


def test_lines_added_by_a_forger_only_cost(stopped, whole):
    """They follow from the checkpoint's, as far as anybody can tell; the plan's epsilon is what it was."""
    with_more_queries(stopped)
    run = runs.train(stopped)
    assert run.ledger.epsilon(1e-3) == tacita.Ledger.load(whole / "ledger.jsonl").epsilon(1e-3)
    assert run.ledger.sessions[0].queries_made == runs.QUERIES


@pytest.mark.parametrize("name", ["key.json", "checkpoint.safetensors"])
@pytest.mark.parametrize("how", ["of another run", "damaged", "empty"])
def test_a_key_or_checkpoint_of_another_run_is_refused(stopped, whole, name, how):
    path = stopped / "private" / name
    kept = path.read_bytes()
    if how == "of another run":
        other = stop(stopped.parent / "other", after=2, randomness=tacita.Randomness.insecure(1))
        path.write_bytes((other / "private" / name).read_bytes())
    else:
        path.write_bytes(kept[: len(kept) // 2] if how == "damaged" else b"")
    foreign = how == "of another run" and name == "key.json"  # it belongs to that run's ledger
    with pytest.raises(tacita.LedgerError if foreign else tacita.ResumeError) as caught:
        runs.train(stopped)
    assert "\n" not in str(caught.value)
    path.write_bytes(kept)
    runs.train(stopped)
    runs.check_finished(stopped, whole)


def test_a_missing_checkpoint_or_key_is_refused(stopped, whole):
    for name, says in (("checkpoint.safetensors", "its checkpoint is missing"), ("key.json", "lost its private key")):
        path = stopped / "private" / name
        kept = path.read_bytes()
        path.unlink()
        with pytest.raises(tacita.ResumeError, match=says):
            runs.train(stopped)
        path.write_bytes(kept)
    runs.train(stopped)
    runs.check_finished(stopped, whole)


def test_an_older_checkpoint_costs_and_draws_nothing_twice(tmp_path, whole):
    """Copied back after the key moved on: what was drawn then cannot be drawn again, and new numbers are taken."""
    folder, kept = tmp_path / "run", []

    def keep(made):
        if made == 2:
            kept.append((folder / "private" / "checkpoint.safetensors").read_bytes())
        if made == 3:
            raise Stopped

    with pytest.raises(Stopped), runs.telling(keep):
        runs.train(folder, epochs=1.25)
    (folder / "private" / "checkpoint.safetensors").write_bytes(kept[0])
    numbers = []
    with runs.telling(lambda made: numbers.append(made - 1)):
        run = runs.train(folder, epochs=1.25)
    assert numbers == [3, 4]  # 0 to 2 have lines
    assert run.ledger.sessions[0].queries_made == 5


# --- two processes -------------------------------------------------------------------------------------------------

SECOND = """
import sys
import tacita
from tests.faults import runs
try:
    runs.train(sys.argv[1])
except tacita.TacitaError as error:
    print(type(error).__name__, error)
"""


def second(folder):
    """What another process says that trains in ``folder``."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run(
        [sys.executable, "-c", SECOND.replace("sys.argv[1]", f"__import__('pathlib').Path({str(folder)!r})")],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return done.stdout + done.stderr


def test_a_second_process_is_told_and_disturbs_nothing(tmp_path, whole):
    folder, said = tmp_path / "run", []

    def ask(made):
        if made == 2:
            before = contents(folder)
            said.append(second(folder))
            assert contents(folder) == before

    with runs.telling(ask):
        runs.train(folder)
    assert said[0].startswith("LedgerError ledger.jsonl is open in another writer")
    assert said[0].count("\n") == 1
    runs.check_finished(folder, whole)


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_that_start_at_once_make_one_key(tmp_path):
    """While the first makes its key, a second one waits; then it finds that key, not an empty folder."""
    folder, tried = tmp_path / "run", []

    def try_to_start(call):
        if call.path.name == ".key.json.tmp" and call.name == "open":
            tried.append(not starts(folder))
        return call.do()

    with watched(tmp_path, try_to_start):
        runs.train(folder)
    assert tried[0]
    assert starts(folder)


def starts(folder):
    """Whether another open file gets the lock under which runs are started."""
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


# --- other settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        dict(target_epsilon=2.0),
        dict(target_delta=1e-4),
        dict(max_grad_norm=2.0),
        dict(epochs=1.0),
        dict(expected_batch_size=11),
        dict(num_records=41),
        dict(neighboring_relation="zero_out_one"),
        dict(privacy_unit="one person"),
        dict(method="loop"),
        dict(clipper=tacita.FlatClipper(max_grad_norm=3.0), max_grad_norm=None),
        dict(data=(runs.DATA[0], runs.DATA[0])),
        dict(data=tuple(x[:39] for x in runs.DATA)),
        dict(data=tuple(x.flip(0) for x in runs.DATA)),
    ],
    ids=",".join,
)
def test_other_privacy_settings_or_data_are_an_error(stopped, whole, changes):
    with pytest.raises((tacita.TacitaError, ValueError)) as caught:
        runs.train(stopped, **changes)
    assert "\n" not in str(caught.value)
    runs.train(stopped)
    runs.check_finished(stopped, whole)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda params: torch.optim.Adam(params, lr=0.01),
        lambda params: torch.optim.Adam(params, lr=0.1, weight_decay=0.1),
        lambda params: torch.optim.Adam(params, lr=torch.tensor(0.1000001)),
        lambda params: torch.optim.SGD(params, lr=0.1),
    ],
    ids=["step size", "weight decay", "step size in a tensor", "another kind"],
)
def test_another_optimizer_gets_fresh_noise_and_a_new_charge(tmp_path, optimizer):
    folder, numbers, drawn = stop(tmp_path / "run", after=2, epochs=1.25), [], []
    lines = lines_of(folder)
    noise = tacita.oracles.gate.ReleaseGate._normals

    def watching(self, query):
        drawn.append((self._randomness.generation, query))
        return noise(self, query)

    with runs.telling(lambda made: numbers.append(made - 1)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(tacita.oracles.gate.ReleaseGate, "_normals", watching)
        run = runs.train(folder, epochs=1.25, optimizer=optimizer)
    assert numbers == [2, 3, 4]  # number 1 had a line, and was made after the checkpoint: it is left behind, not redone
    assert [query for _, query in drawn] == numbers
    assert lines_of(folder)[: len(lines)] == lines  # and stays paid for
    assert run.ledger.sessions[0].queries_made == 5
    assert run.ledger.epsilon(1e-3) <= 3.0
    (said,) = [words for words in run.statement.to_json()["caveats"] if "optimizer was changed" in words]
    assert "after 2 queries" in said


def test_another_optimizer_really_steps(tmp_path):
    """A step size of zero: from the checkpoint on, nothing moves."""
    folder = stop(tmp_path / "run", after=2)
    tree, _ = tacita.runs.checkpoint.load(folder / "private" / "checkpoint.safetensors")
    run = runs.train(folder, optimizer=lambda params: torch.optim.SGD(params, lr=0.0))
    assert torch.equal(run.model.weight, tree["model"]["weight"])
    assert run.model.weight.abs().sum() > 0


def test_the_same_optimizer_again_says_nothing_and_redoes_for_free(stopped, whole):
    numbers = []
    with runs.telling(lambda made: numbers.append(made - 1)):
        run = runs.train(stopped)
    assert numbers == [1, 2]
    assert not [words for words in run.statement.to_json()["caveats"] if "optimizer was changed" in words]
    runs.check_finished(stopped, whole)


def test_killed_after_a_change_it_goes_on_with_the_new_one(tmp_path):
    """And ends as if it had not been killed again."""

    def slower(params):
        return torch.optim.Adam(params, lr=0.01)

    ends = []
    for kill in (False, True):
        folder = stop(tmp_path / f"run{kill}", after=2, epochs=1.25)
        if kill:
            stop(folder, after=4, epochs=1.25, optimizer=slower)
        run = runs.train(folder, epochs=1.25, optimizer=slower)
        ends.append(runs.weights(folder))
        assert len([words for words in run.statement.to_json()["caveats"] if "optimizer was changed" in words]) == 1
    assert ends[0] == ends[1]


def test_another_step_size_on_a_table(settings, table):
    """``tacita train --lr`` on resume: it goes on, and the config and the statement say so."""

    def halt(made):
        if made == 2:
            raise Stopped

    with pytest.raises(Stopped), runs.telling(halt):
        train_table(settings(lr=0.5))
    with pytest.raises(tacita.ResumeError, match="other settings"):
        train_table(settings(lr=0.5, queries=5))
    numbers = []
    with runs.telling(lambda made: numbers.append(made - 1)):
        run = train_table(settings(lr=0.25))
    assert numbers[-2:] == [2, 3]
    assert run.fields["queries_made"] == 4
    assert [words for words in run.fields["caveats"] if "optimizer was changed" in words]
    assert TableSettings.from_toml(Path("run/config.toml").read_text()).lr == 0.25
    assert check_run("run").faults == ()
