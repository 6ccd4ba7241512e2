r"""Averages of iterates: the suffix average :math:`\frac{1}{T - t_0} \sum_{t > t_0} w_t` and an exponential average.

Averaging is post-processing of releases, so it costs no privacy.
Source: Polyak and Juditsky (1992); suffix averaging: Rakhlin, Shamir and Sridharan (2012),
https://arxiv.org/abs/1109.5647.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tacita import _validate
from tacita.errors import ResumeError


class SuffixAverage:
    """Running mean of all iterates but the first ``skip``.

    Args:
        params: Parameters by name; only :meth:`copy_to` writes to parameters.
        skip: Number of iterates to leave out at the start, >= 0.

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
        """Write the mean into ``params``; do nothing if no iterate was averaged yet."""
        if self.seen <= self.skip:
            return
        with torch.no_grad():
            for name, mean in self.mean.items():
                params[name].copy_(mean)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"skip": self.skip, "seen": self.seen, "mean": self.mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`.

        Raises:
            ResumeError: The state is that of an average with another ``skip``.
        """
        if state["skip"] != self.skip:
            raise ResumeError(f"skip must be as in the run to resume, {state['skip']}, got {self.skip}.")
        self.seen = int(state["seen"])
        for name, mean in self.mean.items():
            mean.copy_(state["mean"][name])


class ExponentialAverage:
    r"""Exponentially weighted mean of the iterates, :math:`\bar w_t \propto \sum_{s \le t} d^{\,t-s} w_s`.

    The weights of the iterates add up to 1 from the first one on, so the starting point has no weight.

    Args:
        params: Parameters by name; only :meth:`copy_to` writes to parameters.
        decay: d in [0, 1); about the last 1 / (1 - d) iterates count.

    Example:
        >>> w = {"w": torch.zeros(1)}
        >>> average = ExponentialAverage(w, decay=0.5)
        >>> for value in (1.0, 4.0):
        ...     average.update({"w": torch.tensor([value])})
        >>> average.mean["w"]  # (0.5 * 1 + 1 * 4) / 1.5
        tensor([3.])
    """

    def __init__(self, params: Mapping[str, Tensor], *, decay: float) -> None:
        self.decay = _validate.below_one("decay", decay)
        self.seen = 0
        self.mean = {name: p.detach().clone() for name, p in params.items()}

    def update(self, params: Mapping[str, Tensor]) -> None:
        """Take one more iterate into account."""
        self.seen += 1
        weight = (1 - self.decay) / (1 - self.decay**self.seen)
        for name, mean in self.mean.items():
            mean.lerp_(params[name].detach(), weight)

    def copy_to(self, params: Mapping[str, Tensor]) -> None:
        """Write the mean into ``params``; do nothing if no iterate was averaged yet."""
        if not self.seen:
            return
        with torch.no_grad():
            for name, mean in self.mean.items():
                params[name].copy_(mean)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"decay": self.decay, "seen": self.seen, "mean": self.mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`.

        Raises:
            ResumeError: The state is that of an average with another ``decay``.
        """
        if state["decay"] != self.decay:
            raise ResumeError(f"decay must be as in the run to resume, {state['decay']}, got {self.decay}.")
        self.seen = int(state["seen"])
        for name, mean in self.mean.items():
            mean.copy_(state["mean"][name])
