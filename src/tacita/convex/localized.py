r"""The localized subgradient method for a convex risk that need not be smooth: phases on disjoint parts of the records.

Source: Lowy and Razaviyayn, "Private Stochastic Optimization with Large Worst-Case Lipschitz Parameter", Algorithm 4,
its minibatch variant (Remark 13) and its strongly convex reduction (Appendix G.3). The private oracles are made by the
caller, so this file is post-processing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor

from tacita.convex.domains import Ball
from tacita.convex.proximal import RegularizedSubgradient
from tacita.convex.proximal_operators import ProximalOperator
from tacita.convex.solver import Tensors
from tacita.errors import ResumeError
from tacita.oracles import Queryable, Records, Release


class Phase(Protocol):
    """The public settings of one phase; ``tacita.convex.heavy_tailed`` plans them.

    Attributes:
        steps: Number of steps T, with one query each.
        lr: Step size of the subgradient method.
        reg_strength: Strength of the pull back to the phase's starting point.
        radius: The phase stays so close to its starting point; ``inf`` for no limit.
    """

    @property
    def steps(self) -> int:
        """Number of steps."""
        ...

    @property
    def lr(self) -> float:
        """Step size."""
        ...

    @property
    def reg_strength(self) -> float:
        """Strength of the regulariser."""
        ...

    @property
    def radius(self) -> float:
        """Largest distance from the phase's starting point."""
        ...


AnyPhase = TypeVar("AnyPhase", bound=Phase)


class LocalizedSubgradient:
    r"""Run a regularised subgradient method phase by phase, each from the last point of the one before.

    Phase i minimises :math:`\hat F_i(w) + \tfrac{\lambda_i}{2}\lVert w - w_{i-1}\rVert^2` on its own part of the
    records, within W and within a ball of radius :math:`D_i` around :math:`w_{i-1}`.

    One pass over the parts of one split costs the largest phase, not the sum: the ledger sees that the parts are
    disjoint. All oracles are built here, before the first query, so that all sessions are registered together.

    What an oracle reads is the caller's choice. Algorithm 4 takes the whole part in each query
    (:class:`~tacita.FullBatchSampler`); Remark 13 takes small random batches of it
    (:class:`~tacita.FixedSizeSampler` with a :class:`~tacita.CalibratedGaussian`). The reduction for strongly convex
    risks is a longer list of phases.

    The records must be in an order that does not depend on their values; a random one makes every part a fair sample.

    Args:
        make_oracle: ``(part, phase) -> oracle``.
        parts: The parts of one split (:func:`tacita.split`), one a phase.
        phases: The phases' settings.
        params: The starting point by parameter name, which must not depend on the data. It is not written to.
        domain: The convex set W; ``None`` for the whole space.

    Raises:
        ValueError: There are not as many parts as phases.
    """

    def __init__(
        self,
        make_oracle: Callable[[Records, AnyPhase], Queryable],
        parts: Sequence[Records],
        phases: Sequence[AnyPhase],
        params: Mapping[str, Tensor],
        *,
        domain: ProximalOperator | None,
    ) -> None:
        if len(parts) != len(phases) or not phases:
            raise ValueError(f"parts must be one a phase, {len(phases)}, got {len(parts)}.")
        self.phases, self.domain = tuple(phases), domain
        self.oracles = [make_oracle(part, phase) for part, phase in zip(parts, phases, strict=True)]
        self.phase = 0
        self._solver = self._start(params)

    @property
    def made(self) -> int:
        """Steps made so far, in all phases."""
        return sum(phase.steps for phase in self.phases[: self.phase]) + self._solver.made

    @property
    def steps(self) -> int:
        """Steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def solution(self) -> Tensors:
        """The current point; the method's answer once all phases are over."""
        return self._solver.solution

    def step(self) -> Release:
        """Make one query and one step, and return the release.

        Raises:
            RuntimeError: All phases are over.
        """
        if self._solver.made == self._solver.steps and self.phase + 1 < len(self.phases):
            self.phase += 1
            self._solver = self._start(self._solver.solution)
        return self._solver.step()

    def run(self) -> Tensors:
        """Make the remaining steps and return the solution."""
        while self.made < self.steps:
            self.step()
        return self.solution

    def copy_to(self, params: Mapping[str, Tensor]) -> None:
        """Write the solution into ``params``."""
        self._solver.copy_to(params)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint. All of it is released."""
        return {"phase_steps": [phase.steps for phase in self.phases], "phase": self.phase, **self._solver.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`.

        Raises:
            ResumeError: The state is that of other phases.
        """
        if list(state["phase_steps"]) != [phase.steps for phase in self.phases]:
            raise ResumeError("phases must be as in the run to resume: their numbers of steps differ.")
        self.phase = int(state["phase"])
        self._solver = self._start(state["center"])
        self._solver.load_state_dict(state)

    def _start(self, params: Mapping[str, Tensor]) -> RegularizedSubgradient:
        phase = self.phases[self.phase]
        start = dict(params) if self.phase or self.domain is None else self.domain(params, 0.0)
        near = Ball(radius=phase.radius, center=start)
        return RegularizedSubgradient(
            self.oracles[self.phase],
            start,
            steps=phase.steps,
            lr=phase.lr,
            reg_strength=phase.reg_strength,
            domain=near if self.domain is None else self.domain + near,
        )
