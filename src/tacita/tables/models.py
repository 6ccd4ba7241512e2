"""The models of a run (linear, a network with one hidden layer, or the user's own) and the loss of one row.

Architecture and first weights depend on no row and are public.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from tacita._named_model import named_callable, named_model
from tacita.linear import MultinomialLoss, MultipliedLoss, OutputLoss, SquaredLoss
from tacita.tables.encoding import Encoder


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The architecture of a model.

    Attributes:
        name: "linear", "additive" (linear on bins), "mlp" or "package.module:callable".
        num_features: The number of inputs, >= 1.
        num_outputs: The number of classes; 1 for a regression.
        width: The number of hidden units of the mlp; ``None`` for another model.
    """

    name: str
    num_features: int
    num_outputs: int
    width: int | None = None

    @classmethod
    def of(cls, name: str, width: int | None, encoder: Encoder) -> "ModelSpec":
        """Return the architecture for an encoder's features and target, with at least one input and one output."""
        outputs = len(encoder.classes) if encoder.task == "classification" else 1
        return cls(name=name, num_features=max(encoder.num_features, 1), num_outputs=max(outputs, 1), width=width)

    @property
    def is_code(self) -> bool:
        """Whether building the model imports and calls code that is not tacita's."""
        return is_code(self.name)

    def build(self, seed: int = 0) -> nn.Module:
        """Build the model with first weights drawn from ``seed``; torch's own generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.name in ("linear", "additive"):
                return _linear(self.num_features, self.num_outputs)
            if self.name == "mlp":
                return _mlp(self.num_features, self.width or 1, self.num_outputs)
            return named_model(self.name, self.num_features, self.num_outputs)


def is_code(name: str) -> bool:
    """Return whether the model ``name`` is a callable to import, "package.module:callable".

    Example:
        >>> is_code("linear"), is_code("nets:wide")
        (False, True)
    """
    return name not in ("linear", "additive", "mlp")


def check_model(name: str) -> None:
    """Raise ``ValueError`` unless ``name`` is a model; called before any budget is spent."""
    if is_code(name):
        named_callable(name)


def loss_fn(task: str | None) -> Callable[[nn.Module, Any], Tensor]:
    """Return the loss of one row: cross-entropy or squared error, times the row's weight.

    It is called as ``(model, (features, target, weight)) -> losses`` of shape (batch,).
    """
    return _cross_entropy if task == "classification" else _squared_error


def closed_form(model: nn.Module, loss: Callable[..., Tensor]) -> OutputLoss | None:
    """Return the loss of a linear model's outputs if per-sample gradients have a closed form, else ``None``.

    They have one for a linear model with a loss of this module.
    """
    if not isinstance(model, nn.Linear) or loss not in (_cross_entropy, _squared_error):
        return None
    return MultinomialLoss(model.out_features) if loss is _cross_entropy else MultipliedLoss(SquaredLoss(), 2.0)


def outputs(model: nn.Module, features: Tensor, rows: int = 8192) -> Tensor:
    """Compute the model's outputs, shape (rows, outputs), chunk by chunk and without gradients.

    With ``rows`` = 1 each output is computed from a copy of its own row, so that no other row shows in its last bits.
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
    """Return a linear layer with zero weights: the loss is convex, so that any public start will do."""
    layer = nn.Linear(num_features, num_outputs)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def _mlp(num_features: int, width: int, num_outputs: int) -> nn.Module:
    """Return a network with one hidden layer of tanh units.

    Bounded units learn better from clipped, noisy gradients (Papernot et al., 2020, https://arxiv.org/abs/2007.14191).
    """
    return nn.Sequential(nn.Linear(num_features, width), nn.Tanh(), nn.Linear(width, num_outputs))
