"""Killed at any instant, between runs or inside one, a sweep goes on and ends with the uninterrupted one's bits."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import tacita
from tacita.random import Randomness
from tacita.tables import NumberOfRuns, check_run
from tests.conftest import CLASSIFICATION, table_text

POINTS = 60 if os.environ.get("TACITA_AUDIT") else 6
RUNS = 4


def seed():
    """A test seed under which 4 runs are made."""
    law = NumberOfRuns(mean_runs=3, shape=1)
    keys = ((one, Randomness.insecure(one).session_key("select-1")) for one in range(1000))
    return next(one for one, key in keys if law.draw(key.stream("number of runs")) == RUNS)


class Sweeps:
    def __init__(self, folder):
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("sweeps.py")), str(seed())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
        )

    def run(self, folder, step=-1):
        """Sweep in ``folder``, killed at ``step``; returns (finished, instants)."""
        self._process.stdin.write(f"{folder} {step}\n")
        self._process.stdin.flush()
        finished, calls = self._process.stdout.readline().split()
        return finished == "1", int(calls)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / "table.csv").write_text(table_text(400))
    (folder / "schema.toml").write_text('privacy_unit = "one row"\n' + CLASSIFICATION)
    server = Sweeps(folder)
    server.folder = folder
    yield server
    server.close()


@pytest.fixture(scope="module")
def whole(sweeps):
    folder = sweeps.folder / "whole"
    finished, instants = sweeps.run(folder)
    assert finished
    assert instants > 40
    return folder, instants


def released(folder):
    """What must be the same in another folder: the seal is not, since config.toml names the folder."""
    lines = (folder / "ledger.jsonl").read_bytes().splitlines()
    return [*((folder / name).read_bytes() for name in ("model.safetensors", "preprocessing.json")), *lines[:-1]]


@pytest.mark.parametrize("point", range(POINTS))
def test_killed_at_any_instant(sweeps, whole, point):
    reference, instants = whole
    chooser = random.Random(point)
    width = 2 * instants // POINTS
    folder = sweeps.folder / f"killed{point}"
    step = width * point + chooser.randrange(width)
    finished, _ = sweeps.run(folder, step)
    assert not finished
    if (folder / "private").exists():
        assert (folder / "private").stat().st_mode & 0o777 == 0o700
    sweeps.run(folder, chooser.randrange(2 * instants))  # killed once more while it goes on, or finished
    if not (folder / "statement.json").exists() or (folder / "private").exists():
        assert sweeps.run(folder)[0]
    assert released(folder) == released(reference)
    assert not (folder / "private").exists()
    assert not list(folder.glob("**/*.tmp"))
    assert check_run(folder).faults == ()
    assert tacita.Ledger.load(folder / "ledger.jsonl").verify().sealed
    ledger = tacita.Ledger.load(folder / "ledger.jsonl")
    assert [session.id for session in ledger.sessions] == ["select-1"]
    assert ledger.epsilon(1e-3) <= 8.0


def test_every_run_is_listed_once(sweeps, whole):
    """However often it was killed and gone on with."""
    listed = (sweeps.folder / "tacita-runs.jsonl").read_text().splitlines()
    assert len(listed) == len(set(listed))


def test_the_kill_reaches_into_the_runs(whole):
    """Queries inside the runs are among the instants: four runs of four queries."""
    _, instants = whole
    assert instants > RUNS * 4
