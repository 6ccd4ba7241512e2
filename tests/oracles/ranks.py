"""Ranks of a real gloo group as threads of one process, which take turns: quick, and the same in every run."""

import threading
from collections.abc import Callable
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_BATON = threading.Lock()  # held by the one rank that computes; a rank gives it up while it waits for the others


@contextmanager
def _waiting():
    _BATON.release()
    try:
        yield
    finally:
        _BATON.acquire()


def _patient(collective: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return collective(*args, **options)
        with _waiting():
            return collective(*args, **options)

    return call


def run_ranks(size: int, work: Callable[[int, Any], Any]) -> list[Any]:
    """Call ``work(rank, group)`` on every rank; return, for each rank, its result, or what it raised."""
    store, found = dist.HashStore(), [None] * size
    all_reduce, broadcast = dist.all_reduce, dist.broadcast

    def thread(rank: int) -> None:
        group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=60))
        with _BATON:
            try:
                found[rank] = work(rank, group)
            except BaseException as error:
                found[rank] = error

    dist.all_reduce, dist.broadcast = _patient(all_reduce), _patient(broadcast)
    try:
        threads = [threading.Thread(target=thread, args=(rank,)) for rank in range(size)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        dist.all_reduce, dist.broadcast = all_reduce, broadcast
    return found


def results(found: list[Any]) -> list[Any]:
    """Return the results of all ranks, none of which may have raised."""
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found
