"""Synthetic batches with the structure of a real one, on which a model and its loss are tried before any data is used.

Only shapes, dtypes and nesting are taken from the data, never a value.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tacita.gradients.batches import map_tensors, tensors_in
from tacita.gradients.functional import LossFn, ZeroedMemory, on_copies, trainable
from tacita.gradients.seeds import generator_states, seeded

ROWS = 3  # rows of a probe: one is watched, the others change
FILLS = ("mixed", "ones", "zeros")  # values of integers and flags; a model may not take "mixed" (an empty sequence)


def synthetic(batch: Any, rows: int, *, fill: str, seed: int) -> Any:
    """Make a batch of ``rows`` rows with the structure of ``batch``; the same arguments give the same rows.

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


def jittered(batch: Any) -> Any:
    """Return the batch with each floating-point value moved by a rounding, the same ones at each call."""
    generator = torch.Generator().manual_seed(0)

    def moved(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        up = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
        return tensor * (1 + (2 * up - 1) * torch.finfo(tensor.dtype).eps)

    return map_tensors(moved, batch)


def select(batch: Any, other: Any, keep: int) -> Any:
    """Return ``other`` with its row ``keep`` replaced by that of ``batch``."""
    rows = iter(tensors_in(batch))

    def mixed(tensor: Tensor) -> Tensor:
        result = tensor.clone()
        result[keep] = next(rows)[keep]
        return result

    return map_tensors(mixed, other)


def row(batch: Any, index: int) -> Any:
    """Return the batch that holds one row alone."""
    return map_tensors(lambda t: t[index : index + 1], batch)


def row_repeated(batch: Any, index: int) -> Any:
    """Return a batch of as many rows, each of them row ``index``."""
    return map_tensors(lambda t: t[index].unsqueeze(0).expand_as(t).clone(), batch)


def trial(model: nn.Module, loss_fn: LossFn, batch: Any, seed: int = 0) -> tuple[Any, tuple[str, ...]]:
    """Run a forward pass in the model's present mode; return its losses and the names of the tensors that it changed.

    On return the parameters and buffers of the model, and the global generators, are as before.
    """
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    device = next(iter(before.values())).device
    with torch.enable_grad(), ZeroedMemory(), seeded(seed, device), on_copies(model, trainable(model)) as (_, point):
        for parameter in point.values():
            parameter.requires_grad_()
        losses = loss_fn(model, batch)
        after = dict(model.named_parameters()) | dict(model.named_buffers())
    changed = [name for name, value in after.items() if name not in before or not _equal(value, before[name])]
    return losses.detach() if isinstance(losses, Tensor) else losses, tuple(changed)


def draws(model: nn.Module, loss_fn: LossFn, batch: Any) -> bool:
    """Return whether a pass draws or moves a global generator, or two seeds give other losses."""
    moved: list[bool] = []

    def watched(watched_model: Any, rows: Any) -> Tensor:
        before = generator_states()
        with _Draws() as operators:
            losses = loss_fn(watched_model, rows)
        moved.append(operators.seen or generator_states() != before)
        return losses

    losses = [trial(model, watched, batch, seed)[0].nan_to_num() for seed in (0, 1)]
    return any(moved) or not torch.allclose(*losses, rtol=1e-3, atol=1e-6 * losses[0].abs().max().item())


class _Draws(TorchDispatchMode):
    seen = False  # an operator that draws, be it nothing on these rows

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode; on leaving, each module has its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
