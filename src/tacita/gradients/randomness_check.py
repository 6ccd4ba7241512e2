"""Check that a model draws nothing at random (dropout), for tests whose result must be a function of the records.

The check looks at the modules and at losses of synthetic rows, never at data, so that its answer says nothing about
records.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from tacita.errors import UnsupportedModuleError
from tacita.gradients.functional import LossFn
from tacita.gradients.probe import trial
from tacita.gradients.seeds import generator_states


def check_draws_nothing(model: nn.Module, loss_fn: LossFn, probe: Any | None) -> None:
    """Raise ``UnsupportedModuleError`` if the model or the loss draws at random in the model's present mode.

    Args:
        model: Not modified.
        loss_fn: ``(model, batch) -> losses (batch,)``.
        probe: Synthetic rows on which the model runs. With ``None`` only the modules are checked.
    """
    found = _drawing_modules(model)
    if found or (probe is not None and draws_at_random(model, loss_fn, probe)):
        raise UnsupportedModuleError(
            f"the model draws at random ({', '.join(found) or 'seen on synthetic rows'}), and what is tested must be a "
            "function of the records alone. Put the model in eval mode while it is tested (model.eval()), or leave out "
            "what draws in every mode."
        )


def _drawing_modules(model: nn.Module) -> list[str]:
    return [
        f"{name!r}: {type(module).__name__}"
        for name, module in model.named_modules()
        if module.training and _chance(module) > 0
    ]


def _chance(module: nn.Module) -> float:
    """Return the probability that a module drops a value; 1 for a module that draws in another way, 0 for none."""
    if isinstance(module, _DropoutNd):
        return module.p
    if isinstance(module, nn.RReLU):
        return float(module.lower < module.upper)
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
        return float(module.dropout)
    return 0.0


def draws_at_random(model: nn.Module, loss_fn: LossFn, probe: Any) -> bool:
    """Return whether a pass moves a global generator, or two seeds give other losses (a generator of its own)."""
    moved: list[bool] = []

    device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def watched(watched_model: Any, batch: Any) -> Tensor:
        before = generator_states(device)
        losses = loss_fn(watched_model, batch)
        moved.append(generator_states(device) != before)
        return losses

    losses = [trial(model, watched, probe, seed)[0].nan_to_num() for seed in (0, 1)]
    return any(moved) or not torch.allclose(*losses, rtol=1e-3, atol=1e-6 * losses[0].abs().max().item())
