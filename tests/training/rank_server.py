"""Forks runs on several real processes with gloo. Run by test_several_processes.py, not imported.

Reads lines ``folder size killed query``: a run on ``size`` ranks in ``folder``, whose rank ``killed`` (-1: none) kills
itself with SIGKILL in its ``query``-th query. Answers each with one line: the exit status of every rank. A rank writes
what its model ends with to ``folder/../rank-N.pt`` beside the run.
"""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import tacita
from tacita.gradients import NetworkSource
from tests.training.small_run import SETTINGS, loss_fn, rows

NETWORK = NetworkSource.engine


def train(folder, group, kind):
    model = torch.nn.Linear(3, 1)
    if group is None or group.rank() == 0:
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(0.1)
    tacita.fit(
        model,
        loss_fn,
        rows(),
        **SETTINGS,
        epochs=2,
        folder=folder,
        hardened=kind == "hardened",
        max_physical_batch_size={"hardened": 1, "chunks": 4}.get(kind),
        randomness=tacita.Randomness.insecure(0),
        process_group=group,
    )
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def rank_of(folder, rank, size, killed, last):
    """One rank's process."""
    asked = [0]

    def engine(self, params, indices, **options):
        asked[0] += 1
        if (rank, asked[0]) == (killed, last):
            os.kill(os.getpid(), signal.SIGKILL)
        return NETWORK(self, params, indices, **options)

    NetworkSource.engine = engine
    group = None
    if size > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = dist.FileStore(f"{folder}.store-{size}-{killed}-{last}", size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=300))
        group = dist.group.WORLD
    weights = train(folder, group, kind=Path(folder).name.split("-")[0])
    torch.save(weights, Path(folder).parent / f"{Path(folder).name}.rank-{rank}.pt")
    if group is not None:
        dist.destroy_process_group()


def run(folder, size, killed, last):
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            try:
                rank_of(folder, rank, size, killed, last)
            except tacita.RankError:
                os._exit(3)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    for line in sys.stdin:
        folder, *numbers = line.split()
        print(*run(folder, *map(int, numbers)), flush=True)
