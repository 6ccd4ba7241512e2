"""Models of a run: linear, a network with one hidden layer, or the user's own; and the loss of one row.

Place: [pipeline.models] -> train, load. Public: architecture and first weights know no row.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, nn

from tacita.gradients.alone import Loss
from tacita.tables.encoding import Encoder


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model is built from.

    Attributes:
        name: "linear", "mlp" or "package.module:callable".
        num_features: Inputs, >= 1.
        num_outputs: One a class; 1 for a regression.
        width: Hidden units of the mlp.
    """

    name: str
    num_features: int
    num_outputs: int
    width: int | None = None

    @classmethod
    def of(cls, name: str, width: int | None, encoder: Encoder) -> "ModelSpec":
        """The model that serves ``encoder``'s features and target; at least one feature and one output."""
        outputs = len(encoder.classes) if encoder.task == "classification" else 1
        return cls(name=name, num_features=max(encoder.num_features, 1), num_outputs=max(outputs, 1), width=width)

    def build(self, seed: int = 0) -> nn.Module:
        """The model with its first weights, drawn from ``seed``; torch's own generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.name == "linear":
                return _linear(self.num_features, self.num_outputs)
            if self.name == "mlp":
                return _mlp(self.num_features, self.width or 1, self.num_outputs)
            made = _own(self.name)(self.num_features, self.num_outputs)
        if not isinstance(made, nn.Module):
            raise ValueError(f"model must name a callable that returns an nn.Module, got a {type(made).__name__}.")
        return made


def check_model(name: str) -> None:
    """Raise ``ValueError`` if ``name`` is no model: asked before any budget is spent."""
    if ":" in name:
        _own(name)


def loss_fn(task: str | None) -> Callable[[nn.Module, Any], Tensor]:
    """``(model, (features, target, weight)) -> losses``: cross-entropy or squared error, times the row's weight."""
    return _cross_entropy if task == "classification" else _squared_error


def closed_form(model: nn.Module, loss: Callable[..., Tensor]) -> Loss | None:
    """The loss's name, if per-sample gradients have a closed form: a linear model with a loss from here."""
    names: dict[Any, Loss] = {_cross_entropy: "cross_entropy", _squared_error: "squared_error"}
    return names.get(loss) if isinstance(model, nn.Linear) else None


def outputs(model: nn.Module, features: Tensor, rows: int = 8192) -> Tensor:
    """The model's outputs, (rows, outputs), chunk by chunk, without gradients.

    With ``rows`` = 1 each is computed from a copy of its own row: no other row shows in its last bits.
    """
    model.eval()
    with torch.no_grad():
        parts = features.split(rows) if len(features) else [features[:0]]
        chunks = [model(part.clone()) for part in parts]
    return torch.cat(chunks)


def _cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    features, target, weight = batch
    return nn.functional.cross_entropy(model(features), target, reduction="none") * weight


def _squared_error(model: nn.Module, batch: Any) -> Tensor:
    features, target, weight = batch
    return (model(features).squeeze(-1) - target).square() * weight


def _linear(num_features: int, num_outputs: int) -> nn.Module:
    """From zero: the loss is convex, so any start will do, and zero is nobody's secret."""
    layer = nn.Linear(num_features, num_outputs)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def _mlp(num_features: int, width: int, num_outputs: int) -> nn.Module:
    """Bounded units learn better from clipped, noisy gradients (Papernot et al., 2020, https://arxiv.org/abs/2007.14191)."""
    return nn.Sequential(nn.Linear(num_features, width), nn.Tanh(), nn.Linear(width, num_outputs))


def _own(path: str) -> Callable[[int, int], nn.Module]:
    module_name, _, name = path.partition(":")
    if module_name.partition(".")[0] in sys.stdlib_module_names:  # a model's file from elsewhere may say os:kill
        raise ValueError(f"model must be a callable of your own, got {path!r} of Python's standard library.")
    try:
        made: Any = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError):
        raise ValueError(
            f"model must be importable as package.module:callable, got {path!r}: is its folder on PYTHONPATH?"
        ) from None
    if not callable(made):
        raise ValueError(f"model must name a callable (num_features, num_outputs) -> nn.Module, got {path!r}.")
    if str(getattr(made, "__module__", "")).partition(".")[0] != module_name.partition(".")[0]:
        raise ValueError(f"model must name a callable defined in its own package, got {path!r}, which is re-exported.")
    return cast("Callable[[int, int], nn.Module]", made)
