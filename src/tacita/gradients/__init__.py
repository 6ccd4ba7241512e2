"""Engines: how estimators get norms and sums of per-sample gradients, and how those gradients are computed."""

from tacita.gradients.engine import Engine, GradientSource, Groups, Rule, Shapes, Sums
from tacita.gradients.given import GivenEngine, GivenSource
from tacita.gradients.loop import LoopEngine
from tacita.gradients.network_source import NetworkSource
from tacita.gradients.padding import pad_to
from tacita.gradients.program import ProgramEngine
from tacita.gradients.rules.registry import register_rule
from tacita.gradients.views import SeveralViews, mean_over_views

__all__ = [
    "Engine",
    "GivenEngine",
    "GivenSource",
    "GradientSource",
    "Groups",
    "LoopEngine",
    "NetworkSource",
    "ProgramEngine",
    "Rule",
    "SeveralViews",
    "Shapes",
    "Sums",
    "mean_over_views",
    "pad_to",
    "register_rule",
]
