"""The loop over physical batches, which all engines of networks share.

A subclass computes sums, norms or gradients of one chunk of rows. The base class adds up and concatenates chunks, seeds
the model's own randomness, and takes care of the empty batch. Everything here is private.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tacita.gradients.engine import Engine, Groups, Rule, Shapes, Sums
from tacita.gradients.functional import LossFn
from tacita.gradients.seeds import derived_seed, seeded
from tacita.gradients.weighted_sums import exact_device, group_norms, weight_arrays, weighted_sum, zeros_for


@dataclass(frozen=True)
class Chunk:
    """Rows that are in memory at once.

    Attributes:
        batch: The batch that ``loss_fn`` takes, on the parameters' device: tensors of ``size`` rows each, maybe nested.
        size: Number of rows, >= 1.
        number: Position of the chunk in its batch, from 0; seeds the model's own randomness.
        lent: The tensors may share the memory of the data set, so nobody may write them.
        labels: A stable label of each row, (size,), int64; ``None`` if the engine was given all labels.
        absent: The only row is made up, has no label and stands in no sum: this rank computes along with another one.
            Such chunks come last.
    """

    batch: Any
    size: int
    number: int
    lent: bool = False
    labels: Tensor | None = None
    absent: bool = False

    def rule(self, given: Rule) -> Rule:
        """Return the rule ``given``; of an absent row it gives zeros, of the same arrays."""
        return (lambda norms: tuple(map(torch.zeros_like, weight_arrays(given, norms)))) if self.absent else given


class ChunkedEngine(Engine):
    """An engine of a network that reads its batch chunk by chunk.

    A subclass implements ``_chunk_grads`` from ``self.model``, ``self.loss_fn`` and ``self.params``, and overrides
    ``_chunk_sums`` and ``_chunk_norms`` where they need no gradients. These methods always get at least one row, and
    the model's randomness is seeded.

    Args:
        model: The network; not modified (see :func:`tacita.gradients.functional.losses_at`).
        loss_fn: ``(model, batch) -> losses (batch,)``.
        params: The point: trainable parameters by name. They are detached and never written.
        chunks: The batch in chunks; iterated several times, maybe lazily. Empty for an empty batch.
        labels: A stable label of each record, shape (batch,), int64; or a function that returns them, if each chunk has
            its own, too.
        seed: Seed of the model's own randomness. Each chunk has a seed of its own (in the loop each record), and the
            global generators of torch, Python and NumPy are restored after it. Must be secret and of 256 bits wherever
            the result is released. ``None`` leaves the generators alone: the model draws from them as it always does.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        params: Mapping[str, Tensor],
        chunks: Iterable[Chunk],
        labels: Tensor | Callable[[], Tensor],
        *,
        seed: int | None = None,
    ):
        self.model = model
        self.loss_fn = loss_fn
        self.params = {name: p.detach() for name, p in params.items()}
        self.seed = seed
        self._chunks = chunks
        self._labels = labels
        self._device = next((p.device for p in self.params.values()), torch.device("cpu"))

    @property
    def shapes(self) -> Shapes:
        return {name: p.shape for name, p in self.params.items()}

    @property
    def labels(self) -> Tensor:
        if not isinstance(self._labels, Tensor):
            self._labels = self._labels()
        return self._labels.clone()  # nobody writes what the batch is read by

    def weighted_sums(self, rule: Rule, groups: Groups) -> Sums:
        labels = self._labels
        kept = isinstance(labels, Tensor)  # else the batch is large, and norms are computed again if asked for
        norms: list[Tensor] = []
        values: list[dict[str, Tensor]] = []
        for chunk in self.chunks():
            with self._seeded(chunk):
                sums, chunk_norms = self._chunk_sums(chunk, chunk.rule(rule), groups)
            if kept:
                norms.append(chunk_norms.detach()[chunk.absent :])
            parts = [{name: part.detach() for name, part in one.items()} for one in sums]
            values = [_added(*pair) for pair in zip(values, parts, strict=True)] if values else parts
        if not values:
            values = [self._zeros(groups) for _ in weight_arrays(rule, self._no_norms(groups))]  # of zero rows
        found = self._joined(norms, groups) if kept else partial(self.norms, groups)
        return Sums(values=tuple(self.over_ranks(values)), norms=found)

    def norms(self, groups: Groups) -> Tensor:
        norms: list[Tensor] = []
        for chunk in self.chunks():
            with self._seeded(chunk):
                norms.append(self._chunk_norms(chunk, groups).detach()[chunk.absent :])
        return self._joined(norms, groups)

    def materialise(self) -> Iterator[dict[str, Tensor]]:
        return (grads for _, grads in self.labelled())

    def labelled(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        for chunk in self.chunks():
            with self._seeded(chunk):  # not held across the yield
                grads = {name: g.detach() for name, g in self._chunk_grads(chunk).items()}
            assert chunk.labels is not None
            if not chunk.absent:
                yield chunk.labels, grads

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of the batch, each with the labels of its rows."""
        place = 0
        for chunk in self._chunks:
            labels = chunk.labels
            if labels is None:
                labels = (self._labels if isinstance(self._labels, Tensor) else self.labels)[place : place + chunk.size]
            yield replace(chunk, labels=labels)
            place += chunk.size

    def _chunk_sums(self, chunk: Chunk, rule: Rule, groups: Groups) -> tuple[list[dict[str, Tensor]], Tensor]:
        """Return, for each weight array, the weighted sums by name, (*param), float32 or better; and the norms.

        The norms are (rows, groups). One forward and one backward pass serve both. Names are those of ``groups``.
        """
        grads = self._chunk_grads(chunk)
        norms = group_norms(grads, groups)
        return [weighted_sum(grads, weights, groups) for weights in weight_arrays(rule, norms)], norms

    def _chunk_norms(self, chunk: Chunk, groups: Groups) -> Tensor:
        """Return upper bounds of the norms, shape (rows, groups)."""
        return group_norms(self._chunk_grads(chunk), groups)

    @abstractmethod
    def _chunk_grads(self, chunk: Chunk) -> dict[str, Tensor]:
        """Return the per-sample gradients by name, each (rows, *param), of every parameter in ``self.params``."""

    def _joined(self, norms: list[Tensor], groups: Groups) -> Tensor:
        """Return the norms of all chunks, of which there may be none."""
        return norms[0] if len(norms) == 1 else torch.cat([self._no_norms(groups), *norms])

    def _no_norms(self, groups: Groups) -> Tensor:
        return torch.zeros(0, len(groups), dtype=torch.float64, device=exact_device(self._device))

    def _zeros(self, groups: Groups) -> dict[str, Tensor]:
        grouped = {name for names in groups.values() for name in names}
        reduced = partial(self.ranks.reduced, self.params)
        return {name: reduced(name, zeros_for(p)) for name, p in self.params.items() if name in grouped}

    @contextmanager
    def _seeded(self, chunk: Chunk) -> Iterator[None]:
        if self.seed is None:
            yield
            return
        with seeded(derived_seed(self.seed, "chunk", chunk.number), self._device):
            yield


def _added(total: dict[str, Tensor], part: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: total[name] + part[name] for name in total}
