"""The source of engines for a network, its loss and its records.

Place: sampling -> [gradients] -> clipping, estimators. The model is left unwrapped and unchanged.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from tacita import _validate
from tacita._row_numbers import RowNumbers
from tacita.errors import UnsupportedModuleError
from tacita.gradients.batches import flatten, tensors_in, to_device
from tacita.gradients.chunked import Chunk, ChunkedEngine
from tacita.gradients.data import Request, as_rows, requests
from tacita.gradients.engine import GradientSource, Schedule, Shapes
from tacita.gradients.engine_choice import choose_method, default_chunk_rows
from tacita.gradients.functional import LossFn, check_loss_fn, trainable
from tacita.gradients.probe import draws, synthetic
from tacita.gradients.processes import is_sharded, processes_of
from tacita.gradients.scan import check_modules, scan
from tacita.gradients.seeds import derived_seed, fresh_seed
from tacita.gradients.views import SeveralViews

if TYPE_CHECKING:
    from tacita.gradients.prefetch import Prefetcher

LENT_FROM = 2**19  # bytes of a batch that a program reads where the data are: to copy fewer takes no time


class NetworkSource(GradientSource):
    """Make engines from a model, a per-sample loss and a dataset.

    Building a source writes the model and the loss down as a program (docs/program.md), so that their code never meets
    a record, and holds the program against the loop on synthetic rows. Of arrays only dtypes and the shape of a row are
    used. Of a ``Dataset`` the structure of ``dataset[0]`` is used, which is read; one without records leaves the model
    untried. If the number of records or their shapes are private, pass arrays.

    Args:
        model: Any module, with at least one trainable parameter; never wrapped or modified.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,): one loss a sample, never a mean. It always sees a
            leading batch axis, maybe of one row, and never zero rows.
        dataset: A map-style torch ``Dataset``, or tensors, NumPy arrays or memory maps with the same number of rows, in
            a tuple, list, mapping or dataclass; a batch then has the same container. Random draws of ``dataset[i]`` and
            ``collate_fn`` (augmentation) must come from torch's, NumPy's or Python's global generator: these are seeded
            from the query's secret.
        collate_fn: Makes a batch from a list of items; torch's default by default. It gets one record at a time, so
            that no record can be padded to another's length. Pad to a public length (:func:`tacita.pad_to`).
        num_workers: Processes that read ahead once :meth:`follow` has given the schedule. They change no bit.
        method: ``"auto"`` and ``"program"`` are the program. ``"loop"``, the definition, runs the code of the model and
            the loss on records, one at a time: the guarantee then has the condition that it keeps nothing of one.
        max_physical_batch_size: Rows in memory at once. Bounds memory, and changes nothing else but the order of
            summation. ``None``: the whole batch for a program; for the loop as many rows as have 256 MiB of gradients.
        process_group: The processes that share the rows of each batch, as in :class:`~tacita.ClippedGradientOracle`.
            With one, the model may be sharded by FSDP2 (``fully_shard``).

    Attributes:
        arrays: The arrays of the data set; ``None`` if it is a ``Dataset``. Private.
        trial_row: A batch of one row, for its shapes and dtypes; ``None`` if there is no record.

    Raises:
        UnsupportedModuleError: Per-sample gradients are not defined, or ``method`` cannot serve the model.
        ValueError: A setting is wrong; the message names it and the way out.

    Example:
        >>> data = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.0, 1.0])
        >>> loss_fn = lambda model, batch: (model(batch[0]).squeeze(1) - batch[1]) ** 2
        >>> source = NetworkSource(nn.Linear(2, 1), loss_fn, data)
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
        process_group: Any = None,
    ):
        check_loss_fn(loss_fn)
        self.model: nn.Module = model
        self.loss_fn = loss_fn
        self.ranks = processes_of(process_group, model)
        with self.ranks.fail_together() if is_sharded(model) else nullcontext():
            if max_physical_batch_size is not None:
                _validate.count("max_physical_batch_size", max_physical_batch_size)
            self.num_workers = _validate.count("num_workers", num_workers, at_least=0)
            self.max_physical_batch_size = max_physical_batch_size
            self._rows = as_rows(dataset, collate_fn)
            self.arrays = dataset.arrays if isinstance(dataset, SeveralViews) else self._rows.arrays
            if num_workers and not self._rows.on_cpu:
                raise ValueError("num_workers must be 0 for data that is not on the CPU.")
            _check_parameters(model)
            if num_workers and self.ranks.size > 1:
                raise ValueError(
                    "num_workers must be 0 with a process_group: rank 0 alone knows what later queries read."
                )
            self.takes_row_numbers = num_workers == 0 and self.ranks.size == 1
            self._choose(method, trainable(model))
            self._ahead: Prefetcher | None = None
            self._secret = fresh_seed()  # for records of queries that come without a seed

    def _choose(self, method: str, params: Mapping[str, Tensor]) -> None:
        """Try the model and the loss on synthetic rows, and choose the engine."""
        network, loss_fn, build = self.model, self.loss_fn, self.ranks.build
        self._shapes = {name: p.shape for name, p in params.items()}
        self.trial_row = self._like(params)
        self._row_bytes = sum(one.nbytes for one in tensors_in(self.trial_row))
        self._choice = choose_method(method, network, loss_fn, like=self.trial_row, build=build)
        # To try a model of shards would need it whole.
        self._probe = scan(network, loss_fn, None if build else self.trial_row).check().probe
        self._choice.check(network, loss_fn, params, self._probe)
        programs = self._choice.programs
        self.digest = None if programs is None else programs.program(params)[0].digest  # of the model as it is now
        self._tried = {_modes(network)}
        self._chunk_rows = self.max_physical_batch_size or default_chunk_rows(self.method, params)

    @property
    def shapes(self) -> Shapes:
        return dict(self._shapes)

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    @property
    def method(self) -> str:
        """``"program"`` or ``"loop"``: the engine that serves the network."""
        return self._choice.method

    @property
    def rows_alone(self) -> bool:
        """Whether each record is computed alone, from an aligned copy, so that its bits depend on no other."""
        return self.method == "loop" or self.max_physical_batch_size == 1

    @property
    def conditions(self) -> tuple[str, ...]:
        """For the loop: that the code which met records keeps nothing of them."""
        return self._choice.conditions

    def engine(
        self,
        params: Mapping[str, Tensor],
        indices: np.ndarray | RowNumbers,
        *,
        query: int | None = None,
        seed: int | None = None,
    ) -> ChunkedEngine:
        """Return the engine of one batch (:meth:`tacita.gradients.engine.GradientSource.engine`); labels are indices.

        Raises:
            UnsupportedModuleError: The model was put into a mode that mixes samples since the source was built.
            ValueError: ``params`` are not the trainable parameters that the source was built for.
        """
        if {name: p.shape for name, p in params.items()} != self._shapes:
            self._refuse(params)
        idle = self.ranks.idle_chunks(len(indices), self._chunk_rows)
        if _modes(self.model) not in self._tried:  # the model may compute something else now
            self._try_again(params)
        if isinstance(indices, RowNumbers):
            numbers, labels = indices, lambda: torch.from_numpy(np.asarray(numbers))  # of many rows only if asked for
        else:
            indices = np.ascontiguousarray(self.ranks.share(indices), dtype=np.int64)
            labels = torch.from_numpy(indices)
        device = next(iter(params.values())).device
        chunks = _BatchChunks(self, indices, query, self._seed_of(query) if seed is None else seed, device, idle)
        engine = self._choice.engine(self.model, self.loss_fn, params, chunks, labels, seed=seed)
        engine.ranks = self.ranks
        return engine

    def retrace(self) -> None:
        if self._choice.programs is not None:
            self._choice.programs.retrace()

    def check_draws_nothing(self) -> None:
        """Raise ``UnsupportedModuleError`` if the model draws at random in its present mode; no data is used."""
        probe, untried = self._probe, self._probe is None and self.trial_row is not None
        if untried or (probe is not None and draws(self.model, self.loss_fn, probe)):
            raise UnsupportedModuleError(
                "the model or the loss draws at random, or does not run on synthetic rows, and what is tested must be "
                "a function of the records alone: put the model in eval mode (model.eval()), or leave the draws out."
            )

    def follow(self, schedule: Schedule | None) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = None
        if schedule is not None and self.num_workers > 0:
            from tacita.gradients.prefetch import Prefetcher

            self._ahead = Prefetcher(self._rows, schedule, self._seed_of, self.num_workers, self._chunk_rows)

    def read(
        self, indices: np.ndarray | RowNumbers, query: int | None, seed: int
    ) -> Iterator[tuple[Request, Any, bool]]:
        """Yield the physical batches of one batch, each on the device of the data, and whether its memory is lent.

        A large batch of rows that lie side by side is lent where the model only reads it: that takes no copy.
        """
        asked = requests(-1 if query is None else query, indices, seed, self._chunk_rows)
        if query is not None and self._ahead is not None:
            batch = np.asarray(indices)
            yield from ((request, self._ahead.fetch(request, batch), False) for request in asked)
        elif self._rows.threaded:
            yield from _one_ahead(asked, lambda request: self._rows.fetch(request.indices, seed))
        else:
            for request in asked:
                worth = self._only_reads and len(request.indices) * self._row_bytes >= LENT_FROM
                lent = self._rows.view(request.indices) if worth else None
                if lent is not None:
                    yield request, lent, True
                else:
                    yield request, self._rows.fetch(request.indices, request.seed), False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={type(self.model).__name__}, method={self.method!r})"

    def _like(self, params: Mapping[str, Tensor]) -> Any | None:
        """Return a batch of one row, which shows the structure of every batch; ``None`` if there is none."""
        batch = self._rows.like()
        if batch is None:
            return None
        flatten(batch, 1)  # raises if it is not a batch
        return to_device(batch, next(iter(params.values())).device)

    def _seed_of(self, query: int | None) -> int:
        """Return the seed of a query that comes without one: the same whenever that query is asked again."""
        return fresh_seed() if query is None else derived_seed(self._secret, query)

    @property
    def _only_reads(self) -> bool:
        """Whether nothing writes a batch: a program never does, and the loop copies each row."""
        return self._choice.programs is None or self._choice.programs.only_reads

    def _try_again(self, params: Mapping[str, Tensor]) -> None:
        if is_sharded(self.model) and self.ranks.build is None:
            raise UnsupportedModuleError(
                "fully_shard was called after the oracle was built: shard the model first, then build the oracle."
            )
        check_modules(self.model)
        self._choice.check(self.model, self.loss_fn, params, self._probe)
        self._tried.add(_modes(self.model))

    def _refuse(self, params: Mapping[str, Tensor]) -> NoReturn:
        differ = {(name, p.shape) for name, p in params.items()} ^ set(self._shapes.items())
        raise ValueError(
            "params must be the parameters that were trainable when the source was built; these differ: "
            f"{', '.join(sorted(dict(differ)))}. To freeze some of them later, keep requires_grad and name the others "
            "in backward(updates=...); to train others, build an oracle for each on the same ledger, before any query."
        )


def _modes(model: nn.Module) -> tuple[tuple[bool, int, int], ...]:
    """Return the mode and the numbers of hooks of each module: if they change, the model may compute something else."""
    return tuple((m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules())


def _one_ahead(asked: Iterator[Request], fetch: Callable[[Request], Any]) -> Iterator[tuple[Request, Any, bool]]:
    """Fetch a copy for each request, the next one in a thread while the caller works on the present one."""
    with ThreadPoolExecutor(1) as pool:
        coming: tuple[Request, Any] | None = None
        for request in asked:
            now, coming = coming, (request, pool.submit(fetch, request))
            if now is not None:
                yield now[0], now[1].result(), False
        if coming is not None:
            yield coming[0], coming[1].result(), False


@dataclass(frozen=True)
class _BatchChunks:
    """One batch in chunks, on the device of the parameters; read anew each time it is iterated."""

    source: NetworkSource
    indices: np.ndarray | RowNumbers
    query: int | None
    seed: int
    device: torch.device
    idle: int

    def __iter__(self) -> Iterator[Chunk]:
        for request, batch, lent in self.source.read(self.indices, self.query, self.seed):
            size = len(request.indices)
            tensors, rebuild = flatten(batch, size)  # raises if a tensor has not that many rows
            there = size > 1 and all(tensor.device == self.device for tensor in tensors)
            rows = batch if there else rebuild([tensor.to(self.device, copy=size == 1) for tensor in tensors])
            yield Chunk(rows, size, self.source.ranks.number(request.number), lent, torch.from_numpy(request.indices))
        for _ in range(self.idle):
            yield Chunk(synthetic(self.source.trial_row, 1, fill="zeros", seed=0), 1, 0, absent=True)


def _check_parameters(model: nn.Module) -> None:
    check_modules(model)  # before lazy parameters are touched
    params = trainable(model)
    if not params:
        raise ValueError("model must have at least one trainable parameter (requires_grad=True).")
