"""The rule of ``nn.Embedding``.

Place: ghost engine. One sample's gradient has one row for each index that occurs in it: the sum of the output gradients
at the positions where it does. Positions are sorted by index, so that nothing of the vocabulary's size is held.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tacita.gradients.ghost.rounding import add_radius, gamma, squared_row_norms
from tacita.gradients.ghost.rule import LayerRule, LayerUse, RowWeights


class EmbeddingRule(LayerRule):
    """Weight of an embedding, for indices (batch, ...); rows of ``padding_idx`` have no gradient."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return ("weight",)

    def obstacle(self, module: Any) -> str:
        if module.max_norm is not None:
            return "max_norm changes the weights during the forward pass"
        if module.scale_grad_by_freq:
            return "scale_grad_by_freq counts indices over the batch, and so mixes samples"
        return "sparse=True gives sparse gradients" if module.sparse else ""

    def misfit(self, use: LayerUse) -> str:
        return "" if use.x.ndim >= 1 else "its input has no batch axis"

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        index, grad = _positions(use)
        vocabulary, width = use.module.weight.shape
        found = grad.new_zeros(len(index), vocabulary, width)
        return {"weight": found.scatter_add_(1, index.unsqueeze(-1).expand_as(grad), grad)}

    def squared_norms(self, use: LayerUse, *, rounding_margin: bool = True) -> dict[str, Tensor]:
        index, grad = _positions(use)
        if index.shape[1] == 1:
            return {"weight": squared_row_norms(grad[:, 0], rounding_margin=rounding_margin)}
        rows = _sum_by_index(index, grad)
        squares = squared_row_norms(rows, rounding_margin=rounding_margin).sum(dim=1)
        return {"weight": add_radius(squares, _radius(grad)) if rounding_margin else squares}

    def sums(self, use: LayerUse, weights: RowWeights) -> dict[str, Tensor]:
        _, weighted = use.weighted(weights)
        index, grad = _positions(replace(use, grad=weighted))
        total = grad.new_zeros(use.module.weight.shape)
        return {"weight": total.index_add_(0, index.flatten(), grad.reshape(-1, grad.shape[-1]))}

    def radius(self, use: LayerUse) -> dict[str, Tensor | float]:
        return {"weight": _radius(_positions(use)[1])}

    def positions(self, use: LayerUse) -> int:
        return use.x.shape[1:].numel()

    def reach(self, use: LayerUse) -> dict[str, Tensor]:
        return {"weight": squared_row_norms(_positions(use)[1]).sqrt_().sum(dim=1)}

    def merged(self, uses: Sequence[LayerUse]) -> LayerUse:
        index, grads = zip(*(_positions(use) for use in uses), strict=True)
        return replace(uses[0], x=torch.cat(index, dim=1), grad=torch.cat(grads, dim=1), kept={})


def _positions(use: LayerUse) -> tuple[Tensor, Tensor]:
    """Indices (rows, positions) and output gradients (rows, positions, width), zero where the index is padding."""
    rows = len(use.x)
    index = use.x.reshape(rows, -1)
    grad = use.grad.reshape(rows, -1, use.grad.shape[-1])
    if use.module.padding_idx is not None:
        grad = torch.where(index.ne(use.module.padding_idx).unsqueeze(-1), grad, 0.0)
    return index, grad


def _sum_by_index(index: Tensor, grad: Tensor) -> Tensor:
    """For each sample the sums of output gradients over equal indices, (rows, positions, width), in some order."""
    order = index.argsort(dim=1)
    ordered = index.gather(1, order)
    slot = torch.zeros_like(index)
    slot[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(dim=1)
    slots = torch.empty_like(slot).scatter_(1, order, slot)
    slots += torch.arange(len(index), device=index.device).unsqueeze(1) * index.shape[1]
    flat = grad.reshape(-1, grad.shape[-1])
    return torch.zeros_like(flat).index_add_(0, slots.flatten(), flat).view(grad.shape)


def _radius(grad: Tensor) -> Tensor:
    r"""Rounding of the sums over equal indices, in the norm and in the sum: :math:`2 \gamma_T \sum_t |d_t|`."""
    return squared_row_norms(grad).sqrt_().sum(dim=1).mul_(2 * gamma(grad.shape[1] + 4, grad.dtype))
