"""The rules of ``nn.LayerNorm`` and ``nn.GroupNorm``.

Place: ghost engine. Scale and shift are vectors: their per-sample gradients are smaller than the activations, so they
are held, and the sums are taken from them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from tacita.gradients.ghost.rounding import LONGEST_WORST_CASE, add_radius, gamma
from tacita.gradients.ghost.rule import LayerRule, LayerUse, squared_norm_of


@dataclass(frozen=True)
class ScaleAndShiftRule(LayerRule):
    """A normalisation followed by a scale and a shift: sums over positions of ``grad * normalised`` and of ``grad``.

    Attributes:
        normalised: (module, input) -> what the scale multiplies.
        summed_axes: (module, input) -> axes of the input that share a scale, the batch axis not among them.
        least_axes: Axes that an input has at least, by module, the batch axis among them.
    """

    normalised: Callable[[Any, Tensor], Tensor]
    summed_axes: Callable[[Any, Tensor], tuple[int, ...]]
    least_axes: Callable[[Any], int]

    @property
    def parameters(self) -> tuple[str, ...]:
        return ("weight", "bias")

    def misfit(self, use: LayerUse) -> str:
        return "" if use.x.ndim >= self.least_axes(use.module) else "its input has no batch axis"

    def grads(self, use: LayerUse) -> dict[str, Tensor]:
        return {name: self._summed(use, self._terms(use, name)) for name in use.names}

    def squared_norms(self, use: LayerUse, *, rounding_margin: bool = True) -> dict[str, Tensor]:
        found = {}
        for name in use.names:
            terms = self._terms(use, name)
            use.kept[name] = self._summed(use, terms)
            squares = squared_norm_of(use.kept[name], rounding_margin=rounding_margin)
            positions = terms.numel() // max(1, use.kept[name].numel())
            worst_case = rounding_margin and 1 < positions <= LONGEST_WORST_CASE
            found[name] = add_radius(squares, _radius(terms, positions)) if worst_case else squares
        return found

    def _terms(self, use: LayerUse, name: str) -> Tensor:
        return use.grad * self.normalised(use.module, use.x) if name == "weight" else use.grad

    def _summed(self, use: LayerUse, terms: Tensor) -> Tensor:
        axes = self.summed_axes(use.module, use.x)
        return terms.sum(dim=axes) if axes else terms


def _radius(terms: Tensor, positions: int) -> Tensor:
    r""":math:`\gamma_T \sum_t |p_t| \le \gamma_T \sqrt{T} \lVert p \rVert` for the sum of T terms :math:`p_t`."""
    return squared_norm_of(terms).mul_(positions).sqrt_().mul_(gamma(positions + 4, terms.dtype))


LAYER_NORM = ScaleAndShiftRule(
    normalised=lambda module, x: F.layer_norm(x, module.normalized_shape, eps=module.eps),
    summed_axes=lambda module, x: tuple(range(1, x.ndim - len(module.normalized_shape))),
    least_axes=lambda module: 1 + len(module.normalized_shape),
)
GROUP_NORM = ScaleAndShiftRule(
    normalised=lambda module, x: F.group_norm(x, module.num_groups, eps=module.eps),
    summed_axes=lambda module, x: tuple(range(2, x.ndim)),
    least_axes=lambda module: 2,
)
