"""The rule of ``torch.nn.functional.embedding``.

The gradient of a sample has one row for each index that occurs in it: the sum of the output gradients at the positions
of that index. Positions are sorted by index, so that nothing of the vocabulary's size is held.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional as F

from tacita.errors import UnsupportedModuleError
from tacita.gradients.rules.outer import direct_squares
from tacita.gradients.rules.rounding import RowNorms, SquaredNorms, gamma, held, measure, squared_row_norms
from tacita.gradients.rules.rule import Call, Factors, LayerRule, LayerUse, Parameters, RowWeights
from tacita.gradients.weighted_sums import sums_by_index


class EmbeddingRule(LayerRule):
    """The weight of an embedding, for indices (batch, ...); rows of ``padding_idx`` have no gradient."""

    def read(  # noqa: PLR0917 - the arguments of the torch function
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Call | None:
        if max_norm is not None:
            raise UnsupportedModuleError(
                "max_norm of an embedding writes its weights during the forward pass. Build the embedding without it."
            )
        if scale_grad_by_freq:
            raise UnsupportedModuleError(
                "scale_grad_by_freq of an embedding counts over the batch. Build the embedding without it."
            )
        skipped = padding_idx if padding_idx is None or padding_idx >= 0 else len(weight) + padding_idx
        return Call(input, {"weight": weight}, _embedding, SimpleNamespace(padding_idx=skipped))

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        index, grad = _positions(use)
        vocabulary, width = use.shapes["weight"]
        found = sums_by_index(_apart(index, vocabulary), grad.reshape(-1, width), len(index) * vocabulary)
        return {"weight": found.view(len(index), vocabulary, width)}

    def squared_norms(self, use: LayerUse) -> dict[str, SquaredNorms]:
        index, grad = _positions(use)
        if index.shape[1] == 1:
            return {"weight": held(grad)}
        of_rows, of_grad = measure(_sum_by_index(index, grad)), measure(grad)
        ones = RowNorms(grad.new_ones(len(grad)), index.shape[1] ** 0.5, 0.0, torch.inf)  # sum_t |d_t| <= sqrt(T) |d|
        return {"weight": direct_squares(of_rows, ones, of_grad, 2 * gamma(grad.shape[1] + 4, grad.dtype), grad.dtype)}

    def holds(self, use: LayerUse) -> bool:
        return False

    def sums(self, use: LayerUse, weights: RowWeights) -> dict[str, Tensor]:
        _, weighted = use.weighted(weights)
        index, grad = _positions(replace(use, grad=weighted))
        vocabulary, width = use.shapes["weight"]
        return {"weight": sums_by_index(index.flatten(), grad.reshape(-1, width), vocabulary)}

    def positions(self, use: LayerUse) -> int:
        return use.x.shape[1:].numel()

    def reach(self, use: LayerUse) -> dict[str, Tensor]:
        return {"weight": squared_row_norms(_positions(use)[1]).sqrt_().sum(dim=1)}

    def factors(self, use: LayerUse) -> Factors:
        return Factors(*_positions(use))

    def merged(self, uses: Sequence[LayerUse]) -> LayerUse:
        index, grads = zip(*(_positions(use) for use in uses), strict=True)
        return replace(uses[0], x=torch.cat(index, dim=1), grad=torch.cat(grads, dim=1), kept={})


def _embedding(index: Tensor, parameters: Parameters) -> Tensor:
    weight = parameters["weight"]
    assert weight is not None
    return F.embedding(index, weight)


def _positions(use: LayerUse) -> tuple[Tensor, Tensor]:
    """Return indices (rows, positions) and output gradients (rows, positions, width), which are zero at padding."""
    rows = len(use.x)
    index = use.x.reshape(rows, -1)
    grad = use.grad.reshape(rows, -1, use.grad.shape[-1])
    if use.settings.padding_idx is not None:
        grad = torch.where(index.ne(use.settings.padding_idx).unsqueeze(-1), grad, 0.0)
    return index, grad


def _sum_by_index(index: Tensor, grad: Tensor) -> Tensor:
    """Sum each sample's output gradients over equal indices: (rows, positions, width), in some order."""
    order = index.argsort(dim=1)
    ordered = index.gather(1, order)
    slot = torch.zeros_like(index)
    slot[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(dim=1)
    slots = _apart(torch.empty_like(slot).scatter_(1, order, slot), index.shape[1])
    return sums_by_index(slots, grad.reshape(-1, grad.shape[-1]), len(slots)).view(grad.shape)


def _apart(index: Tensor, size: int) -> Tensor:
    """Return indices (rows, positions) below ``size`` as one row of indices that no two samples share."""
    return (index + torch.arange(len(index), device=index.device).unsqueeze(1) * size).flatten()
