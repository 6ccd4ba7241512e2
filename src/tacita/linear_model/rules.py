r"""The settings of a fit that the user leaves out, as functions of public numbers alone: docs/linear-models.md.

A row is taken in units in which most rows are no longer than 1, constant included. With :math:`\mu` the Gaussian budget
of the gradients, the mean of T noisy gradients has noise of standard deviation :math:`C / (n \mu)` in each direction,
whatever T is; so T may be large, and the damping is chosen for that noise.
"""

import math
from dataclasses import dataclass

from tacita.linear_model.budget import FitBudget

SCALES = 0.1  # share of mu^2 for scales, where they are bought
CLASSES = 0.1  # ... for classes
MOMENTS = 0.1  # ... of what is left, for second moments
STEPS = 30
MAX_GRAD_NORM = 0.35  # of the largest derivative that the loss has, or of 1
MOST = 0.95  # ... of the entries of a column
QUANTILE = 0.9  # of row norms (or absolute targets): what is longer is clipped
DAMPING = 0.5  # in units of the expected size of the noise
WHOLE = 1.0  # C over the largest derivative, for losses whose minimum a smaller threshold would move
HUBER = 0.15  # threshold of the Huber loss, in units of the scale of the targets
WIDTH = 0.05  # smoothing of the quantile loss, in the same units
QUANTILE_CURVATURES = (1.0, 3.0, 10.0)  # of its phases: the last one is the bound 1 / (2 WIDTH)


@dataclass(frozen=True, kw_only=True)
class DescentRule:
    """The settings of a preconditioned descent that its sessions are registered with.

    Attributes:
        steps: T.
        max_grad_norm: C, in units of scaled rows.
    """

    steps: int
    max_grad_norm: float


def descent_rule(
    *, max_derivative: float, share: float = MAX_GRAD_NORM, steps: int | None = None, max_grad_norm: float | None = None
) -> DescentRule:
    """Return T and C, where C is ``share`` of the largest derivative that the loss has."""
    clip = max_grad_norm or share * (max_derivative if math.isfinite(max_derivative) else 1.0)
    return DescentRule(steps=steps or STEPS, max_grad_norm=clip)


def damping(
    *, num_records: int, dim: int, outputs: int, curvature: float, max_grad_norm: float, budget: FitBudget
) -> float:
    r"""Return :math:`\lambda = \frac12 (\kappa s \sqrt{2 d} + C \sqrt{d} / \mu) / n`.

    The two terms are the noise of the second moments, whose spectral norm is about :math:`s \sqrt{2 d}`, and that of
    the gradients.
    """
    moments = budget.noise_multiplier(budget.moments) * math.sqrt(2 * dim)
    gradients = budget.noise_multiplier(budget.rest) * max_grad_norm * math.sqrt(dim * outputs)
    return max(DAMPING * (curvature * moments + gradients) / num_records, 1e-9)
