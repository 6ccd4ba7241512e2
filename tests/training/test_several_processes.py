"""Real processes with gloo train as one process does; a rank that is killed leaves a run that resumes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tacita

AUDIT = bool(os.environ.get("TACITA_AUDIT"))
audit = pytest.mark.skipif(not AUDIT, reason="make audit: several processes on few cores are slow")
QUERIES = 8


class RankServer:
    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.rank_server"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder, size, killed=-1, last=-1):
        """Train on ``size`` ranks; return their exit statuses."""
        self._process.stdin.write(f"{folder} {size} {killed} {last}\n")
        self._process.stdin.flush()
        return [int(status) for status in self._process.stdout.readline().split()]

    def close(self):
        self._process.stdin.close()
        self._process.wait()


@pytest.fixture(scope="module")
def server():
    server = RankServer()
    yield server
    server.close()


def weights(folder, size):
    return [torch.load(folder.parent / f"{folder.name}.rank-{rank}.pt") for rank in range(size)]


def lines(folder):
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("hardened", 2),
        *(pytest.param(*case, marks=audit) for case in [("hardened", 4), ("plain", 2), ("chunks", 2), ("chunks", 3)]),
    ],
)
def test_processes_train_as_one(server, tmp_path, name, size):
    alone, together = tmp_path / f"{name}-alone", tmp_path / f"{name}-together"
    assert server.run(alone, 1) == [0]
    assert server.run(together, size) == [0] * size
    (expected,) = weights(alone, 1)
    for found in weights(together, size):
        if name == "hardened":
            assert torch.equal(found, expected)  # sums on a grid are exact, and so the noise has the same bits
        else:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    kinds = [[line["kind"] for line in lines(folder)] for folder in (alone, together)]
    assert kinds[0] == kinds[1]  # one session, paid once


@audit
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("last", [1, 5, QUERIES])
def test_a_killed_rank_leaves_a_run_that_resumes(server, tmp_path, size, killed, last):
    folder, alone = tmp_path / "hardened", tmp_path / "hardened-alone"
    statuses = server.run(folder, size, killed, last)
    assert statuses[killed] == -signal.SIGKILL
    assert all(status == 3 for rank, status in enumerate(statuses) if rank != killed)  # they say that one is gone
    (session,) = tacita.Ledger.load(folder / "ledger.jsonl").sessions
    assert session.queries_spent >= last - 1  # every release that a rank may have had in hand
    assert server.run(folder, size - 1) == [0] * (size - 1)
    assert server.run(alone, 1) == [0]
    (expected,) = weights(alone, 1)
    assert all(torch.equal(found, expected) for found in weights(folder, size - 1))
