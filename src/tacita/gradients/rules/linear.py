"""The rules of ``torch.nn.functional.linear`` and of ``torch.bmm``. ``outer.py`` has the norms."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from tacita.gradients.rules.outer import (
    gram_is_cheaper,
    outer_grads,
    row_norms,
    squares_of,
    sum_of_products,
    weight_is_small,
)
from tacita.gradients.rules.rounding import SquaredNorms, held, measure, of_norms, of_products, totals
from tacita.gradients.rules.rule import Call, Factors, LayerRule, LayerUse, Parameters, RowWeights

FEW = range(2, 5)  # outputs
MANY, BLOCKS = 1024, 8  # rows; blocks into which they are cut
NARROW = 64  # a product with fewer outputs takes as long as reading its input, which several products may share


class LinearRule(LayerRule):
    """The weight (out, in) and bias of ``torch.nn.functional.linear``, for inputs (batch, ..., in)."""

    def read(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call | None:
        if weight.ndim != 2:
            return None
        return Call(input, {"weight": weight, "bias": bias}, _linear)

    def split(self, use: LayerUse) -> list[LayerUse]:
        """Return the use with input and output gradient as (rows, positions, width), which the other methods take."""
        rows = use.x.shape[0]
        a, d = use.x.reshape(rows, -1, use.x.shape[-1]), use.grad.reshape(rows, -1, use.grad.shape[-1])
        return [LayerUse(use.settings, use.shapes, use.names, a.contiguous(), d.contiguous())]  # read several times

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        a, d = use.x, use.grad
        found = {"weight": outer_grads(a, d)} if "weight" in use.names else {}
        return found | ({"bias": d.sum(dim=1)} if "bias" in use.names else {})

    def squared_norms(self, use: LayerUse) -> dict[str, SquaredNorms]:
        a, d = use.x, use.grad
        if a.shape[1] == 1:  # the norm of an outer product is the product of the norms
            of_d, found = measure(d), dict[str, SquaredNorms]()
            if "weight" in use.names:
                found["weight"] = of_products(measure(a), of_d)
            return found | ({"bias": of_norms(of_d)} if "bias" in use.names else {})
        found = {"weight": self._weight(use, a, d)} if "weight" in use.names else {}
        if "bias" in use.names:
            use.kept["bias"] = d.sum(dim=1)
            found["bias"] = held(use.kept["bias"])
        return found

    def holds(self, use: LayerUse) -> bool:
        return use.x.shape[1] > 1 and ("weight" not in use.names or _is_held(use))

    def sums(self, use: LayerUse, weights: RowWeights) -> dict[str, Tensor]:
        kept = {n: weights.sum(use.kept[n]) for n in use.names if n in use.kept}
        if len(kept) == len(use.names):
            return kept
        bias_alone = "bias" in use.names and "bias" not in kept
        x, grad = use.weighted(weights) if bias_alone else use.weighted_once(weights)
        grad = grad.reshape(-1, grad.shape[-1])
        if "weight" in use.names and "weight" not in kept:
            kept["weight"] = _summed_products(grad, x.reshape(-1, x.shape[-1]))
        if bias_alone:
            kept["bias"] = grad.sum(dim=0)
        return kept

    def several_sums(self, use: LayerUse, weights: Sequence[RowWeights]) -> list[dict[str, Tensor]]:
        width = use.grad.shape[-1]
        together = 1 < len(weights) <= NARROW // width and all(one.plain for one in weights)
        if not together or use.kept or use.names not in {("weight", "bias"), ("weight",)}:
            return [self.sums(use, one) for one in weights]
        grads = torch.cat([one.times(use.grad) for one in weights], dim=-1).reshape(-1, len(weights) * width)
        products = grads.mT @ use.x.reshape(-1, use.x.shape[-1])
        found = [{"weight": part.clone()} for part in products.split(width)]
        if "bias" in use.names:
            for part, bias in zip(found, grads.sum(dim=0).split(width), strict=True):
                part["bias"] = bias.clone()
        return found

    def positions(self, use: LayerUse) -> int:
        return use.grad.shape[1:-1].numel()

    def reach(self, use: LayerUse) -> dict[str, Tensor]:
        a, d = use.x, use.grad
        found = {"weight": sum_of_products(a, d), "bias": row_norms(d).sum(dim=1)}
        return {name: found[name] for name in use.names if name not in use.kept}

    def factors(self, use: LayerUse) -> Factors | None:
        return Factors(use.grad, use.x) if use.names == ("weight",) else None

    def merged(self, uses: Sequence[LayerUse]) -> LayerUse:
        x, grad = torch.cat([use.x for use in uses], dim=1), torch.cat([use.grad for use in uses], dim=1)
        return replace(uses[0], x=x, grad=grad, kept={})

    def _weight(self, use: LayerUse, a: Tensor, d: Tensor) -> SquaredNorms:
        if not _is_held(use):
            return squares_of(a, d)
        use.kept["weight"] = outer_grads(a, d)  # serves the sums too
        return held(use.kept["weight"])


def _linear(x: Tensor, parameters: Parameters) -> Tensor:
    return F.linear(x, parameters["weight"], parameters.get("bias"))  # type: ignore[arg-type] # there is a weight


def _summed_products(grad: Tensor, x: Tensor) -> Tensor:
    """Return ``grad.mT @ x``; for few outputs and many rows in blocks, where one product uses one core."""
    whole = len(x) - len(x) % BLOCKS
    if grad.shape[1] not in FEW or whole < MANY or x.device.type != "cpu" or _on_intel():
        return grad.mT @ x
    blocks = [rows[:whole].view(BLOCKS, -1, rows.shape[1]) for rows in (grad.contiguous(), x)]
    found = (blocks[0].mT @ blocks[1]).sum(dim=0)
    return found if whole == len(x) else found.addmm_(grad[whole:].mT, x[whole:])


@cache
def _on_intel() -> bool:
    return "Intel" in torch.cpu.get_capabilities().get("cpu_name", "")


def _is_held(use: LayerUse) -> bool:
    shape = use.x.shape[1], use.x.shape[2], use.grad.shape[2]
    return weight_is_small(*shape) and not gram_is_cheaper(*shape)


class StackedRule(LayerRule):
    """The weights (stack, in, out) of ``torch.bmm``, for inputs (batch, stack, positions, in)."""

    def read(self, input: Tensor, mat2: Tensor) -> Call | None:
        return Call(input, {"weight": mat2}, _products) if input.ndim == mat2.ndim == 3 else None

    def split(self, use: LayerUse) -> list[LayerUse]:
        return [replace(use, x=use.x.contiguous(), grad=use.grad.contiguous())]  # each is read several times

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        return {"weight": outer_grads(use.grad, use.x)}

    def squared_norms(self, use: LayerUse) -> dict[str, Tensor]:
        """Return the sum over the stack, whose weights have no coordinate in common."""
        squares = totals([[squares_of(use.x.flatten(0, 1), use.grad.flatten(0, 1))]])[0]
        return {"weight": squares.view(len(use.x), -1).sum(dim=1)}

    def holds(self, use: LayerUse) -> bool:
        return False

    def sums(self, use: LayerUse, weights: RowWeights) -> dict[str, Tensor]:
        x, grad = (t.transpose(0, 1).flatten(1, 2) for t in use.weighted_once(weights))
        return {"weight": x.mT @ grad}

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
