"""The loss on data that the caller declares to be public, the one curve that may be shown while a run goes on.

It is computed from the released model and public rows only. So it costs no privacy, and tells no more about the private
rows than the releases do.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tacita.gradients.functional import LossFn
from tacita.training.progress import Progress

ROWS = 4096  # rows in memory at once


def public_loss(model: nn.Module, loss_fn: LossFn, data: Any) -> float:
    """Return the mean loss over ``data``, in evaluation mode; the model's mode is restored.

    Args:
        model: The model with its present parameters.
        loss_fn: ``(model, batch) -> losses`` of shape (batch,).
        data: A tuple of tensors or a map-style ``Dataset``, declared public.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            losses = [loss_fn(model, batch).double() for batch in _batches(data)]
    finally:
        model.train(was_training)
    return torch.cat(losses).mean().item() if losses else float("nan")


def _batches(data: Any) -> Iterator[Any]:
    if isinstance(data, tuple | list):
        tensors = [value if isinstance(value, Tensor) else torch.as_tensor(value) for value in data]
        yield from zip(*(value.split(ROWS) for value in tensors), strict=True)
    else:
        yield from DataLoader(data, batch_size=ROWS)


class PublicCurve:
    """Records the loss on public data about twenty times in a run. The loop calls it with the number of queries made.

    Attributes:
        data: The public rows; ``None`` to record nothing.
        points: Pairs (queries made, mean loss) so far.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        data: Any,
        planned_queries: int,
        bar: Progress | None,
        *,
        flush: Callable[[], Any] = lambda: None,
    ) -> None:
        self._model, self._loss_fn, self._bar, self._flush = model, loss_fn, bar, flush
        self._every = max(1, planned_queries // 20)
        self.data = data
        self.points: list[tuple[int, float]] = []

    def __call__(self, made: int) -> None:
        if self.data is None or made % self._every:
            return
        self._flush()  # the ledger must be on disk before anything computed from the releases is shown
        self.points.append((made, public_loss(self._model, self._loss_fn, self.data)))
        if self._bar is not None:
            self._bar.note = f"loss on public data {self.points[-1][1]:.4g}"
