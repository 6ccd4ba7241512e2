"""What a layer's rule is: per-sample norms and weighted sums from the layer's input and its output's gradient.

Place: the ground of the ghost engine. Everything here is private.
Source: Goodfellow (2015), https://arxiv.org/abs/1510.01799; one backward pass for norms and sums after
Bu et al. (2023), https://arxiv.org/abs/2210.00038.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from tacita.errors import UnsupportedModuleError
from tacita.gradients.ghost.rounding import LONGEST_ROW, squared_row_norms


@dataclass(frozen=True)
class RowWeights:
    """Weights of the rows for one group.

    Attributes:
        values: Shape (rows,), in the dtype that products are taken in, >= 0.
        plain: Every weight is in [0, 1], and one of 0 has a finite row: no row needs masking, no product overflows.
    """

    values: Tensor
    plain: bool

    def times(self, rows: Tensor) -> Tensor:
        """Each row of ``rows`` (rows, ...) times its weight; zeros where the weight is 0, whatever the row holds."""
        column = (-1,) + (1,) * (rows.ndim - 1)
        weights = self.values.view(column)
        return rows * weights if self.plain else torch.where(weights != 0, rows * weights, 0.0)

    def sum(self, rows: Tensor) -> Tensor:
        """The weighted sum of ``rows`` over their first axis."""
        if not self.plain:
            present = (self.values != 0).view((-1,) + (1,) * (rows.ndim - 1))
            rows = torch.where(present, rows, 0.0)
        return (self.values.to(rows.dtype) @ rows.reshape(len(rows), -1)).view(rows.shape[1:])


@dataclass(frozen=True)
class LayerUse:
    """One call of a layer: what went in, and the gradient of the summed losses with respect to what came out.

    Attributes:
        module: The layer; rules read its settings, never its parameters' values.
        names: Its own trainable parameters, as the layer calls them ("weight", "bias").
        x: Input, batch axis first; float32 or better unless it holds integers.
        grad: Gradient of the output, batch axis first, float32 or better.
        kept: Per-sample gradients that the norms computed and the sums use again.
    """

    module: Any  # an nn.Module; its settings have the types of its class
    names: tuple[str, ...]
    x: Tensor
    grad: Tensor
    kept: dict[str, Tensor] = field(default_factory=dict)

    def rows(self, index: Tensor | slice) -> "LayerUse":
        """Some of the rows."""
        return replace(self, x=self.x[index], grad=self.grad[index], kept={})

    def only(self, names: Sequence[str]) -> "LayerUse":
        """Some of the parameters."""
        return replace(self, names=tuple(names))

    def wide(self) -> "LayerUse":
        """The same numbers in float64, so that sums of products are taken in it."""
        x = self.x.double() if self.x.is_floating_point() else self.x
        kept = {name: self.kept[name].double() for name in self.names if name in self.kept}
        return replace(self, x=x, grad=self.grad.double(), kept=kept)

    def weighted(self, weights: RowWeights) -> tuple[Tensor, Tensor]:
        """Input and weighted output gradient, such that every product of the two is finite where the norm was.

        A row of weight 0 is zeros in both (its input may hold NaN, and 0 * NaN is NaN), and so is a row that a
        weight above 1 would carry past the largest number: less than its share, never more.
        """
        grad = weights.times(self.grad)
        if weights.plain:
            return self.x, grad
        present = (weights.values != 0) & grad.flatten(1).sum(dim=1).isfinite()
        return _where_rows(present, self.x), _where_rows(present, grad)


def _where_rows(present: Tensor, rows: Tensor) -> Tensor:
    if not rows.is_floating_point():
        return rows
    return torch.where(present.view((-1,) + (1,) * (rows.ndim - 1)), rows, 0.0)


class LayerRule(ABC):
    """How one type of layer gives per-sample norms and weighted sums.

    A new rule needs :meth:`grads` only: the rest is computed from them. It is registered by
    :func:`tacita.gradients.ghost.register_rule` and checked by :func:`tacita.testing.check_layer_rule`.
    """

    @property
    @abstractmethod
    def parameters(self) -> tuple[str, ...]:
        """Names of the layer's parameters that the rule knows."""

    @abstractmethod
    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        """Per-sample gradients of ``use.names``, each (rows, *param)."""

    def obstacle(self, module: nn.Module) -> str:
        """Why a layer with these settings is not served ("sparse=True"); empty if it is."""
        return ""

    def misfit(self, use: LayerUse) -> str:
        """Why an input of this shape is not served; empty if it is. Shapes only: nothing of the content."""
        return ""

    def squared_norms(self, use: LayerUse, *, rounding_margin: bool = True) -> dict[str, Tensor]:
        """Squares of the gradients' norms by parameter, (rows,), float64.

        They are upper bounds of what :meth:`sums` adds for a row of weight 1. Without ``rounding_margin`` they are
        estimates, to compare engines by.
        """
        use.kept.update(self.grads(use))
        return {n: squared_norm_of(use.kept[n], rounding_margin=rounding_margin) for n in use.names}

    def sums(self, use: LayerUse, weights: RowWeights) -> dict[str, Tensor]:
        """Weighted sums of the gradients of ``use.names``, each of the parameter's shape."""
        grads = use.kept if all(n in use.kept for n in use.names) else self.grads(use)
        return {n: weights.sum(grads[n]) for n in use.names}

    def several_sums(self, use: LayerUse, weights: Sequence[RowWeights]) -> list[dict[str, Tensor]]:
        """:meth:`sums` for each of several weights."""
        return [self.sums(use, one) for one in weights]

    def radius(self, use: LayerUse) -> dict[str, Tensor | float]:
        """By how much :meth:`sums` may differ from :meth:`grads`, in norm, for a row of weight 1; (rows,) float64."""
        return dict.fromkeys(use.names, 0.0)

    def positions(self, use: LayerUse) -> int:
        """How many products of one sample :meth:`sums` adds up in a coordinate of a gradient that is not kept."""
        return 1

    def reach(self, use: LayerUse) -> dict[str, Tensor]:
        r"""For gradients that are not kept, upper bounds of the norms of those products, added up: (rows,) float64.

        For a linear layer :math:`\sum_t \lVert a_t \rVert \lVert d_t \rVert`. A sum in floating point is off by at most
        the unit roundoff times the number of roundings times that.

        Raises:
            UnsupportedModuleError: The rule does not know.
        """
        missing = [name for name in use.names if name not in use.kept]
        if missing:
            raise UnsupportedModuleError(
                f"{type(self).__name__} has no reach(), so that no bound is known for sums in floating point. "
                'Use method="vmap" or "loop".'
            )
        return {}

    def merged(self, uses: Sequence[LayerUse]) -> LayerUse | None:
        """Several calls of one layer as one call, if that is possible: an input with all their positions."""
        return None


def squared_norm_of(grads: Tensor, *, rounding_margin: bool = True) -> Tensor:
    """Squared norms of per-sample gradients that are held, (rows,), float64."""
    rows = grads.reshape(len(grads), -1)
    if rows.shape[1] > LONGEST_ROW:  # the longest trailing axes that may be summed in the tensor's own dtype
        axis = next((k for k in range(1, grads.ndim) if grads.shape[k:].numel() <= LONGEST_ROW), grads.ndim - 1)
        rows = grads.flatten(axis)
    squares = squared_row_norms(rows, rounding_margin=rounding_margin)
    return squares.flatten(1).sum(dim=1) if squares.ndim > 1 else squares
