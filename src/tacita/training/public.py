"""The loss on data that somebody declares to be public: the one curve that may be looked at while a run goes on.

Place: [training.public] -> fit. It reads the released model and public rows only; it costs no privacy, and says nothing
about the private rows but what the releases say.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tacita.gradients.functional import LossFn

ROWS = 4096  # in memory at once


def public_loss(model: nn.Module, loss_fn: LossFn, data: Any) -> float:
    """Mean loss over ``data``, in evaluation mode; the model's mode is put back.

    Args:
        model: As it is now.
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
