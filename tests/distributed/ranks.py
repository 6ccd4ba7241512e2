"""Ranks as threads of one process, which take turns: quick, the same in every run, and nobody waits for a dead one.

``run_ranks`` replaces the two collectives that tacita uses. Real processes with gloo are in
tests/training/test_several_processes.py.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist


class World:
    """What the ranks have given, by round; one of them computes at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.turn = threading.Condition()  # held by the rank that computes
        self.rounds = [0] * size
        self.given: dict[int, dict[int, Any]] = {}
        self.gone: set[int] = set()

    def exchange(self, rank: int, kind: Any, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Give a tensor, and wait for those of all ranks."""
        now = self.rounds[rank]
        self.rounds[rank] += 1
        given = self.given.setdefault(now, {})
        given[rank] = ((kind, tensor.shape, tensor.dtype), tensor.clone())
        self.turn.notify_all()
        while len(given) < self.size:
            if self.gone - given.keys():
                raise RuntimeError("Connection closed by peer [127.0.0.1]:4711")
            self.turn.wait()
        assert len({kind for kind, _ in given.values()}) == 1, f"real ranks would wait for ever: {given}"
        return [given[one][1] for one in range(self.size)]


class ThreadGroup:
    """The process group of one of these ranks."""

    allreduce = None  # which real groups have

    def __init__(self, world: World, rank: int) -> None:
        self.world, self._rank = world, rank

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self.world.size


def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
    every = group.world.exchange(group.rank(), op, tensor)
    total = torch.stack(every)
    tensor.copy_(total.amax(0) if op == dist.ReduceOp.MAX else total.sum(0))


def broadcast(tensor: torch.Tensor, group: Any = None, group_src: int = 0) -> None:
    tensor.copy_(group.world.exchange(group.rank(), "broadcast", tensor)[group_src])


def run_ranks(size: int, work: Callable[[int, Any], Any]) -> list[Any]:
    """Call ``work(rank, group)`` on every rank; return, for each rank, its result, or what it raised."""
    world, found = World(size), [None] * size

    def thread(rank: int) -> None:
        with world.turn:
            try:
                found[rank] = work(rank, ThreadGroup(world, rank))
            except BaseException as error:
                found[rank] = error
            world.gone.add(rank)
            world.turn.notify_all()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", all_reduce)
        patch.setattr(dist, "broadcast", broadcast)
        threads = [threading.Thread(target=thread, args=(rank,)) for rank in range(size)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    return found


def results(found: list[Any]) -> list[Any]:
    """Return the results of all ranks, none of which may have raised."""
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found
