r"""Averaging of iterates: :math:`\bar w = \frac{1}{T - t_0} \sum_{t > t_0} w_t`.

Place: below the line; post-processing of releases, so it costs no privacy.
Source: Polyak and Juditsky (1992); the average of the last part as in Rakhlin, Shamir, Sridharan (2012), suffix
averaging, https://arxiv.org/abs/1109.5647.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tacita import _validate


class SuffixAverage:
    """Running mean of the iterates after the first ``skip`` of them.

    Args:
        params: Parameters by name; read at each :meth:`update`, never written until :meth:`copy_to`.
        skip: Iterates left out at the start, >= 0.

    Example:
        >>> w = {"w": torch.zeros(1)}
        >>> average = SuffixAverage(w, skip=1)
        >>> for value in (5.0, 1.0, 2.0):
        ...     average.update({"w": torch.tensor([value])})
        >>> average.mean["w"]
        tensor([1.5000])
    """

    def __init__(self, params: Mapping[str, Tensor], *, skip: int) -> None:
        self.skip = _validate.count("skip", skip, at_least=0)
        self.seen = 0
        self.mean = {name: p.detach().clone() for name, p in params.items()}

    def update(self, params: Mapping[str, Tensor]) -> None:
        """Take one more iterate into account."""
        self.seen += 1
        if self.seen <= self.skip:
            return
        weight = 1.0 / (self.seen - self.skip)
        for name, mean in self.mean.items():
            mean.lerp_(params[name].detach(), weight)

    def copy_to(self, params: Mapping[str, Tensor]) -> None:
        """Write the mean into ``params``; nothing if no iterate was averaged yet."""
        if self.seen <= self.skip:
            return
        with torch.no_grad():
            for name, mean in self.mean.items():
                params[name].copy_(mean)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"seen": self.seen, "mean": self.mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.seen = int(state["seen"])
        for name, mean in self.mean.items():
            mean.copy_(state["mean"][name])
