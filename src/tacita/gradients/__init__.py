"""Engines: what an estimator may ask about one batch of per-sample gradients."""

from tacita.gradients.engine import Engine, Groups, Rule, Shapes, Source, Sums
from tacita.gradients.explain import Explanation, ParameterPlan, explain
from tacita.gradients.ghost import GhostEngine, register_rule
from tacita.gradients.given import GivenEngine, GivenSource
from tacita.gradients.loop import LoopEngine
from tacita.gradients.source import NetworkSource
from tacita.gradients.vmap import VmapEngine

__all__ = [
    "Engine",
    "Explanation",
    "GhostEngine",
    "GivenEngine",
    "GivenSource",
    "Groups",
    "LoopEngine",
    "NetworkSource",
    "ParameterPlan",
    "Rule",
    "Shapes",
    "Source",
    "Sums",
    "VmapEngine",
    "explain",
    "register_rule",
]
