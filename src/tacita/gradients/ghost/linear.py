"""The rule of ``nn.Linear``.

Place: ghost engine. See ``outer.py`` for the norms.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tacita.gradients.ghost.outer import (
    gram_is_cheaper,
    outer_grads,
    squared_norms,
    sum_of_products,
    with_margin,
)
from tacita.gradients.ghost.rounding import add_radius, gamma, squared_row_norms
from tacita.gradients.ghost.rule import LayerRule, LayerUse, RowWeights, squared_norm_of

NARROW = 64  # outputs: a product with fewer takes as long as reading its input, which several may share


class LinearRule(LayerRule):
    """Weight and bias of a linear layer, for inputs (batch, ..., in)."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return ("weight", "bias")

    def misfit(self, use: LayerUse) -> str:
        return "" if use.x.ndim >= 2 else "its input has no batch axis"

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        a, d = _positions(use)
        found = {"weight": outer_grads(a, d)} if "weight" in use.names else {}
        return found | ({"bias": d.sum(dim=1)} if "bias" in use.names else {})

    def squared_norms(self, use: LayerUse, *, rounding_margin: bool = True) -> dict[str, Tensor]:
        a, d = _positions(use)
        if a.shape[1] == 1:
            return _single_position(use.names, a[:, 0], d[:, 0], rounding_margin)
        found = {}
        if "weight" in use.names:
            found["weight"] = self._weight(use, a, d, rounding_margin)
        if "bias" in use.names:
            use.kept["bias"] = d.sum(dim=1)
            squares = squared_norm_of(use.kept["bias"], rounding_margin=rounding_margin)
            found["bias"] = add_radius(squares, _bias_radius(d)) if rounding_margin else squares
        return found

    def sums(self, use: LayerUse, weights: RowWeights) -> dict[str, Tensor]:
        kept = {n: weights.sum(use.kept[n]) for n in use.names if n in use.kept}
        if len(kept) == len(use.names):
            return kept
        x, grad = use.weighted(weights)
        grad = grad.reshape(-1, grad.shape[-1])
        if "weight" in use.names and "weight" not in kept:
            kept["weight"] = grad.mT @ x.reshape(-1, x.shape[-1])
        if "bias" in use.names and "bias" not in kept:
            kept["bias"] = grad.sum(dim=0)
        return kept

    def several_sums(self, use: LayerUse, weights: Sequence[RowWeights]) -> list[dict[str, Tensor]]:
        width = use.grad.shape[-1]
        together = 1 < len(weights) <= NARROW // width and all(one.plain for one in weights)
        if not together or use.kept or use.names not in {("weight", "bias"), ("weight",)}:
            return super().several_sums(use, weights)
        grads = torch.cat([one.times(use.grad) for one in weights], dim=-1).reshape(-1, len(weights) * width)
        products = grads.mT @ use.x.reshape(-1, use.x.shape[-1])
        found = [{"weight": part.clone()} for part in products.split(width)]
        if "bias" in use.names:
            for part, bias in zip(found, grads.sum(dim=0).split(width), strict=True):
                part["bias"] = bias.clone()
        return found

    def radius(self, use: LayerUse) -> dict[str, Tensor | float]:
        a, d = _positions(use)
        twice = 2 * gamma(a.shape[1] + 4, d.dtype)
        return {"weight": twice * sum_of_products(a, d), "bias": 2 * _bias_radius(d)}

    def positions(self, use: LayerUse) -> int:
        return use.grad.shape[1:-1].numel()

    def reach(self, use: LayerUse) -> dict[str, Tensor]:
        a, d = _positions(use)
        found = {"weight": sum_of_products(a, d), "bias": squared_row_norms(d).sqrt_().sum(dim=1)}
        return {name: found[name] for name in use.names if name not in use.kept}

    def merged(self, uses: Sequence[LayerUse]) -> LayerUse:
        inputs, grads = zip(*(_positions(use) for use in uses), strict=True)
        return replace(uses[0], x=torch.cat(inputs, dim=1), grad=torch.cat(grads, dim=1), kept={})

    def _weight(self, use: LayerUse, a: Tensor, d: Tensor, rounding_margin: bool) -> Tensor:
        small = a.shape[2] * d.shape[2] <= a.shape[1] * (a.shape[2] + d.shape[2])
        if not small or gram_is_cheaper(a.shape[1], a.shape[2], d.shape[2]):
            return squared_norms(a, d, rounding_margin=rounding_margin)
        use.kept["weight"] = outer_grads(a, d)  # takes no more room than its factors, and serves the sums
        squares = squared_norm_of(use.kept["weight"], rounding_margin=rounding_margin)
        return with_margin(squares, sum_of_products(a, d), a.shape[1], a.dtype) if rounding_margin else squares


def _positions(use: LayerUse) -> tuple[Tensor, Tensor]:
    """Input and output gradient as (rows, positions, width)."""
    rows = use.x.shape[0]
    return use.x.reshape(rows, -1, use.x.shape[-1]), use.grad.reshape(rows, -1, use.grad.shape[-1])


def _single_position(names: tuple[str, ...], a: Tensor, d: Tensor, rounding_margin: bool) -> dict[str, Tensor]:
    r"""One position: :math:`\lVert d a^\top \rVert = \lVert d \rVert \lVert a \rVert`."""
    bias = squared_row_norms(d, rounding_margin=rounding_margin)
    found = {"bias": bias} if "bias" in names else {}
    if "weight" in names:
        found["weight"] = squared_row_norms(a, rounding_margin=rounding_margin).mul_(bias)
    return found


def _bias_radius(d: Tensor) -> Tensor:
    return gamma(d.shape[1] + 4, d.dtype) * squared_row_norms(d).sqrt_().sum(dim=1)
