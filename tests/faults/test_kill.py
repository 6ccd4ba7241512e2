"""Killed before every call that changes a file, and in the middle of every write: the run goes on, to the same bits."""

import json
import os
import stat

import pytest

import tacita
from tests.faults import runs
from tests.faults.calls import Counting, Killing, watched


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """A kill loses nothing that was written, so that nothing here depends on a flush."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


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
    folder.parent.mkdir(exist_ok=True)

    def job(tell):
        with watched(folder.parent, Killing(number, half=half)), runs.telling(tell):
            runs.train(folder)

    return runs.killed(job)


def check_private(folder):
    """Key and checkpoint are their owner's alone at every instant, and so is what they are written to first."""
    for path in folder.glob("private"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        for inside in path.iterdir():
            assert stat.S_IMODE(inside.stat().st_mode) == 0o600


def finished(folder):
    return (folder / "statement.json").exists() and not (folder / "private").exists()


@pytest.mark.parametrize("half", [False, True], ids=["before a call", "in the middle of a write"])
def test_killed_at_every_call(whole, calls, tmp_path, half):
    for number in [number for number, name in enumerate(calls) if not half or name == "write"]:
        folder = tmp_path / str(number) / "run"
        died, released = killed_at(folder, number, half=half)
        assert died, number
        runs.check_covers(folder, released)
        check_private(folder)
        if not finished(folder):
            runs.train(folder)
        runs.check_finished(folder, whole)
    died, released = killed_at(tmp_path / "last" / "run", len(calls))
    assert (died, released) == (False, runs.QUERIES)


def test_killed_twice(whole, calls, tmp_path):
    for number in range(40, len(calls), 13):
        folder = tmp_path / str(number) / "run"
        killed_at(folder, number)
        _, released = killed_at(folder, number % 37)
        runs.check_covers(folder, released)
        if not finished(folder):
            runs.train(folder)
        runs.check_finished(folder, whole)


@pytest.mark.skipif(not os.environ.get("TACITA_AUDIT"), reason="long: make audit")
def test_killed_twice_anywhere(whole, calls, tmp_path):
    for first in range(1, len(calls), 3):
        for second in range(0, 40, 3):
            folder = tmp_path / f"{first}-{second}" / "run"
            killed_at(folder, first)
            if not finished(folder):
                _, released = killed_at(folder, second)
                runs.check_covers(folder, released)
            if not finished(folder):
                runs.train(folder)
            runs.check_finished(folder, whole)


def test_a_run_killed_while_it_removes_its_key_is_finished_by_the_next_one(whole, calls, tmp_path):
    """All is written; the checkpoint is gone, and the key is not."""
    folder = tmp_path / "run"
    last = len(calls) - 1 - calls[::-1].index("replace")  # of the statement
    killed_at(folder, next(n for n in range(last, len(calls)) if calls[n] == "unlink") + 2)
    assert {path.name for path in (folder / "private").iterdir()} == {"key.json"}
    run = runs.train(folder)
    runs.check_finished(folder, whole)
    assert run.statement.to_json() == json.loads((folder / "statement.json").read_bytes())
    with pytest.raises(tacita.ResumeError, match="not empty"):
        runs.train(folder)
