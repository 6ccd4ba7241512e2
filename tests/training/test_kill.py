"""Killed at any instant, a run resumes and ends with the uninterrupted run's bits; no ledger under-reports."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tacita
from tests.devices import CPU, SIMULATED

POINTS = 200 if os.environ.get("TACITA_AUDIT") else 10  # on each device
LAST_STEP = 320  # a little past the last system call of the run (twice their number)


class ForkServer:
    def __init__(self, device):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.fork_server", device],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder, step=-1):
        """Train in ``folder``, killed at ``step``; returns (releases in hand, finished)."""
        self._process.stdin.write(f"{folder} {step}\n")
        self._process.stdin.flush()
        released, finished = self._process.stdout.readline().split()
        return int(released), finished == "1"

    def close(self):
        self._process.stdin.close()
        self._process.wait()


@pytest.fixture(scope="module", params=[CPU, SIMULATED])
def server(request):
    server = ForkServer(request.param)
    yield server
    server.close()


@pytest.fixture(scope="module")
def uninterrupted(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    released, finished = server.run(folder)
    assert finished
    assert released == 24
    return folder


def parameters(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def steps():
    chooser = random.Random(0)
    width = LAST_STEP // POINTS
    return [width * point + chooser.randrange(max(1, width)) for point in range(POINTS)]


@pytest.mark.parametrize("step", steps())
def test_killed_at_any_instant(server, uninterrupted, tmp_path, step):
    folder = tmp_path / "run"
    released, finished = server.run(folder, step)
    if not finished:
        spent_covers(folder, released)
        again = random.Random(step).randrange(LAST_STEP)
        released, finished = server.run(folder, again)  # killed once more while it resumes
    if not finished:
        spent_covers(folder, released)
        _, finished = server.run(folder)
    assert finished or not (folder / "private" / "key.json").exists()  # killed with nothing left but an empty folder
    expected, found = parameters(uninterrupted), parameters(folder)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert not list(folder.glob("private/*"))
    assert not list(folder.glob("**/*.tmp"))
    ledger = tacita.Ledger.load(folder / "ledger.jsonl")
    assert ledger.verify().ok
    assert ledger.epsilon(1e-3) <= 3.0
    assert ledger.sessions[0].queries_made == 24


def spent_covers(folder, released):
    """What the ledger says is at least what was released, at most one reservation more."""
    path = folder / "ledger.jsonl"
    if not path.exists() or b"\n" not in path.read_bytes():  # nothing was registered yet
        assert released == 0
        return
    ledger = tacita.Ledger.load(path)
    session = ledger.sessions[0]
    assert session.queries_made >= released or session.is_reserved(released - 1)
    if released:
        assert ledger.epsilon_spent(1e-3) > 0


def test_a_finished_folder_is_refused(server, uninterrupted):
    with pytest.raises(tacita.ResumeError, match="not empty"):
        tacita.fit(
            torch.nn.Linear(3, 1),
            lambda model, batch: model(batch[0]).sum(1),
            (torch.zeros(40, 3),),
            target_epsilon=3.0,
            target_delta=1e-3,
            epochs=6,
            num_records=40,
            folder=uninterrupted,
            progress=False,
        )
