"""Engines: how estimators get norms and sums of per-sample gradients, and how those gradients are computed."""

from tacita.gradients.engine import Engine, GradientSource, Groups, Rule, Shapes, Sums
from tacita.gradients.explain import Explanation, ParameterPlan, explain
from tacita.gradients.ghost.registry import register_rule
from tacita.gradients.given import GivenEngine, GivenSource
from tacita.gradients.hessian_rows import HessianRowsSource
from tacita.gradients.linear_blocks import LinearBlocksSource
from tacita.gradients.linear_losses import (
    HuberLoss,
    LogisticLoss,
    MultinomialLoss,
    MultipliedLoss,
    OutputLoss,
    QuantileLoss,
    SquaredHingeLoss,
    SquaredLoss,
)
from tacita.gradients.linear_model import LinearSource
from tacita.gradients.loop import LoopEngine
from tacita.gradients.network_source import NetworkSource
from tacita.gradients.padding import pad_to
from tacita.gradients.program import ProgramEngine
from tacita.gradients.table_rows import TableRowsSource
from tacita.gradients.views import SeveralViews, mean_over_views

__all__ = [
    "Engine",
    "Explanation",
    "GivenEngine",
    "GivenSource",
    "GradientSource",
    "Groups",
    "HessianRowsSource",
    "HuberLoss",
    "LinearBlocksSource",
    "LinearSource",
    "LogisticLoss",
    "LoopEngine",
    "MultinomialLoss",
    "MultipliedLoss",
    "NetworkSource",
    "OutputLoss",
    "ParameterPlan",
    "ProgramEngine",
    "QuantileLoss",
    "Rule",
    "SeveralViews",
    "Shapes",
    "SquaredHingeLoss",
    "SquaredLoss",
    "Sums",
    "TableRowsSource",
    "explain",
    "mean_over_views",
    "pad_to",
    "register_rule",
]
