"""Workers that read the chunks of the queries to come.

A query's data never depend on them: a chunk that was read ahead is used only if it is the requested chunk, read under
the requested seed.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from tacita.gradients.data import IndexedRows, Request, requests
from tacita.gradients.engine import Schedule


class Prefetcher:
    """Read chunks in the order of the schedule, with ``num_workers`` processes.

    If the first chunk of a query is not the expected one (a query was skipped or redone, the batch or the seed is
    another), the workers start again from it. A chunk that is asked for again or out of order is read in this process.

    Args:
        rows: The records.
        schedule: What the queries to come will read.
        own_seed: Query -> its seed, if the schedule has none.
        num_workers: Number of processes.
        chunk_size: Rows of a chunk; ``None``: all rows of the query.
    """

    def __init__(
        self,
        rows: IndexedRows,
        schedule: Schedule,
        own_seed: Callable[[int], int],
        num_workers: int,
        chunk_size: int | None,
    ):
        self._rows = rows
        self._schedule = schedule
        self._own_seed = own_seed
        self._num_workers = num_workers
        self._chunk_size = chunk_size
        self._stream: Iterator[tuple[Request, Any]] | None = None
        self._next: tuple[Request, Any] | None = None
        self._started: int | None = None  # the query of the last chunk that the stream gave

    def fetch(self, request: Request, batch: np.ndarray) -> Any:
        """Return the chunk ``request`` of the query whose records are ``batch``."""
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
            _ChunkDataset(self._rows),
            batch_size=None,  # each item is a chunk
            sampler=_ScheduledRequests(self._draw, first, batch, self._chunk_size),
            num_workers=self._num_workers,
            collate_fn=_unchanged,
            generator=torch.Generator(),  # otherwise the loader would draw from the global generator
        )
        self.close()
        self._stream = iter(loader)
        self._pull()

    def _draw(self, query: int) -> tuple[np.ndarray, int] | None:
        """Return the batch of ``query`` and its seed; ``None`` past the last query."""
        try:
            batch, seed = self._schedule.batch(query), self._schedule.seed(query)
        except (ValueError, IndexError):  # a query that is asked for nevertheless brings its own batch
            return None
        return batch, self._own_seed(query) if seed is None else seed


class _ScheduledRequests:
    """The chunks of ``batch``, then those of every later query in the schedule."""

    def __init__(
        self,
        draw: Callable[[int], tuple[np.ndarray, int] | None],
        first: Request,
        batch: np.ndarray,
        chunk_size: int | None,
    ):
        self._draw, self._first, self._batch, self._chunk_size = draw, first, batch, chunk_size

    def __iter__(self) -> Iterator[Request]:
        query, drawn = self._first.query, (self._batch, self._first.seed)
        while drawn is not None:
            batch, seed = drawn
            if len(batch) == 0:  # a place holder, so that a run of empty batches does not stall the loader
                yield Request(query, 0, batch, seed)
            yield from requests(query, batch, seed, self._chunk_size)
            query += 1
            drawn = self._draw(query)


class _ChunkDataset(Dataset):
    def __init__(self, rows: IndexedRows):
        self._rows = rows

    def __getitem__(self, request: Request) -> tuple[Request, Any]:
        chunk = self._rows.fetch(request.indices, request.seed) if len(request.indices) else None
        return request, chunk


def _unchanged(item: Any) -> Any:
    return item
