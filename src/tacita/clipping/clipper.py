"""The interface of clippers: weights from norms, and the largest contribution that follows.

Place: gradients -> [clipping] -> estimators. A weight rule never sees a gradient, so it works with every engine.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from tacita import _validate


class Clipper(ABC):
    """A weight rule over groups of parameters.

    No clipper can be derived from another one, whose bound it would inherit; a clipper of your own derives from this
    class.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _validate.check_no_promise_inherited(
            cls, "Derive it from tacita.clipping.Clipper, and state its own max_contribution."
        )

    @abstractmethod
    def groups(self, shapes: Mapping[str, torch.Size]) -> dict[str, tuple[str, ...]]:
        """Return the parameters under each threshold, by group name; each parameter is in exactly one group."""

    @abstractmethod
    def weights(self, norms: Tensor) -> Tensor:
        """Return weights in [0, inf) for norms, both (..., batch, groups); a norm that is not finite gets weight 0."""

    @abstractmethod
    def max_contribution(self, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        """Return the largest L2 norm that one record adds, by group.

        For every norm, ``weights(norm) * norm <= max_contribution``.
        """
