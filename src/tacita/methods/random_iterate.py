r"""One iterate of a run, chosen by a coin that was thrown before it.

Place: below the line; post-processing of releases, so it costs no privacy.
Source: Avdiukhin, Dinitz, Fan and Yaroslavtsev, "Noise is All You Need: Private Second-Order Convergence of Noisy
SGD", Theorem 3.5: at least half of the iterates :math:`x_0, \dots, x_{T-1}` are second-order stationary, so one at
random is so with probability at least 1/2. Looking at the data to choose a good one is a query
(:class:`~tacita.StationaryTest`); this is not.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tacita import _validate
from tacita.errors import ResumeError
from tacita.random import Key, Stream


class RandomIterate:
    """Keeps the iterate :math:`x_J`, J uniform on 0, ..., ``num_steps`` - 1 and drawn when this is built.

    It serves where a :class:`~tacita.SuffixAverage` does: :meth:`update` after each step, :meth:`copy_to` at the end; a
    resumed run keeps the iterate that was chosen. Memory: one copy of the parameters.

    :math:`x_t` is where the run stands when t query numbers are used. A resumed run may leave numbers behind (queries
    that cannot be redone), and stands still over them: the iterate before such a gap has its own chance and that of
    the numbers in it, and the theorem's half is to be read so. Where that can happen, tell :meth:`update` the numbers.

    Args:
        params: Parameters by name, at the starting point :math:`x_0`; never written until :meth:`copy_to`.
        num_steps: T, planned queries of the run. The last iterate, :math:`x_T`, is not among those to choose from.
        stream: Only tests hand it in; by default a fresh stream of the system's, independent of data and noise.

    Attributes:
        index: J. It may be published.
        seen: Numbers used so far: steps, and numbers left behind.

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
        """Take one more iterate: it is kept until the one that was chosen is passed.

        Args:
            params: The iterate.
            used: Query numbers used so far (``oracle.line.position``); by default one more than before.

        Raises:
            ValueError: ``used`` falls.
        """
        used = self.seen + 1 if used is None else used
        if not used >= self.seen:
            raise ValueError(f"used must not fall: it was {self.seen}, got {used}.")
        self.seen = used
        if used <= self.index:
            for name, kept in self._kept.items():
                kept.copy_(params[name].detach())

    def copy_to(self, params: Mapping[str, Tensor]) -> None:
        """Write the chosen iterate into ``params``.

        Raises:
            RuntimeError: The run has not come to it yet. Taking another one instead would be a choice.
        """
        if self.seen < self.index:
            raise RuntimeError(
                f"the iterate after step {self.index} was chosen before the run, and {self.seen} steps are made. Go "
                "on, or give num_steps the number of steps that the run makes."
            )
        with torch.no_grad():
            for name, kept in self._kept.items():
                params[name].copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"num_steps": self.num_steps, "index": self.index, "seen": self.seen, "kept": self._kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`: with the iterate that was chosen then.

        Raises:
            ResumeError: It is of a run of another length.
        """
        if state.get("num_steps") != self.num_steps:
            raise ResumeError(f"num_steps must be what the run was started with to go on, got {self.num_steps}.")
        self.index, self.seen = int(state["index"]), int(state["seen"])
        for name, kept in self._kept.items():
            kept.copy_(state["kept"][name])
