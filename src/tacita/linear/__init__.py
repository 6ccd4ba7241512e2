"""Linear models on a table: closed forms of their gradients, losses, and released second moments.

They stand on the core, which knows nothing of them; systems and front ends stand on them.
"""

from tacita.linear.losses import (
    HuberLoss,
    LogisticLoss,
    MultinomialLoss,
    MultipliedLoss,
    OutputLoss,
    QuantileLoss,
    SquaredHingeLoss,
    SquaredLoss,
)
from tacita.linear.second_moment import SecondMoment, SecondMomentEvent, symmetric_entries, symmetric_matrix
from tacita.linear.source import LinearSource, hessian_rows, table_rows

__all__ = [
    "HuberLoss",
    "LinearSource",
    "LogisticLoss",
    "MultinomialLoss",
    "MultipliedLoss",
    "OutputLoss",
    "QuantileLoss",
    "SecondMoment",
    "SecondMomentEvent",
    "SquaredHingeLoss",
    "SquaredLoss",
    "hessian_rows",
    "symmetric_entries",
    "symmetric_matrix",
    "table_rows",
]
