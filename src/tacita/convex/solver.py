"""The base of solvers: methods that ask a gradient oracle at points of their own choice, and answer with parameters.

Place: oracles -> ┃ releases -> [methods.solver]. A solver sees releases only, so it costs no privacy.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tacita import _validate
from tacita.convex.proximal_operators import ProximalOperator
from tacita.errors import ResumeError
from tacita.oracles import Queryable, Release

Tensors = dict[str, Tensor]


class Solver(ABC):
    """Takes ``steps`` steps, with one query each. The iterates are functions of releases: they may be published.

    Iterates keep the dtype and device of ``params``, and a release is converted to them. The oracle's batches, clipping
    and noise are its own affair. A theorem's guarantee needs the sampling that the theorem names; none is needed for
    privacy.

    Args:
        oracle: Anything with ``query(params) -> Release``.
        params: The starting point by parameter name, which must not depend on the data. It is not written to.
        steps: Number of steps.
        domain: The convex set W as a proximal operator (:class:`~tacita.convex.Ball`); ``None`` for the whole space.
            The starting point is projected on it.

    Attributes:
        made: Steps made so far.
    """

    def __init__(
        self, oracle: Queryable, params: Mapping[str, Tensor], *, steps: int, domain: ProximalOperator | None
    ) -> None:
        self.oracle = oracle
        self.steps = _validate.count("steps", steps)
        self.domain = domain
        self.made = 0
        start = {name: p.detach().clone() for name, p in params.items()}
        self._iterate = self._within(start, 0.0)

    @abstractmethod
    def _move(self, gradient: Tensors) -> None:
        """Make step number ``made + 1`` with this gradient."""

    def _asked(self) -> Tensors:
        """Return the point at which the next gradient is taken."""
        return self._iterate

    @property
    def solution(self) -> Tensors:
        """The answer so far, by parameter name; the theorem's answer once all steps are made."""
        return {name: tensor.clone() for name, tensor in self._answer().items()}

    def step(self) -> Release:
        """Make one query and one step, and return the release.

        Raises:
            RuntimeError: All planned steps were made.
        """
        if self.made >= self.steps:
            raise RuntimeError(f"all {self.steps} planned steps were made: build a solver with more steps.")
        release = self.oracle.query(self._asked())
        with torch.no_grad():
            self._move({name: release.gradient[name].to(tensor) for name, tensor in self._iterate.items()})
        self.made += 1
        return release

    def run(self) -> Tensors:
        """Make the remaining steps and return the solution."""
        while self.made < self.steps:
            self.step()
        return self.solution

    def copy_to(self, params: Mapping[str, Tensor]) -> None:
        """Write the solution into ``params``."""
        with torch.no_grad():
            for name, tensor in self._answer().items():
                params[name].copy_(tensor)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint. All of it is released."""
        kept = {kind: {name: t.clone() for name, t in tensors.items()} for kind, tensors in self._kept().items()}
        return {"steps": self.steps, "made": self.made, **kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`.

        Raises:
            ResumeError: The state is that of a solver with another number of steps.
        """
        if state["steps"] != self.steps:
            raise ResumeError(f"steps must be as in the run to resume, {state['steps']}, got {self.steps}.")
        self.made = int(state["made"])
        for kind, tensors in self._kept().items():
            for name, tensor in tensors.items():
                tensor.copy_(state[kind][name])

    def _answer(self) -> Tensors:
        return self._iterate

    def _kept(self) -> dict[str, Tensors]:
        """Return every tensor that the next step or the solution depends on."""
        return {"iterate": self._iterate}

    def _within(self, point: Tensors, step: float) -> Tensors:
        return dict(point) if self.domain is None else self.domain(point, step)


def less(point: Mapping[str, Tensor], gradient: Mapping[str, Tensor], lr: float) -> Tensors:
    """Return ``point - lr * gradient``."""
    return {name: torch.sub(tensor, gradient[name], alpha=lr) for name, tensor in point.items()}
