r"""The settings of a fit that the user leaves out, as functions of public numbers alone: docs/linear-models.md.

A row is taken in units in which most rows are no longer than 1, constant included. With :math:`\mu` the Gaussian budget
of the gradients, the mean of T noisy gradients has noise of standard deviation :math:`C / (n \mu)` in each direction,
whatever T is; so T may be large, and the damping is chosen for that noise.
"""

import math
from dataclasses import dataclass
from typing import Literal

from tacita.linear_model.budget import FitBudget

SCALES = 0.1  # share of mu^2 for scales, where they are bought
CLASSES = 0.1  # ... for classes
LABELS = 0.005  # ... or, where classes are given, to see that the labels are those
SEEN = 4.0  # noise standard deviations from which on a count of labels is seen
OTHERS = 0.1  # share of the rows from which on labels that are none of the classes are many
MOMENTS = 0.1  # ... of what is left, for second moments
HESSIANS = 0.2  # ... or for Hessians
STEPS = 30
FEW_STEPS, FEW_MOMENTUM, FEW_SIZE = 8, 0.7, 200.0  # of a logistic regression from this mu n / d on
REFRESH = 15  # steps that one Hessian serves
MOMENTUM = 0.9
WANDERING = 1.0  # how far the noise of all steps with momentum may move a weight, in scaled units
MAX_GRAD_NORM = 0.35  # of the largest derivative that the loss has, or of 1
MOST = 0.95  # ... of the entries of a column
QUANTILE = 0.9  # of row norms (or absolute targets): what is longer is clipped
DAMPING = 0.5  # in units of the expected size of the noise
WHOLE = 1.0  # C over the largest derivative, for losses whose minimum a smaller threshold would move
HUBER = 0.15  # threshold of the Huber loss, in units of the scale of the targets
WIDTH, FINE_WIDTH = 0.05, 0.005  # smoothing of the quantile loss, in the same units; fine for preconditioned steps
QUANTILE_SIZE, QUANTILE_FAR = 30.0, 0.25  # mu n / d below which quantiles so far from 1/2 are found by Newton steps
QUANTILE_CURVATURES = (1.0, 2.2, 4.6, 10.0, 22.0, 46.0, 100.0)  # of its phases: the last is 1 / (2 FINE_WIDTH)
QUANTILE_STEPS = 49  # of them


SolverName = Literal["preconditioned", "newton", "momentum"]
SOLVERS: tuple[SolverName, ...] = ("preconditioned", "newton", "momentum")
MATRICES = {"preconditioned": MOMENTS, "newton": HESSIANS, "momentum": 0.0}  # share of released matrices


@dataclass(frozen=True, kw_only=True)
class DescentRule:
    """The settings of a descent that its sessions are registered with.

    Attributes:
        solver: The method: "preconditioned", "newton" or "momentum".
        steps: T.
        max_grad_norm: C, in units of scaled rows.
        momentum: beta of preconditioned steps.
    """

    solver: SolverName
    steps: int
    max_grad_norm: float
    momentum: float = 0.0

    @property
    def matrices(self) -> int:
        """The number of matrices that are released: second moments, or Hessians."""
        return {"preconditioned": 1, "newton": math.ceil(self.steps / REFRESH), "momentum": 0}[self.solver]

    def in_words(self) -> list[str]:
        """Return the settings as the statement says them."""
        momentum = [f"momentum = {self.momentum:g}"] if self.momentum else []
        return [
            f"solver = {self.solver}",
            f"steps = {self.steps}",
            *momentum,
            f"max_grad_norm = {self.max_grad_norm:g}",
        ]


def chosen_solver(given: str | None, default: SolverName = "preconditioned") -> SolverName:
    """Return the solver that was asked for, else ``default``."""
    if given is None:
        return default
    for solver in SOLVERS:
        if given == solver:
            return solver
    raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, or None, got {given!r}.")


def quantile_solver(size: float, quantile: float) -> SolverName:
    r"""Return the solver for a quantile: Newton steps where it is far from 1/2 and :math:`\mu n / d`, ``size``, small.

    The loss of a quantile has no useful bound on its curvature, so that preconditioned steps start with a guess, with
    which a small budget makes far too long steps.
    """
    far = abs(quantile - 0.5) > QUANTILE_FAR
    return "newton" if far and size < QUANTILE_SIZE else "preconditioned"


def descent_rule(
    *,
    solver: SolverName,
    max_derivative: float,
    share: float = MAX_GRAD_NORM,
    steps: int | None = None,
    max_grad_norm: float | None = None,
    few: bool = False,
) -> DescentRule:
    """Return T, C and beta. C is ``share`` of the largest derivative that the loss has; ``few``: :func:`few_steps`."""
    clip = max_grad_norm or share * (max_derivative if math.isfinite(max_derivative) else 1.0)
    usual, momentum = (FEW_STEPS, FEW_MOMENTUM) if few else (STEPS, 0.0)
    return DescentRule(solver=solver, steps=steps or usual, max_grad_norm=clip, momentum=momentum)


def few_steps(size: float, solver: SolverName) -> bool:
    r"""Return whether a logistic regression takes few steps with momentum: where :math:`\mu n / d`, ``size``, is large.

    The noise is then small beside what further steps gain, and momentum makes up for them. Where it is not, many steps
    are better, because they average the clipped gradients of many points.
    """
    return solver == "preconditioned" and size >= FEW_SIZE


def momentum_lr(*, num_records: int, curvature: float, rule: DescentRule, budget: FitBudget) -> float:
    r"""Return the step size with momentum: :math:`1 / \kappa`, and less where noise would carry the weights away.

    T noisy gradients with momentum m move a weight by noise of standard deviation :math:`\eta C T / ((1 - m) n \mu)`.
    """
    noise = rule.max_grad_norm * rule.steps * budget.noise_multiplier(budget.rest) / num_records
    return min(1 / curvature, WANDERING * (1 - MOMENTUM) / noise)


def damping(
    *, num_records: int, dim: int, outputs: int, curvature: float, rule: DescentRule, budget: FitBudget
) -> float:
    r"""Return :math:`\lambda = \frac12 (\kappa s \sqrt{2 d} + C \sqrt{d} / \mu) / n`.

    The two terms are the noise of a matrix, whose spectral norm is about :math:`s \sqrt{2 d}`, and that of the
    gradients.
    """
    moments = budget.noise_multiplier(budget.moments, rule.matrices) * math.sqrt(2 * dim)
    gradients = budget.noise_multiplier(budget.rest) * rule.max_grad_norm * math.sqrt(dim * outputs)
    return max(DAMPING * (curvature * moments + gradients) / num_records, 1e-9)
