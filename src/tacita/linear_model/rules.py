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


@dataclass(frozen=True, kw_only=True)
class DescentRule:
    """The settings of a preconditioned descent.

    Attributes:
        steps: T.
        max_grad_norm: C, in units of scaled rows.
        damping: lambda.
    """

    steps: int
    max_grad_norm: float
    damping: float


def descent_rule(
    *,
    num_records: int,
    dim: int,
    outputs: int,
    curvature: float,
    max_derivative: float,
    budget: FitBudget,
    steps: int | None = None,
    max_grad_norm: float | None = None,
) -> DescentRule:
    r"""Return T, C and lambda.

    :math:`\lambda = \frac12 (\kappa s \sqrt{2 d} + C \sqrt{d} / \mu) / n`: the noise of the second moments, whose
    spectral norm is about :math:`s \sqrt{2 d}`, and that of the gradients.
    """
    clip = max_grad_norm or MAX_GRAD_NORM * (max_derivative if math.isfinite(max_derivative) else 1.0)
    moments = budget.noise_multiplier(budget.moments) * math.sqrt(2 * dim)
    gradients = budget.noise_multiplier(budget.rest) * clip * math.sqrt(dim * outputs)
    damping = DAMPING * (curvature * moments + gradients) / num_records
    return DescentRule(steps=steps or STEPS, max_grad_norm=clip, damping=max(damping, 1e-9))
