"""Above the line: bounded values of a batch, their sensitivity, and the event of a session."""

from tacita.estimators.clipped_sum import ClippedGradientSum, ClippedSum, clipped_gradient_sum
from tacita.estimators.estimator import Estimator, Values

__all__ = [
    "ClippedGradientSum",
    "ClippedSum",
    "Estimator",
    "Values",
    "clipped_gradient_sum",
]
