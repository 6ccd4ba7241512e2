"""Linear models on a table: closed forms of their gradients, losses, and released second moments.

They stand on the core, which knows nothing of them; systems and front ends stand on them.
"""

from tacita.linear.exact import LinearSource
from tacita.linear.hessian_rows import HessianRowsSource
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
from tacita.linear.source import LinearBlocksSource
from tacita.linear.table_rows import TableRowsSource

__all__ = [
    "HessianRowsSource",
    "HuberLoss",
    "LinearBlocksSource",
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
    "TableRowsSource",
    "symmetric_entries",
    "symmetric_matrix",
]
