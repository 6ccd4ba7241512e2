"""Ghost rules of functions with a transposed weight, in which input and gradient of the output change places.

The gradient of the weight W of ``x @ W`` is the transpose of the gradient of a ``linear`` weight: the same sum of outer
products, with input and output gradient exchanged. The same holds for transposed convolutions.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from tacita.gradients.rules.linear import LinearRule
from tacita.gradients.rules.rounding import SquaredNorms
from tacita.gradients.rules.rule import Call, Factors, LayerRule, LayerUse, Parameters, RowWeights


class TransposedRule(LayerRule):
    """A rule that exchanges input and output gradient for the weight, and leaves them as they are for the bias.

    Args:
        plain: The rule that serves both.
    """

    def __init__(self, plain: LayerRule) -> None:
        self.plain = plain

    @abstractmethod
    def read(self, *args: Any, **kwargs: Any) -> Call | None: ...

    def split(self, use: LayerUse) -> list[LayerUse]:
        (plain,) = self.plain.split(use)
        weight = replace(plain, names=("weight",), x=plain.grad, grad=plain.x, kept={})
        bias = replace(plain, names=("bias",), kept={})
        return [part for part in (weight, bias) if part.names[0] in use.names]

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        return self.plain.grads(use)

    def squared_norms(self, use: LayerUse) -> Mapping[str, SquaredNorms | Tensor]:
        return self.plain.squared_norms(use)

    def holds(self, use: LayerUse) -> bool:
        return self.plain.holds(use)

    def sums(self, use: LayerUse, weights: RowWeights) -> dict[str, Tensor]:
        return self.plain.sums(use, weights)

    def positions(self, use: LayerUse) -> int:
        return self.plain.positions(use)

    def reach(self, use: LayerUse) -> dict[str, Tensor]:
        return self.plain.reach(use)

    def factors(self, use: LayerUse) -> Factors | None:
        return self.plain.factors(use)

    def merged(self, uses: Sequence[LayerUse]) -> LayerUse | None:
        return self.plain.merged(uses)


class MatmulRule(TransposedRule):
    """A parameter of shape (in, out) on the right of a matrix product, for inputs (..., in)."""

    def __init__(self) -> None:
        super().__init__(LinearRule())

    def read(self, input: Tensor, other: Tensor) -> Call | None:
        if other.ndim != 2 or input.ndim < 2:
            return None
        return Call(input, {"weight": other}, _transposed_linear)


class AddmmRule(TransposedRule):
    """``bias + x @ weight``, the weight of shape (in, out)."""

    def __init__(self) -> None:
        super().__init__(LinearRule())

    def read(self, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Call | None:
        if beta != 1 or alpha != 1 or input.ndim != 1:
            return None
        return Call(mat1, {"weight": mat2, "bias": input}, _transposed_linear)


def _transposed_linear(x: Tensor, parameters: Parameters) -> Tensor:
    weight = parameters["weight"]
    assert weight is not None
    return F.linear(x, weight.t(), parameters.get("bias"))
