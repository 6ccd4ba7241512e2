r"""Adam on the server: moments of released directions, which are post-processing and cost nothing.

Place: released sums -> [federated.server_adam] -> the next model.
Source: Reddi et al. (2021), "Adaptive Federated Optimization", https://arxiv.org/abs/2003.00295, Algorithm 2 (FedAdam,
which has no bias correction).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacita import _validate

Tensors = Mapping[str, Tensor]
Memory = Mapping[str, Tensors]  # what a server remembers beside its model, by kind and parameter; released


@dataclass(frozen=True, kw_only=True)
class ServerAdam:
    r"""Turn a released direction d into Adam's, :math:`m / (\sqrt{q} + \epsilon)`.

    :math:`m = \beta_1 m + (1-\beta_1) d` and :math:`q = \beta_2 q + (1-\beta_2) d^2`, both zero at first.

    Attributes:
        betas: beta_1 and beta_2, each in [0, 1).
        eps: The constant epsilon > 0 (the source's tau). Under noise it should be of the size of the noise.

    Example:
        >>> direction, memory = ServerAdam(betas=(0.9, 0.99), eps=1e-3)({"x": torch.ones(1)}, {})
        >>> round(direction["x"].item(), 5), round(memory["second moment"]["x"].item(), 5)
        (0.9901, 0.01)
    """

    betas: tuple[float, float]
    eps: float

    def __post_init__(self) -> None:
        first, second = self.betas
        _validate.below_one("betas", first)
        _validate.below_one("betas", second)
        _validate.positive("eps", self.eps)

    def __call__(self, direction: Tensors, memory: Memory) -> tuple[dict[str, Tensor], Memory]:
        """Return Adam's direction and what is remembered; nothing is changed in place."""
        zeros = {name: torch.zeros_like(x) for name, x in direction.items()}
        first, second = memory.get("first moment", zeros), memory.get("second moment", zeros)
        one, two = self.betas
        first = {name: one * first[name] + (1 - one) * x for name, x in direction.items()}
        second = {name: two * second[name] + (1 - two) * x.square() for name, x in direction.items()}
        adapted = {name: first[name] / (second[name].sqrt() + self.eps) for name in direction}
        return adapted, {**memory, "first moment": first, "second moment": second}


def stepped(
    params: Tensors, direction: Tensors, lr: float, adam: ServerAdam | None, memory: Memory
) -> tuple[dict[str, Tensor], Memory]:
    """Return the model after a step against ``direction``, or against Adam's, and what the server remembers."""
    if adam is not None:
        direction, memory = adam(direction, memory)
    return {name: x - lr * direction[name] for name, x in params.items()}, memory
