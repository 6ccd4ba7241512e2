r"""A random iterate of a run, whose number is drawn before the run begins.

The choice does not look at the data, so it is post-processing of releases and costs no privacy. Looking at the data to
choose a good iterate is a query (:class:`~tacita.StationaryTest`).
Source: Avdiukhin, Dinitz, Fan and Yaroslavtsev, "Noise is All You Need: Private Second-Order Convergence of Noisy
SGD", Theorem 3.5: at least half of the iterates :math:`x_0, \dots, x_{T-1}` are second-order stationary, so a uniformly
random one is with probability at least 1/2.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tacita import _validate
from tacita.errors import ResumeError
from tacita.random import Key, Stream


class RandomIterate:
    """Keep the iterate :math:`x_J`, where J is uniform on 0, ..., ``num_steps`` - 1 and drawn at construction.

    It is used as :class:`~tacita.SuffixAverage` is: call :meth:`update` after each step and :meth:`copy_to` at the end.
    A resumed run keeps the iterate that was chosen. Memory: one copy of the parameters.

    :math:`x_t` is the iterate when t query numbers have been used. A resumed run may skip query numbers (of queries
    that cannot be redone) without making a step. The iterate before such a gap is then chosen with its own probability
    plus that of the numbers in the gap, and the theorem's "half" counts it as often. Where this can happen, pass
    ``used`` to :meth:`update`.

    Args:
        params: Parameters by name, at the starting point :math:`x_0`; only :meth:`copy_to` writes to parameters.
        num_steps: T, the planned queries of the run. The last iterate, :math:`x_T`, is never chosen.
        stream: Only tests pass one; by default a fresh, system-seeded stream, independent of data and noise.

    Attributes:
        index: J. It may be published.
        seen: Query numbers used so far, skipped ones included.

    Example:
        >>> w = {"w": torch.zeros(1)}
        >>> chosen = RandomIterate(w, num_steps=3)
        >>> for value in (1.0, 2.0, 3.0):
        ...     chosen.update({"w": torch.tensor([value])})
        >>> chosen.copy_to(w)
        >>> w["w"].item() == chosen.index
        True
    """

    def __init__(self, params: Mapping[str, Tensor], *, num_steps: int, stream: Stream | None = None) -> None:
        self.num_steps = _validate.count("num_steps", num_steps)
        stream = Key.system().stream("random iterate") if stream is None else stream
        self.index = int(stream.integers(1, self.num_steps)[0])
        self.seen = 0
        self._kept = {name: p.detach().clone() for name, p in params.items()}

    def update(self, params: Mapping[str, Tensor], used: int | None = None) -> None:
        """Take one more iterate; keep it if iterate J has not been passed yet.

        Args:
            params: The iterate.
            used: Query numbers used so far (``oracle.gate.position``); by default one more than before.

        Raises:
            ValueError: ``used`` is smaller than before.
        """
        used = self.seen + 1 if used is None else used
        if not used >= self.seen:
            raise ValueError(f"used must be at least its last value, {self.seen}, got {used}.")
        self.seen = used
        if used <= self.index:
            for name, kept in self._kept.items():
                kept.copy_(params[name].detach())

    def copy_to(self, params: Mapping[str, Tensor]) -> None:
        """Write the chosen iterate into ``params``.

        Raises:
            RuntimeError: The run has not reached it yet. Taking another iterate instead would not be a random choice.
        """
        if self.seen < self.index:
            raise RuntimeError(
                f"the iterate after step {self.index} was chosen before the run, which has made {self.seen} steps so "
                "far. Continue the run, or set num_steps to the number of steps that it makes."
            )
        with torch.no_grad():
            for name, kept in self._kept.items():
                params[name].copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"num_steps": self.num_steps, "index": self.index, "seen": self.seen, "kept": self._kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`, with the iterate that was chosen then.

        Raises:
            ResumeError: The state is that of a run with another ``num_steps``.
        """
        if state.get("num_steps") != self.num_steps:
            raise ResumeError(
                f"num_steps must be as in the run to resume, {state.get('num_steps')}, got {self.num_steps}."
            )
        self.index, self.seen = int(state["index"]), int(state["seen"])
        for name, kept in self._kept.items():
            kept.copy_(state["kept"][name])
