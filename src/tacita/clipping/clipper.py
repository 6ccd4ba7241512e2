"""What every clipper promises: weights from norms, and the largest contribution that follows.

Place: gradients -> [clipping] -> estimators. A weight rule never sees a gradient, so every engine serves it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor


class Clipper(ABC):
    """A weight rule over groups of parameters."""

    @abstractmethod
    def groups(self, shapes: Mapping[str, torch.Size]) -> dict[str, tuple[str, ...]]:
        """Group name -> the parameters under one threshold; together all of ``shapes``, each once."""

    @abstractmethod
    def weights(self, norms: Tensor) -> Tensor:
        """Weights in [0, inf) from norms, both (..., batch, groups); a norm that is not finite gets weight 0."""

    @abstractmethod
    def max_contribution(self, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        """Largest L2 norm one record adds, by group: ``weights(norm) * norm <= max_contribution`` for every norm."""
