"""Killed before every call that changes a file, and in the middle of every write: the run goes on, to the same bits."""

import json
import os
import stat

import pytest

import tacita
from tacita.tables import check_run, train_table
from tests.faults import runs
from tests.faults.calls import Counting, Killing, Stopped, Stopping, watched

AUDIT = bool(os.environ.get("TACITA_AUDIT"))


@pytest.fixture(scope="module")
def calls(whole, tmp_path_factory):
    """The names of the calls of a run that nothing happens to."""
    folder, counting = tmp_path_factory.mktemp("counted") / "run", Counting()
    with watched(folder.parent, counting):
        runs.train(folder)
    assert len(counting.names) > 100
    assert {"open", "write", "fsync", "replace", "unlink", "rmdir", "mkdir"} <= set(counting.names)
    return counting.names


def killed_at(folder, number, *, half=False):
    """Train until this call, in a process that SIGKILL ends there; whether it was, and the queries released by then."""
    folder.parent.mkdir(exist_ok=True)

    def job(tell):
        with watched(folder.parent, Killing(number, half=half)), runs.telling(tell):
            runs.train(folder)

    return runs.killed(job)


def stopped_at(folder, number):
    """As :func:`killed_at`, without a process of its own: nothing that follows this call reaches the disk."""
    folder.parent.mkdir(exist_ok=True)
    told = [0]
    with watched(folder.parent, Stopping(number)), runs.telling(lambda made: told.__setitem__(0, made)):
        try:
            runs.train(folder)
        except Stopped:
            return True, told[0]
    return False, told[0]


def check_private(folder):
    """Key and checkpoint are their owner's alone at every instant, and so is what they are written to first."""
    for path in folder.glob("private"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        for inside in path.iterdir():
            assert stat.S_IMODE(inside.stat().st_mode) == 0o600


def check_goes_on(folder, whole, released):
    runs.check_covers(folder, released)
    check_private(folder)
    if not runs.finished(folder):
        runs.train(folder)
    runs.check_finished(folder, whole)


def test_stopped_at_every_call(whole, calls, tmp_path):
    """Every ninth one here, all in make audit; test_power_loss.py goes on from what is on the disk between them."""
    for number in range(0, len(calls), 1 if AUDIT else 9):
        folder = tmp_path / str(number) / "run"
        stopped, released = stopped_at(folder, number)
        assert stopped, number
        check_goes_on(folder, whole, released)
    assert stopped_at(tmp_path / "last" / "run", len(calls)) == (False, runs.QUERIES)


@pytest.mark.parametrize("half", [False, True], ids=["before a call", "in the middle of a write"])
def test_killed(whole, calls, tmp_path, half):
    """The same with SIGKILL: at some calls, and in some writes."""
    numbers = [number for number, name in enumerate(calls) if not half or name == "write"]
    step = 1 if AUDIT else 5 if half else 19
    for number in numbers[::step]:
        folder = tmp_path / str(number) / "run"
        died, released = killed_at(folder, number, half=half)
        assert died, number
        check_goes_on(folder, whole, released)
    assert killed_at(tmp_path / "last" / "run", len(calls)) == (False, runs.QUERIES)


def test_stopped_twice(whole, calls, tmp_path):
    for first in range(1, len(calls), 3 if AUDIT else 31):
        for second in range(first % 5, 60, 3 if AUDIT else 29):
            folder = tmp_path / f"{first}-{second}" / "run"
            released = stopped_at(folder, first)[1]
            if not runs.finished(folder):
                released = max(released, stopped_at(folder, second)[1])
            check_goes_on(folder, whole, released)


def test_a_run_killed_while_it_removes_its_key_is_finished_by_the_next_one(whole, calls, tmp_path):
    """All is written; checkpoint and binding are gone, and the key is not."""
    folder = tmp_path / "run"
    last = len(calls) - 1 - calls[::-1].index("replace")  # of the statement
    removed = [n for n in range(last, len(calls)) if calls[n] == "unlink"]  # each file, and what was left beside it
    killed_at(folder, removed[:5][-1])
    assert {path.name for path in (folder / "private").iterdir()} == {"key.json"}
    run = runs.train(folder)
    runs.check_finished(folder, whole)
    assert run.statement.to_json() == json.loads((folder / "statement.json").read_bytes())
    with pytest.raises(tacita.ResumeError, match="not empty"):
        runs.train(folder)


def test_stopped_around_the_seal_of_a_table(settings, table, tmp_path):
    """Between any two calls from the first word of the statement to the last private file, and before the seal."""

    def job(folder):
        return train_table(settings(output=str(folder), queries=2), randomness=tacita.Randomness.insecure(0))

    seen = []
    with watched(tmp_path / "whole", lambda call: (seen.append(call.path.name), call.do())[1]):
        job(tmp_path / "whole")
    first = seen.index(".statement.txt.tmp")
    assert len(seen) - first > 20
    for number in range(first, len(seen), 1 if AUDIT else 5):
        folder = tmp_path / f"run{number}"
        with watched(folder, Stopping(number)), pytest.raises(Stopped):
            job(folder)
        if (folder / "private").exists():
            job(folder)
        assert check_run(folder).faults == ()
        assert tacita.Ledger.load(folder / "ledger.jsonl").verify().sealed
        assert (folder / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
        assert {path.name for path in folder.iterdir()} == {path.name for path in (tmp_path / "whole").iterdir()}
