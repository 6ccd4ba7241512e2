"""Check that a model draws nothing at random (dropout), for tests whose result must be a function of the records.

The check looks at the modules and at losses of synthetic rows, never at data, so that its answer says nothing about
records.
"""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from tacita.errors import UnsupportedModuleError
from tacita.gradients.functional import LossFn
from tacita.gradients.probe import trial
from tacita.gradients.seeds import generator_state, generators_kept


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
        before = _states(device)
        losses = loss_fn(watched_model, batch)
        moved.append(_states(device) != before)
        return losses

    with generators_kept():
        losses = [trial(model, watched, probe, seed)[0].nan_to_num() for seed in (0, 1)]
    return any(moved) or not torch.allclose(*losses, rtol=1e-3, atol=1e-6 * losses[0].abs().max().item())


def _states(device: torch.device) -> tuple[Any, ...]:
    """Return the states of the global generators: torch's of the CPU and of ``device``, Python's and NumPy's."""
    devices = [torch.get_rng_state(), generator_state(device)]
    numpy = np.random.get_state(legacy=False)
    assert isinstance(numpy, dict)
    return [state.numpy().tobytes() for state in devices], repr(random.getstate()), _of_numpy(numpy)


def _of_numpy(state: dict[str, Any]) -> tuple[Any, ...]:
    inner = state["state"]
    return inner["key"].tobytes(), inner["pos"], state["has_gauss"]
