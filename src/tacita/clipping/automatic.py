"""Automatic clipping: scale every sample's gradient to nearly the same norm, so that no threshold needs tuning.

Place: gradients -> [clipping.automatic] -> estimators. Norms and weights are both private.
Source: Bu, Wang, Zha, Karypis (2023), AUTO-S, https://arxiv.org/abs/2206.07136.
Differs from it in one point: a sample whose norm is not finite counts as zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita._validate import positive, threshold
from tacita.clipping.clipper import Clipper
from tacita.clipping.flat import bounded_quotient


@dataclass(frozen=True, kw_only=True)
class AutomaticClipper(Clipper):
    r"""Weight each sample by :math:`C / (\lVert g_i \rVert_2 + \gamma)`; the norm is over all parameters together.

    Guarantee: one sample adds a vector of L2 norm below ``max_grad_norm``, since :math:`n C / (n + \gamma) < C`. Small
    gradients are scaled *up*, by at most :math:`C / \gamma`.

    Attributes:
        max_grad_norm: The norm C to which large gradients are scaled, finite and >= 2^-40. If the learning rate is
            tuned, C is only a unit, and 1 will do.
        gamma: Stability constant, > 0, in the gradient's units; the paper uses 0.01.

    Example:
        >>> AutomaticClipper(max_grad_norm=1.0, gamma=0.5).weights(torch.tensor([[0.0], [1.5], [torch.nan]]))
        tensor([[2.0000],
                [0.5000],
                [0.0000]])
    """

    max_grad_norm: float
    gamma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_grad_norm", threshold("max_grad_norm", self.max_grad_norm))
        object.__setattr__(self, "gamma", positive("gamma", self.gamma, hint="The paper uses 0.01."))

    def groups(self, shapes: Mapping[str, torch.Size]) -> dict[str, tuple[str, ...]]:
        return {"all": tuple(shapes)}

    def weights(self, norms: Tensor) -> Tensor:
        return bounded_quotient(self.max_grad_norm, norms.double() + self.gamma, norms.dtype)

    def max_contribution(self, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        return {"all": self.max_grad_norm}
