"""Linear models on a table: per-sample gradients in closed form, each of which depends on its row alone.

Everything here is private. See :mod:`tacita.gradients.row_arithmetic` for the arithmetic.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tacita.gradients.batches import tensors_in
from tacita.gradients.data import as_rows
from tacita.gradients.engine import Engine, GradientSource, Groups, Rule, Shapes, Sums
from tacita.gradients.row_arithmetic import exp_by_row, tree_sum
from tacita.gradients.weighted_sums import group_norms, weight_arrays, weighted_sum

Loss = Literal["cross_entropy", "squared_error"]
CHUNK = 2**21  # elements of per-sample gradients at once


class LinearEngine(Engine):
    r"""The engine of a linear model, whose per-sample gradients have a closed form.

    They are :math:`e_i x_i^\top` for the weight and :math:`e_i` for the bias, where :math:`e_i` is the gradient of row
    i's loss with respect to its outputs. A row's bits depend on that row alone.
    """

    def __init__(
        self, loss: Loss, params: Mapping[str, Tensor], rows: tuple[Tensor, Tensor, Tensor], labels: Tensor
    ) -> None:
        self._loss: Loss = loss
        self._params = {name: p.detach() for name, p in params.items()}
        self._rows = rows
        self._labels = labels

    @property
    def shapes(self) -> Shapes:
        return {name: p.shape for name, p in self._params.items()}

    @property
    def labels(self) -> Tensor:
        return self._labels

    def weighted_sums(self, rule: Rule, groups: Groups) -> Sums:
        grads = self._grads(*self._rows)
        norms = group_norms(grads, groups)
        values = tuple(weighted_sum(grads, weights, groups) for weights in weight_arrays(rule, norms))
        return Sums(values=values, norms=norms)

    def norms(self, groups: Groups) -> Tensor:
        empty = torch.zeros(0, len(groups), dtype=torch.float64)
        return torch.cat([empty, *(group_norms(grads, groups) for grads in self.materialise())])

    def materialise(self) -> Iterator[dict[str, Tensor]]:
        height = max(1, CHUNK // max(1, self._params["weight"].numel()))
        for start in range(0, len(self._labels), height):
            yield self._grads(*(part[start : start + height] for part in self._rows))

    def _grads(self, features: Tensor, target: Tensor, weight: Tensor) -> dict[str, Tensor]:
        features = features.double()
        outputs = tree_sum(features.unsqueeze(1) * self._params["weight"].double())
        if "bias" in self._params:
            outputs = outputs + self._params["bias"].double()
        error = _errors(self._loss, outputs, target) * weight.double().unsqueeze(-1)
        found = {"weight": error.unsqueeze(2) * features.unsqueeze(1), "bias": error}
        return {name: found[name] for name in self._params}


def _errors(loss: Loss, outputs: Tensor, target: Tensor) -> Tensor:
    """Return the gradient of each row's loss with respect to its outputs."""
    if loss == "squared_error":
        return 2 * (outputs - target.double().unsqueeze(-1))
    shares = exp_by_row(outputs - outputs.amax(dim=-1, keepdim=True))
    shares = shares / tree_sum(shares.clone()).unsqueeze(-1)
    classes = outputs.shape[-1]
    return shares - nn.functional.one_hot(target.clamp(0, classes - 1), classes)


class LinearSource(GradientSource):
    """Make engines of a linear model on a table: float64, closed forms, each row by itself.

    Args:
        model: ``nn.Linear``; not modified.
        loss: "cross_entropy" over its outputs, or "squared_error" of its one output.
        dataset: Features (rows, in), targets (rows,), weights (rows,) that multiply the losses, in this order; in a
            tuple, mapping or dataclass.

    Example:
        >>> data = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0]), torch.ones(1)
        >>> source = LinearSource(nn.Linear(2, 1), "squared_error", data)
        >>> engine = source.engine({"weight": torch.zeros(1, 2), "bias": torch.zeros(1)}, np.array([0]))
        >>> next(engine.materialise())["weight"]
        tensor([[[ -6., -12.]]], dtype=torch.float64)
    """

    def __init__(self, model: nn.Linear, loss: Loss, dataset: Any) -> None:
        if not isinstance(model, nn.Linear):
            raise TypeError(f"model must be an nn.Linear, got {type(model).__name__}.")
        if loss not in ("cross_entropy", "squared_error"):
            raise ValueError(f"loss must be cross_entropy or squared_error, got {loss!r}.")
        if loss == "squared_error" and model.out_features != 1:
            raise ValueError(f"loss = squared_error needs a model with one output, got {model.out_features}.")
        self.model: nn.Linear = model
        self._loss: Loss = loss
        self._rows = as_rows(dataset, None)

    @property
    def shapes(self) -> Shapes:
        return {name: p.shape for name, p in self.model.named_parameters() if p.requires_grad}

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    def engine(
        self, params: Mapping[str, Tensor], indices: np.ndarray, *, query: int | None = None, seed: int | None = None
    ) -> LinearEngine:
        labels = torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64))
        features, target, weight = tensors_in(self._rows.fetch(labels.numpy(), 0))
        return LinearEngine(self._loss, params, (features, target, weight), labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={self.model!r}, loss={self._loss!r})"
