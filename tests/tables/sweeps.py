"""Forks sweeps that kill themselves with SIGKILL at a chosen instant. Run by test_sweep_kill.py, not imported.

Reads lines ``folder step`` and answers each with whether the sweep finished. ``step`` is the number of the instant at
which it dies: a system call that changes a file, or a query inside one of the runs; before it if even, after it if odd;
negative: it runs to the end, and the answer has the number of instants.
"""

import os
import secrets
import signal
import sys
from pathlib import Path

import torch

import tacita
from tacita.tables import TableSettings, sweep_table

GRID = "mean_runs = 3\n[grid]\nlr = [0.1, 1.0]\nmax_grad_norm = [0.5, 2.0]\n"


def sweep(folder):
    settings = TableSettings(
        data="table.csv",
        output=folder,
        target="label",
        epsilon=8.0,
        delta=1e-3,
        schema="schema.toml",
        sample_rate=0.2,
        queries=4,
        sweep=GRID,
        dataset_name="toy",
    )
    sweep_table(settings, randomness=tacita.Randomness.insecure(int(sys.argv[1])))


def die_at(step):
    """Kill this process at the ``step // 2``-th call that changes a file or makes a query."""
    calls = [0]

    def counted(function):
        def call(*args, **kwargs):
            calls[0] += 1
            own = calls[0]  # another call may be made inside this one
            if own == step // 2 + 1 and step % 2 == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return function(*args, **kwargs)
            finally:  # removing what is not there fails, and is an instant as well
                if own == step // 2 + 1:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    for name in ("write", "fsync", "replace", "rename", "unlink", "rmdir", "truncate", "ftruncate"):
        setattr(os, name, counted(getattr(os, name)))
    tacita.GradientOracle.query = counted(tacita.GradientOracle.query)
    return calls


def main():
    torch.set_num_threads(1)
    secrets.token_hex = lambda size: "0" * 2 * size  # the random name of a ledger, the same in each folder
    sweep(str(Path("warm").absolute()))  # the accountant's caches are warm in every fork
    for line in sys.stdin:
        folder, step = line.rsplit(maxsplit=1)
        answer = os.memfd_create("answer")
        child = os.fork()
        if child == 0:
            calls = die_at(int(step) if int(step) >= 0 else 10**9)
            sweep(folder)
            os.pwrite(answer, str(calls[0]).encode(), 0)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        finished = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        print(int(finished), os.pread(answer, 16, 0).decode() or "0", flush=True)


if __name__ == "__main__":
    main()
