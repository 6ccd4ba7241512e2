"""Workers that read the chunks of the queries to come.

Place: [gradients]. What a query gets never depends on it: a chunk read ahead is used only if it is the one asked for,
read under the seed asked for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tacita.gradients.data import Rows

Schedule = Callable[[int], np.ndarray]
Seeds = Callable[[int], int]


@dataclass(frozen=True)
class Request:
    """One chunk of one query; ``seed`` is the query's secret."""

    query: int
    number: int
    indices: np.ndarray
    seed: int = field(repr=False)

    def same(self, other: "Request") -> bool:
        """Whether both ask for the same records for the same query, under the same seed."""
        named = (self.query, self.number, self.seed) == (other.query, other.number, other.seed)
        return named and np.array_equal(self.indices, other.indices)


class Ahead:
    """Reads chunks in the order of the schedule, with ``num_workers`` processes.

    The first chunk of a query that is not the one expected (a query skipped or redone, another batch) restarts the
    workers there; so does another seed. A chunk read a second time, or out of order, is read in this process.
    """

    def __init__(self, rows: Rows, schedule: Schedule, seeds: Seeds, num_workers: int, chunk_size: int | None):
        self._rows = rows
        self._schedule = schedule
        self._seeds = seeds
        self._num_workers = num_workers
        self._chunk_size = chunk_size
        self._stream: Iterator[tuple[Request, Any]] | None = None
        self._next: tuple[Request, Any] | None = None
        self._started: int | None = None  # the query of the last chunk that the stream gave

    def fetch(self, request: Request, batch: np.ndarray) -> Any:
        """The chunk ``request`` of the query whose records are ``batch``."""
        if not self._expects(request):
            if request.number > 0 or request.query == self._started:
                return self._rows.fetch(request.indices, request.seed)
            self._restart(request, batch)
        assert self._next is not None
        (_, chunk), self._next, self._started = self._next, None, request.query
        return chunk

    def close(self) -> None:
        """Stop the workers."""
        self._stream = self._next = None

    def _expects(self, request: Request) -> bool:
        if self._next is None:
            self._pull()
        while self._next is not None and len(self._next[0].indices) == 0 and self._next[0].query < request.query:
            self._pull()
        return self._next is not None and self._next[0].same(request)

    def _pull(self) -> None:
        self._next = None if self._stream is None else next(self._stream, None)

    def _restart(self, first: Request, batch: np.ndarray) -> None:
        loader = DataLoader(
            _Chunks(self._rows),
            batch_size=None,  # an item is a chunk already
            sampler=_Requests(self._schedule, self._seeds, first, batch, self._chunk_size),
            num_workers=self._num_workers,
            collate_fn=_unchanged,
            generator=torch.Generator(),  # else the loader would draw from the global one
        )
        self.close()
        self._stream = iter(loader)
        self._pull()


def requests(query: int, batch: np.ndarray, seed: int, chunk_size: int | None) -> Iterator[Request]:
    """The chunks of one batch, in order; none of an empty one."""
    size = chunk_size or max(1, len(batch))
    for number, start in enumerate(range(0, len(batch), size)):
        yield Request(query, number, batch[start : start + size], seed)


class _Requests:
    """The chunks of ``batch``, then those of every query after it, as far as the schedule goes."""

    def __init__(self, schedule: Schedule, seeds: Seeds, first: Request, batch: np.ndarray, chunk_size: int | None):
        self._schedule, self._seeds = schedule, seeds
        self._first, self._batch, self._chunk_size = first, batch, chunk_size

    def __iter__(self) -> Iterator[Request]:
        query, drawn = self._first.query, (self._batch, self._first.seed)
        while drawn is not None:
            batch, seed = drawn
            if len(batch) == 0:  # a place holder, so that no run of empty batches holds the loader up
                yield Request(query, 0, batch, seed)
            yield from requests(query, batch, seed, self._chunk_size)
            query += 1
            drawn = self._draw(query)

    def _draw(self, query: int) -> tuple[np.ndarray, int] | None:
        try:
            return self._schedule(query), self._seeds(query)
        except (ValueError, IndexError):  # past the last query; one that is asked for nevertheless brings its own batch
            return None


class _Chunks(Dataset):
    def __init__(self, rows: Rows):
        self._rows = rows

    def __getitem__(self, request: Request) -> tuple[Request, Any]:
        chunk = self._rows.fetch(request.indices, request.seed) if len(request.indices) else None
        return request, chunk


def _unchanged(item: Any) -> Any:
    return item
