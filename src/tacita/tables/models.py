"""The models of a run (linear, a network with one hidden layer, or the user's own) and the loss of one row.

Architecture and first weights depend on no row and are public.

The preprocessing (the encoder, what was bought, and the architecture) is public, too, and stored as strict JSON. It is
written before the training starts, so that a resumed run reads it and does not buy again.
"""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, nn

from tacita._files import replace_durably
from tacita.errors import TacitaError
from tacita.gradients.linear_model import Loss
from tacita.tables.encoding import Encoder
from tacita.tables.histograms import Survey


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The architecture of a model.

    Attributes:
        name: "linear", "mlp" or "package.module:callable".
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
            if self.name == "linear":
                return _linear(self.num_features, self.num_outputs)
            if self.name == "mlp":
                return _mlp(self.num_features, self.width or 1, self.num_outputs)
            made = _own(self.name)(self.num_features, self.num_outputs)
        if not isinstance(made, nn.Module):
            raise ValueError(f"model must name a callable that returns an nn.Module, got a {type(made).__name__}.")
        return made


def is_code(name: str) -> bool:
    """Return whether the model ``name`` is a callable to import, "package.module:callable".

    Example:
        >>> is_code("linear"), is_code("nets:wide")
        (False, True)
    """
    return name not in ("linear", "mlp")


def check_model(name: str) -> None:
    """Raise ``ValueError`` unless ``name`` is a model; called before any budget is spent."""
    if is_code(name):
        _own(name)


def loss_fn(task: str | None) -> Callable[[nn.Module, Any], Tensor]:
    """Return the loss of one row: cross-entropy or squared error, times the row's weight.

    It is called as ``(model, (features, target, weight)) -> losses`` of shape (batch,).
    """
    return _cross_entropy if task == "classification" else _squared_error


def closed_form(model: nn.Module, loss: Callable[..., Tensor]) -> Loss | None:
    """Return the name of the loss if per-sample gradients have a closed form, else ``None``.

    They have one for a linear model with a loss of this module.
    """
    names: dict[Any, Loss] = {_cross_entropy: "cross_entropy", _squared_error: "squared_error"}
    return names.get(loss) if isinstance(model, nn.Linear) else None


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


def _own(path: str) -> Callable[[int, int], nn.Module]:
    module_name, _, name = path.partition(":")
    if module_name.partition(".")[0] in sys.stdlib_module_names:  # a run's file from elsewhere may name os:kill
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


class Preprocessing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a prediction needs beside the weights.

    Attributes:
        encoder: Turns raw columns into features and the target.
        survey: What was bought about the columns; ``None`` if everything was declared.
        model: The architecture of the model.
        rows: The number of rows, declared or bought.
    """

    encoder: Encoder
    survey: Survey | None
    model: ModelSpec
    rows: float

    @property
    def constant(self) -> bool:
        """Whether the model is a constant, because no feature, or fewer than two classes, stood out of the noise."""
        return self.encoder.num_features == 0 or (
            self.encoder.task == "classification" and len(self.encoder.classes) < 2
        )

    @property
    def label_counts(self) -> dict[str, float]:
        """The bought number of rows of each class; empty if the classes were declared, or for a regression."""
        if self.survey is None or self.encoder.target is None or self.encoder.task != "classification":
            return {}
        found = [facts for facts in self.survey.columns if facts.column == self.encoder.target.column]
        return {name: max(count, 1.0) for name, count in found[0].values} if found else {}

    @property
    def guess(self) -> tuple[str, float] | None:
        """The most common label by bought counts, and its share of the rows; ``None`` if no labels were bought."""
        counts = self.label_counts
        if not counts:
            return None
        label = max(counts, key=lambda name: counts[name])
        return label, min(counts[label] / max(self.rows, 1.0), 1.0)

    def to_bytes(self) -> bytes:
        """Return strict JSON; the numbers come back bit for bit."""
        return (json.dumps(msgspec.to_builtins(self), indent=1, allow_nan=False) + "\n").encode()

    def save(self, path: Path) -> None:
        """Write the preprocessing to a file, whole or not at all."""
        replace_durably(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> "Preprocessing":
        """Read what :meth:`save` wrote.

        Raises:
            TacitaError: The file cannot be read, or was not written by :meth:`save`.
        """
        try:
            return cls.from_bytes(path.read_bytes())
        except OSError:
            raise TacitaError(f"{path.name} cannot be read, or was not written by this version of tacita.") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> "Preprocessing":
        """Read what :meth:`to_bytes` returned.

        Raises:
            TacitaError: The bytes are something else.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError):
            raise TacitaError("preprocessing.json was not written by this version of tacita.") from None
