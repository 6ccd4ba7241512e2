"""Engines: what an estimator may ask about one batch of per-sample gradients."""

from tacita.gradients.alone import LinearSource
from tacita.gradients.engine import Engine, Groups, Rule, Shapes, Source, Sums
from tacita.gradients.explain import Explanation, ParameterPlan, explain
from tacita.gradients.ghost import GhostEngine, register_rule
from tacita.gradients.given import GivenEngine, GivenSource
from tacita.gradients.hessian import Hessian, batch_hessian
from tacita.gradients.lanczos import Ritz, lanczos, lanczos_error, lanczos_steps
from tacita.gradients.loop import LoopEngine
from tacita.gradients.source import NetworkSource
from tacita.gradients.stationarity import PublicStationarity, is_second_order_stationary, public_stationarity
from tacita.gradients.vmap import VmapEngine

__all__ = [
    "Engine",
    "Explanation",
    "GhostEngine",
    "GivenEngine",
    "GivenSource",
    "Groups",
    "Hessian",
    "LinearSource",
    "LoopEngine",
    "NetworkSource",
    "ParameterPlan",
    "PublicStationarity",
    "Ritz",
    "Rule",
    "Shapes",
    "Source",
    "Sums",
    "VmapEngine",
    "batch_hessian",
    "explain",
    "is_second_order_stationary",
    "lanczos",
    "lanczos_error",
    "lanczos_steps",
    "public_stationarity",
    "register_rule",
]
