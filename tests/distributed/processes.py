"""Ranks as forked processes with gloo, for what threads of one process cannot show: shards of FSDP."""

import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LONGEST = 60  # seconds after which the processes are taken to wait for ever


def run_processes(size: int, work: Callable[[int, Any], Any], *, may_die: int | None = None) -> list[Any]:
    """Call ``work(rank, group)`` in a process for each rank; return, for each rank, its result, or what it raised.

    The rank ``may_die`` gives nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        children = [_forked(rank, size, work, Path(folder)) for rank in range(size)]
        until = time.monotonic() + LONGEST
        try:
            for child in children:
                while os.waitpid(child, os.WNOHANG) == (0, 0):
                    if time.monotonic() > until:
                        raise TimeoutError("the ranks wait for each other")
                    time.sleep(0.005)
        finally:
            for child in children:
                _end(child)
        given = [Path(folder) / str(rank) for rank in range(size) if rank != may_die]
        return [pickle.loads(one.read_bytes()) for one in given]


def _forked(rank: int, size: int, work: Callable[[int, Any], Any], folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    try:
        torch.set_num_threads(1)  # a fork has no pool of threads
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = dist.FileStore(str(folder / "store"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=LONGEST))
        try:
            found = work(rank, dist.group.WORLD)
        except BaseException as error:
            found = error.with_traceback(None)
            found.__cause__ = found.__context__ = None
        (folder / str(rank)).write_bytes(pickle.dumps(found))
    finally:
        os._exit(0)


def _end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        return
