"""The loop over physical batches, once for all engines of networks.

Place: [gradients]. A subclass says what one chunk of rows gives; the base sums, concatenates, seeds, and takes care
of the empty batch. Everything here is private.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tacita.gradients.engine import Engine, Groups, Rule, Shapes, Sums
from tacita.gradients.functional import LossFn
from tacita.gradients.rows import weight_arrays, wide
from tacita.gradients.seeds import derived_seed, seeded


@dataclass(frozen=True)
class Chunk:
    """Rows that are in memory at once.

    Attributes:
        batch: What ``loss_fn`` takes, on the parameters' device: tensors with ``size`` rows each, maybe nested.
        size: Number of rows, >= 1.
        number: Position of the chunk in its batch, 0-based; seeds the model's own randomness.
    """

    batch: Any
    size: int
    number: int


class ChunkedEngine(Engine):
    """An engine of a network that reads its batch chunk by chunk.

    Subclasses implement ``_chunk_sums``, ``_chunk_norms`` and ``_chunk_grads`` with ``self.model``, ``self.loss_fn``
    and ``self.params``; they are only ever called with at least one row, and with the model's randomness seeded.

    Args:
        model: The network; not modified (see :func:`tacita.gradients.functional.losses_at`).
        loss_fn: ``(model, batch) -> losses (batch,)``.
        params: The point: trainable parameters by name. They are detached, never written to.
        chunks: The batch in chunks. May be iterated several times, and lazily; empty for an empty batch.
        labels: A stable label of each record, shape (batch,), int64.
        seed: Seed of the model's own randomness; each chunk has its own, and torch's generators are restored after
            each chunk. Secret, of 256 bits, wherever the result is released. ``None`` leaves torch's generators alone:
            the model draws from them as it always does.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        params: Mapping[str, Tensor],
        chunks: Iterable[Chunk],
        labels: Tensor,
        *,
        seed: int | None = None,
    ):
        self.model = model
        self.loss_fn = loss_fn
        self.params = {name: p.detach() for name, p in params.items()}
        self.seed = seed
        self._chunks = chunks
        self._labels = labels

    @property
    def shapes(self) -> Shapes:
        return {name: p.shape for name, p in self.params.items()}

    @property
    def labels(self) -> Tensor:
        return self._labels

    def weighted_sums(self, rule: Rule, groups: Groups) -> Sums:
        norms = [self._no_norms(groups)]
        values: list[dict[str, Tensor]] = []
        for chunk in self._chunks:
            with self._seeded(chunk):
                sums, chunk_norms = self._chunk_sums(chunk, rule, groups)
            norms.append(chunk_norms.detach().to(norms[0].dtype))
            parts = [{name: part.detach().to(wide(part.dtype)) for name, part in one.items()} for one in sums]
            values = [_added(*pair) for pair in zip(values, parts, strict=True)] if values else parts
        if not values:
            values = [self._zeros(groups) for _ in weight_arrays(rule, norms[0])]  # the rule sees zero rows
        return Sums(values=tuple(values), norms=torch.cat(norms))

    def norms(self, groups: Groups) -> Tensor:
        norms = [self._no_norms(groups)]
        for chunk in self._chunks:
            with self._seeded(chunk):
                norms.append(self._chunk_norms(chunk, groups).detach().to(norms[0].dtype))
        return torch.cat(norms)

    def materialise(self) -> Iterator[dict[str, Tensor]]:
        for chunk in self._chunks:
            with self._seeded(chunk):  # not held across the yield
                grads = {name: g.detach() for name, g in self._chunk_grads(chunk).items()}
            yield grads

    @abstractmethod
    def _chunk_sums(self, chunk: Chunk, rule: Rule, groups: Groups) -> tuple[list[dict[str, Tensor]], Tensor]:
        """For each weight array the weighted sums by name, (*param), float32 or better; and the norms (rows, groups).

        One forward and one backward pass serve both. Names are those of ``groups``.
        """

    @abstractmethod
    def _chunk_norms(self, chunk: Chunk, groups: Groups) -> Tensor:
        """Upper bounds of the norms, shape (rows, groups)."""

    @abstractmethod
    def _chunk_grads(self, chunk: Chunk) -> dict[str, Tensor]:
        """Per-sample gradients by name, each (rows, *param), of every parameter in ``self.params``."""

    @property
    def _device(self) -> torch.device:
        return next((p.device for p in self.params.values()), torch.device("cpu"))

    def _no_norms(self, groups: Groups) -> Tensor:
        return torch.zeros(0, len(groups), dtype=torch.float64, device=self._device)

    def _zeros(self, groups: Groups) -> dict[str, Tensor]:
        grouped = {name for names in groups.values() for name in names}
        return {
            name: torch.zeros(p.shape, dtype=wide(p.dtype), device=p.device)
            for name, p in self.params.items()
            if name in grouped
        }

    @contextmanager
    def _seeded(self, chunk: Chunk) -> Iterator[None]:
        if self.seed is None:
            yield
            return
        with seeded(derived_seed(self.seed, "chunk", chunk.number), self._device):
            yield


def _added(total: dict[str, Tensor], part: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: total[name] + part[name] for name in total}
