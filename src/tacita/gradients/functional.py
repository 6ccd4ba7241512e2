"""A model and its loss as a function of the parameters, without side effect on the model.

Place: the ground of the engines of networks: each of them evaluates losses through here.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tacita.errors import UnsupportedModuleError

LossFn = Callable[[Any, Any], Tensor]  # (model, batch) -> losses (batch,)
PER_SAMPLE = 'Pass reduction="none" and average over all axes but the first'  # the way out of a wrong shape


class _LossModule(nn.Module):
    """``loss_fn`` around the model as one module, so that calls of submodules see the substituted parameters too."""

    def __init__(self, model: nn.Module, loss_fn: LossFn):
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn

    def forward(self, batch: Any) -> Tensor:
        return self.loss_fn(self.model, batch)


def losses_at(model: nn.Module, loss_fn: LossFn, params: Mapping[str, Tensor], batch: Any, size: int) -> Tensor:
    """Losses of ``batch``, shape ``(size,)``, with ``params`` (names of ``model``) in place of the model's own.

    Tied parameters are replaced together, whichever of their names is given. The model is as before on return.

    Raises:
        UnsupportedModuleError: ``loss_fn`` did not return one loss a sample.
    """
    named = {f"model.{name}": value for name, value in params.items()}
    losses = torch.func.functional_call(_LossModule(model, loss_fn), named, (batch,))
    return check_losses(losses, size)


def check_losses(losses: Any, size: int) -> Tensor:
    """Return ``losses`` if it is a floating-point tensor of shape ``(size,)``; the message tells shapes only."""
    if not is_per_sample(losses, size):
        raise UnsupportedModuleError(
            f"loss_fn(model, batch) must return one floating-point loss a sample, shape (batch,) = ({size},), "
            f"got {described(losses)}. {PER_SAMPLE}."
        )
    return losses


def is_per_sample(losses: Any, size: int) -> bool:
    """Whether ``losses`` has the shape and kind of one loss a sample."""
    return isinstance(losses, Tensor) and losses.shape == (size,) and losses.is_floating_point()


def described(losses: Any) -> str:
    """What ``losses`` is, without a value."""
    if isinstance(losses, Tensor):
        return f"shape {tuple(losses.shape)}, {losses.dtype}"
    return type(losses).__name__


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Parameters a gradient is taken in, detached: name -> value. A tied one appears once, under its first name."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
