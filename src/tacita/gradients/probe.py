"""Synthetic batches with the structure of a real one: to try a model and its loss before any data is used.

Place: [gradients]. Only shapes, dtypes and nesting are taken from the data, never a value.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tacita.gradients.batches import map_tensors
from tacita.gradients.functional import LossFn
from tacita.gradients.seeds import seeded

ROWS = 3  # of a probe: one is watched, the others change
FILLS = ("mixed", "ones", "zeros")  # of integers and flags; "mixed" may be out of a model's domain (an empty sequence)


class _Watched(nn.Module):
    """The loss of a model, with its buffers kept as they are when the loss is there."""

    def __init__(self, model: nn.Module, loss_fn: LossFn):
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn
        self.after: dict[str, Tensor] = {}

    def forward(self, batch: Any) -> Tensor:
        losses = self.loss_fn(self.model, batch)
        self.after = dict(self.model.named_buffers())
        return losses


def synthetic(batch: Any, rows: int, *, fill: str, seed: int) -> Any:
    """A batch of ``rows`` rows with the structure of ``batch``; the same arguments give the same rows.

    Floating-point values are uniform in (0.05, 0.95), a range in which most models and losses (targets that are
    probabilities, logarithms) are defined; integers are 0 or 1, valid as classes and as tokens.
    """
    generator = torch.Generator().manual_seed(seed)

    def made(like: Tensor) -> Tensor:
        shape = (rows, *like.shape[1:])
        if like.is_floating_point() or like.is_complex():
            return (0.05 + 0.9 * torch.rand(shape, generator=generator)).to(like.device, like.dtype)
        bits = torch.randint(0, 2, shape, generator=generator)
        values = {"mixed": bits, "ones": torch.ones_like(bits), "zeros": torch.zeros_like(bits)}[fill]
        return values.to(like.device, like.dtype)

    return map_tensors(made, batch)


def select(batch: Any, other: Any, keep: int) -> Any:
    """``other`` with row ``keep`` of ``batch`` in its place."""
    rows = iter(_tensors(batch))

    def mixed(tensor: Tensor) -> Tensor:
        result = tensor.clone()
        result[keep] = next(rows)[keep]
        return result

    return map_tensors(mixed, other)


def row(batch: Any, index: int) -> Any:
    """The batch that holds one row alone."""
    return map_tensors(lambda t: t[index : index + 1], batch)


def row_repeated(batch: Any, index: int) -> Any:
    """A batch of as many rows, each of them row ``index``."""
    return map_tensors(lambda t: t[index].unsqueeze(0).expand_as(t).clone(), batch)


def trial(model: nn.Module, loss_fn: LossFn, batch: Any, seed: int = 0) -> tuple[Any, tuple[str, ...]]:
    """What ``loss_fn`` gives for a forward pass in the model's present mode, and the buffers that the pass changed.

    The model, its buffers and torch's generators are as before on return.
    """
    device = next(model.parameters()).device
    state = {f"model.{name}": value.detach().clone() for name, value in model.named_buffers()}
    state |= {f"model.{name}": p.detach().requires_grad_(p.requires_grad) for name, p in model.named_parameters()}
    watched = _Watched(model, loss_fn)
    with torch.enable_grad(), seeded(seed, device):
        losses = torch.func.functional_call(watched, state, (batch,))
    before = dict(model.named_buffers())
    changed = [name for name, value in watched.after.items() if name not in before or not _equal(value, before[name])]
    return losses.detach() if isinstance(losses, Tensor) else losses, tuple(changed)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode; on leaving, each has its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


def _tensors(batch: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(lambda t: found.append(t) or t, batch)
    return found


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
