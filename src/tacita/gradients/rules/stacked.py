"""The rule of ``torch.bmm``: a stack of weights (stack, in, out), each for its own share of the input."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tacita.gradients.rules.outer import outer_grads, squared_norms, sum_of_products
from tacita.gradients.rules.rounding import gamma
from tacita.gradients.rules.rule import Call, LayerRule, LayerUse, Parameters, RowWeights


class StackedRule(LayerRule):
    """Weights (stack, in, out) that meet inputs (batch, stack, positions, in)."""

    def read(self, input: Tensor, mat2: Tensor) -> Call | None:
        return Call(input, {"weight": mat2}, _products) if input.ndim == mat2.ndim == 3 else None

    def split(self, use: LayerUse) -> list[LayerUse]:
        return [replace(use, x=use.x.contiguous(), grad=use.grad.contiguous())]  # each is read several times

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        return {"weight": outer_grads(use.grad, use.x)}

    def squared_norms(self, use: LayerUse, *, rounding_margin: bool = True) -> dict[str, Tensor]:
        """Return the sum over the stack, whose weights have no coordinate in common."""
        squares = squared_norms(use.x.flatten(0, 1), use.grad.flatten(0, 1), rounding_margin=rounding_margin)
        return {"weight": squares.view(len(use.x), -1).sum(dim=1)}

    def holds(self, use: LayerUse) -> bool:
        return False

    def sums(self, use: LayerUse, weights: RowWeights) -> dict[str, Tensor]:
        x, grad = (t.transpose(0, 1).flatten(1, 2) for t in use.weighted_once(weights))
        return {"weight": x.mT @ grad}

    def radius(self, use: LayerUse) -> dict[str, Tensor]:
        return {"weight": 2 * gamma(use.x.shape[2] + 4, use.x.dtype) * self._reach(use)}

    def positions(self, use: LayerUse) -> int:
        return use.x.shape[2]

    def reach(self, use: LayerUse) -> dict[str, Tensor]:
        return {} if "weight" in use.kept else {"weight": self._reach(use)}

    def merged(self, uses: Sequence[LayerUse]) -> LayerUse:
        x, grad = torch.cat([use.x for use in uses], dim=2), torch.cat([use.grad for use in uses], dim=2)
        return replace(uses[0], x=x, grad=grad, kept={})

    def _reach(self, use: LayerUse) -> Tensor:
        return sum_of_products(use.x.flatten(1, 2), use.grad.flatten(1, 2))


def _products(x: Tensor, parameters: Parameters) -> Tensor:
    """Multiply all records' inputs with each weight at once, so that no weight is copied for each record."""
    weight = parameters["weight"]
    assert weight is not None
    found = torch.bmm(x.transpose(0, 1).flatten(1, 2), weight)
    return found.unflatten(1, (len(x), -1)).transpose(0, 1)
