"""A network with its loss and its records, as a source of engines.

Place: sampling -> [gradients] -> clipping, estimators. The model is left unwrapped and unchanged.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _validate
from tacita.gradients.ahead import Ahead, Request, Schedule, Seeds, requests
from tacita.gradients.batches import flatten, to_device
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.data import as_rows
from tacita.gradients.draws import check_draws_nothing
from tacita.gradients.engine import Shapes, Source
from tacita.gradients.functional import LossFn, trainable
from tacita.gradients.methods import chosen_method, default_chunk_rows, engine_kind
from tacita.gradients.scan import check_modules, scan
from tacita.gradients.seeds import derived_seed, fresh_seed


class NetworkSource(Source):
    """Makes engines of a model, a per-sample loss and a dataset.

    Building it checks the model and the loss on synthetic rows, and decides the method. Of arrays only dtypes and the
    shape of a row are used; of a ``Dataset`` the structure of ``dataset[0]``, which is read. A ``Dataset`` without
    records leaves the model untried, and one with records of many shapes shows the first: where the number of records
    is private, or their shapes are, pass arrays, or name the method.

    Args:
        model: Any module, with at least one trainable parameter; never wrapped or modified.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,): one loss a sample, never a mean. It always sees a
            leading batch axis (of 1, maybe), and never zero rows.
        dataset: A map-style torch ``Dataset``, or a tuple of tensors / NumPy arrays / memory maps with the same
            number of rows; its batches are tuples then. What ``dataset[i]`` and ``collate_fn`` draw (augmentation)
            must come from torch's, NumPy's or Python's global generator: they are seeded from the query's secret.
        collate_fn: Makes a batch from a list of items; torch's default by default. A record's padding must not
            change its loss: which records share a physical batch is arbitrary.
        num_workers: Processes that read ahead, once :meth:`follow` has told the schedule. They change no bit.
        method: ``"loop"`` (the definition), ``"vmap"``, ``"ghost"``, or ``"auto"``: ghost if it has a rule for
            every trainable parameter, else vmap if it runs, else loop.
        max_physical_batch_size: Rows in memory at once: bounds memory, and changes nothing else up to the order of
            summation. ``None``: the whole batch for ghost; for loop and vmap as many rows as have 256 MiB of gradients.
        process_group: Only ``None`` is implemented.

    Raises:
        UnsupportedModuleError: Per-sample gradients are not defined, or ``method`` cannot serve the model.
        ValueError: A setting is wrong; the message names it and the way out.

    Example:
        >>> data = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.0, 1.0])
        >>> loss_fn = lambda model, batch: (model(batch[0]).squeeze(1) - batch[1]) ** 2
        >>> source = NetworkSource(nn.Linear(2, 1), loss_fn, data, method="vmap")
        >>> engine = source.engine(dict(source.model.named_parameters()), np.array([1]))
        >>> engine.norms({"all": ("weight", "bias")}).shape
        torch.Size([1, 1])
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        dataset: Any,
        *,
        collate_fn: Callable[[list], Any] | None = None,
        num_workers: int = 0,
        method: str = "auto",
        max_physical_batch_size: int | None = None,
        process_group: None = None,
    ):
        if process_group is not None:
            raise ValueError(
                "process_group must be None: several processes are not implemented yet. Run a single process."
            )
        if max_physical_batch_size is not None:
            _validate.count("max_physical_batch_size", max_physical_batch_size)
        self.model = model
        self.loss_fn = loss_fn
        self.num_workers = _validate.count("num_workers", num_workers, at_least=0)
        self.max_physical_batch_size = max_physical_batch_size
        self._rows = as_rows(dataset, collate_fn)
        if num_workers and not self._rows.on_cpu:
            raise ValueError("num_workers must be 0 for data that is not on the CPU.")
        params = _checked_parameters(model)
        self._shapes = {name: p.shape for name, p in params.items()}
        self._probe = scan(model, loss_fn, self._like(params)).check().probe
        self.method = chosen_method(method, model, loss_fn, params, self._probe)
        self._chunk_rows = max_physical_batch_size or default_chunk_rows(self.method, params)
        self._ahead: Ahead | None = None
        self._secret = fresh_seed()  # for records of queries that come without a seed

    @property
    def shapes(self) -> Shapes:
        return dict(self._shapes)

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    def engine(
        self, params: Mapping[str, Tensor], indices: np.ndarray, *, query: int | None = None, seed: int | None = None
    ) -> ChunkedEngine:
        """See :meth:`tacita.gradients.engine.Source.engine`; labels are the indices.

        Raises:
            UnsupportedModuleError: The model was put into a mode that mixes samples since the source was built.
            ValueError: ``params`` are not the trainable parameters that the source was built for.
        """
        check_modules(self.model)
        self._check_params(params)
        indices = np.ascontiguousarray(indices, dtype=np.int64)
        device = next(iter(params.values())).device
        chunks = _Chunks(self, indices, query, self._seed_of(query) if seed is None else seed, device)
        kind = engine_kind(self.method)
        return kind(self.model, self.loss_fn, params, chunks, torch.from_numpy(indices.copy()), seed=seed)

    def check_draws_nothing(self) -> None:
        """Raise ``UnsupportedModuleError`` if the model draws at random in its present mode; data is not looked at."""
        check_draws_nothing(self.model, self.loss_fn, self._probe)

    def follow(self, schedule: Schedule | None, seeds: Seeds | None = None) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = None
        if schedule is not None and self.num_workers > 0:
            self._ahead = Ahead(self._rows, schedule, seeds or self._seed_of, self.num_workers, self._chunk_rows)

    def read(self, indices: np.ndarray, query: int | None, seed: int) -> Iterator[tuple[Request, Any]]:
        """The physical batches of one batch, where the data is."""
        for request in requests(-1 if query is None else query, indices, seed, self._chunk_rows):
            if query is not None and self._ahead is not None:
                yield request, self._ahead.fetch(request, indices)
            else:
                yield request, self._rows.fetch(request.indices, seed)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(model={type(self.model).__name__}, method={self.method!r}, "
            f"max_physical_batch_size={self.max_physical_batch_size})"
        )

    def _like(self, params: Mapping[str, Tensor]) -> Any | None:
        """A batch of one row, of which the scan takes the structure."""
        batch = self._rows.like()
        if batch is None:
            return None
        flatten(batch, 1)  # raises if it is not one
        return to_device(batch, next(iter(params.values())).device)

    def _seed_of(self, query: int | None) -> int:
        """Of a query that comes without a seed: the same when it is asked again."""
        return fresh_seed() if query is None else derived_seed(self._secret, query)

    def _check_params(self, params: Mapping[str, Tensor]) -> None:
        given = {name: p.shape for name, p in params.items()}
        if given != self._shapes:
            wrong = sorted(set(given.items()) ^ set(self._shapes.items()))
            names = ", ".join(sorted({name for name, _ in wrong}))
            raise ValueError(
                f"params must be the parameters that were trainable when the source was built; these differ: {names}."
            )


class _Chunks:
    """One batch in chunks, on the device of the parameters; read anew each time it is iterated."""

    def __init__(self, source: NetworkSource, indices: np.ndarray, query: int | None, seed: int, device: torch.device):
        self._source, self._indices, self._query, self._seed, self._device = source, indices, query, seed, device

    def __iter__(self) -> Iterator[Chunk]:
        for request, batch in self._source.read(self._indices, self._query, self._seed):
            size = len(request.indices)
            flatten(batch, size)  # raises if a tensor has not that many rows
            yield Chunk(to_device(batch, self._device), size, request.number)


def _checked_parameters(model: nn.Module) -> dict[str, Tensor]:
    check_modules(model)  # before lazy parameters are touched
    params = trainable(model)
    if not params:
        raise ValueError("model must have at least one trainable parameter (requires_grad=True).")
    return params
