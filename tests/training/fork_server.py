"""Forks training runs that kill themselves with SIGKILL at a chosen instant. Run by test_kill.py, not imported.

Its argument is the device that the model is on.
Reads lines ``folder step`` and answers each with one line: the queries whose release the run had in hand when it
ended, and whether it finished. ``step`` is the number of the system call (write, flush, rename, remove) at which the
run dies: before it if even, after it if odd; negative: it runs to the end.
"""

import os
import signal
import sys

import torch

import tacita
from tests.devices import get_device
from tests.training.small_run import SETTINGS, loss_fn, rows

QUERY = tacita.GradientOracle.query


def train(folder, released, device):
    model = torch.nn.Linear(3, 1).to(device)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    ask = QUERY

    def query(self, params):
        release = ask(self, params)
        os.pwrite(released, str(release.query + 1).encode().ljust(8), 0)
        return release

    tacita.GradientOracle.query = query
    tacita.fit(model, loss_fn, rows(), **SETTINGS, epochs=6, folder=folder, randomness=tacita.Randomness.insecure(0))


def die_at(step):
    """Kill this process at the ``step // 2``-th call that changes a file."""
    calls = [0]

    def counted(function):
        def call(*args, **kwargs):
            calls[0] += 1
            if calls[0] == step // 2 + 1 and step % 2 == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args, **kwargs)
            if calls[0] == step // 2 + 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in ("write", "fsync", "replace", "rename", "unlink", "rmdir", "truncate", "ftruncate"):
        setattr(os, name, counted(getattr(os, name)))
    return calls


def main(device):
    torch.set_num_threads(1)
    train(None, os.memfd_create("released"), device)  # the accountant's caches are warm in every fork
    for line in sys.stdin:
        folder, step = line.rsplit(maxsplit=1)
        released = os.memfd_create("released")
        child = os.fork()
        if child == 0:
            calls = [0] if int(step) < 0 else die_at(int(step))
            train(folder, released, device)
            os.pwrite(released, str(calls[0]).encode().ljust(8), 8)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        numbers = os.pread(released, 16, 0).decode().ljust(16).replace("\0", " ")
        finished = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        print(numbers[:8].strip() or "0", int(finished), flush=True)


if __name__ == "__main__":
    main(get_device(sys.argv[1]))
