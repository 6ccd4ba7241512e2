r"""Arithmetic in which a row's bits depend on that row alone, and linear models in it.

Place: [gradients], for hardened sums. Private. Reason and proof: docs/derivations/hardened-noise.md, "Companions".

A matrix product, a reduction or an exponential gives a row other last bits at another place of a batch, or beside other
rows: kernels choose their order of summation, and the code for what is left at the end, by shape. One record more or
less then shows in the bits of all others, and a sum of whole steps moves by more than one record. IEEE addition,
multiplication, division and root of single numbers have one result wherever they are computed; here is nothing else.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from tacita.gradients.engine import Engine, Groups, Rule, Shapes, Source, Sums
from tacita.gradients.rows import BLOCK, group_norms, round_up, weight_arrays, weighted_sum

Loss = Literal["cross_entropy", "squared_error"]
CHUNK = 2**21  # elements of per-sample gradients at once
LEAST_EXPONENT = -700.0  # exp of it is 1e-304
LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")


def tree_sum(terms: Tensor) -> Tensor:
    """Sum over the last axis by halves, in an order that its length alone decides; overwrites ``terms``.

    Example:
        >>> tree_sum(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
        tensor([ 6., 15.])
    """
    length = terms.shape[-1]
    if not length:
        return terms.new_zeros(terms.shape[:-1])
    while length > 1:
        half = (length + 1) // 2
        terms[..., : length - half] += terms[..., half:length]
        length = half
    return terms[..., 0].clone()


def norms_alone(grads: Mapping[str, Tensor], groups: Groups, lead: int = 1) -> Tensor:
    """Upper bounds as ``rows.group_norms`` has them, each row summed by itself: (*rows, groups), float64."""
    columns = []
    for names in groups.values():
        flat = [grads[name].reshape(*grads[name].shape[:lead], grads[name].shape[lead:].numel()) for name in names]
        total = sum((_squares(rows) for rows in flat[1:]), _squares(flat[0]))
        columns.append(round_up(total.sqrt(), sum(rows.shape[-1] for rows in flat)))
    return torch.stack(columns, dim=-1)


def _squares(rows: Tensor) -> Tensor:
    flat = rows.reshape(rows.shape[:-1].numel(), rows.shape[-1])
    height = max(1, BLOCK // max(1, flat.shape[1]))
    parts = [tree_sum(block.double().square()) for block in flat.split(height)]
    return torch.cat(parts).reshape(rows.shape[:-1])


def exp_alone(x: Tensor) -> Tensor:
    """exp of float64 numbers <= 0, to 1e-15, in additions and multiplications; what is below -700 counts as -700.

    Example:
        >>> x = torch.tensor([0.0, -1.0, -20.0], dtype=torch.float64)
        >>> bool(((exp_alone(x) / x.exp() - 1).abs() < 1e-15).all())
        True
    """
    x = x.clamp(min=LEAST_EXPONENT)
    whole = torch.round(x * (1 / math.log(2)))
    rest = (x - whole * LN2_HIGH) - whole * LN2_LOW
    total = torch.full_like(rest, 1 / math.factorial(13))
    for k in range(12, -1, -1):
        total = total * rest
        total = total + 1 / math.factorial(k)
    power = ((whole.nan_to_num(0.0).to(torch.int64) + 1023) << 52).view(torch.float64)
    return total * power


class LinearEngine(Engine):
    r"""Per-sample gradients of a linear model in closed form: :math:`e_i x_i^\top` and :math:`e_i`, :math:`e_i` the
    gradient of row i's loss with respect to its outputs. A row's bits depend on that row alone.
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
    """Gradient of each row's loss with respect to its outputs."""
    if loss == "squared_error":
        return 2 * (outputs - target.double().unsqueeze(-1))
    shares = exp_alone(outputs - outputs.amax(dim=-1, keepdim=True))
    shares = shares / tree_sum(shares.clone()).unsqueeze(-1)
    classes = outputs.shape[-1]
    return shares - nn.functional.one_hot(target.clamp(0, classes - 1), classes)


class LinearSource(Source):
    """Makes engines of a linear model on a table: float64, closed forms, each row on its own.

    Args:
        model: ``nn.Linear``; not modified.
        loss: "cross_entropy" over its outputs, or "squared_error" of its one output.
        dataset: Features (rows, in), targets (rows,), weights (rows,) that multiply the losses.

    Example:
        >>> data = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0]), torch.ones(1)
        >>> source = LinearSource(nn.Linear(2, 1), "squared_error", data)
        >>> engine = source.engine({"weight": torch.zeros(1, 2), "bias": torch.zeros(1)}, np.array([0]))
        >>> next(engine.materialise())["weight"]
        tensor([[[ -6., -12.]]], dtype=torch.float64)
    """

    def __init__(self, model: nn.Linear, loss: Loss, dataset: tuple[Tensor, Tensor, Tensor]) -> None:
        if not isinstance(model, nn.Linear):
            raise TypeError(f"model must be an nn.Linear, got {type(model).__name__}.")
        if loss not in ("cross_entropy", "squared_error"):
            raise ValueError(f"loss must be cross_entropy or squared_error, got {loss!r}.")
        if loss == "squared_error" and model.out_features != 1:
            raise ValueError(f"loss = squared_error needs a model with one output, got {model.out_features}.")
        self.model = model
        self._loss: Loss = loss
        self._dataset = dataset

    @property
    def shapes(self) -> Shapes:
        return {name: p.shape for name, p in self.model.named_parameters() if p.requires_grad}

    @property
    def num_rows(self) -> int:
        return len(self._dataset[0])

    def engine(
        self, params: Mapping[str, Tensor], indices: np.ndarray, *, query: int | None = None, seed: int | None = None
    ) -> LinearEngine:
        labels = torch.from_numpy(np.ascontiguousarray(indices, dtype=np.int64))
        features, target, weight = (part[labels] for part in self._dataset)
        return LinearEngine(self._loss, params, (features, target, weight), labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(model={self.model!r}, loss={self._loss!r})"
