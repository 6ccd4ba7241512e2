"""Flat clipping: bound the norm of one sample's gradient over all parameters.

Place: gradients -> [clipping.flat] -> estimators. Norms and weights are both private.
Source: Abadi et al. (2016), Algorithm 1, https://arxiv.org/abs/1607.00133.
Differs from it in one point: a sample whose norm is not finite counts as zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita._validate import positive
from tacita.clipping._rounding import clip_weights
from tacita.clipping.clipper import Clipper


@dataclass(frozen=True, kw_only=True)
class FlatClipper(Clipper):
    r"""Weight each sample by :math:`\min(1, C / \lVert g_i \rVert_2)`; the norm is over all parameters together.

    Guarantee: one sample adds a vector of L2 norm at most ``max_grad_norm`` to the weighted sum, whatever its gradient
    holds; the rounding of the weight and of its product with the gradient is included.

    Attributes:
        max_grad_norm: Clipping threshold C, finite and > 0, in the gradient's units.

    Example:
        >>> FlatClipper(max_grad_norm=1.0).weights(torch.tensor([[0.5], [4.0], [torch.inf]]))
        tensor([[1.0000],
                [0.2500],
                [0.0000]])
    """

    max_grad_norm: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_grad_norm", positive("max_grad_norm", self.max_grad_norm))

    def groups(self, shapes: Mapping[str, torch.Size]) -> dict[str, tuple[str, ...]]:
        return {"all": tuple(shapes)}

    def weights(self, norms: Tensor) -> Tensor:
        return clip_weights(self.max_grad_norm, norms)

    def max_contribution(self, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        return {"all": self.max_grad_norm}
