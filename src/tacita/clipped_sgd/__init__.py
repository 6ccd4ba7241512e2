"""DP-Clipped-SGD: a fixed clipping threshold under heavy-tailed noise, and the theory that plans it.

Paper: "DP-Clipped-SGD with an arbitrary clipping level"; derivation: docs/derivations/dp-clipped-sgd.md.
"""

from tacita.clipped_sgd.clipped_vector import clip_bias_bound, clip_variance_bound
from tacita.clipped_sgd.dp_clipped_sgd import (
    ConvergenceBound,
    average_iterate_bound,
    bound_at_lr,
    convergence_bound,
    lr_limits,
    neighbourhood,
    random_iterate_bound,
)
from tacita.clipped_sgd.plan_setting import PlanSetting, no_theorem
from tacita.clipped_sgd.planner import ClippedSGDPlan, OracleSettings, PlannedTheorem, plan_dp_clipped_sgd
from tacita.clipped_sgd.problem import ConvexProblem, NonConvexProblem, Problem
from tacita.clipped_sgd.regimes import Regime, regime
from tacita.clipped_sgd.rule_of_thumb import RuleOfThumb, rule_of_thumb
from tacita.clipped_sgd.thresholds import (
    BestThreshold,
    numeric_threshold,
)

__all__ = [
    "BestThreshold",
    "ClippedSGDPlan",
    "ConvergenceBound",
    "ConvexProblem",
    "NonConvexProblem",
    "OracleSettings",
    "PlanSetting",
    "PlannedTheorem",
    "Problem",
    "Regime",
    "RuleOfThumb",
    "average_iterate_bound",
    "bound_at_lr",
    "clip_bias_bound",
    "clip_variance_bound",
    "convergence_bound",
    "lr_limits",
    "neighbourhood",
    "no_theorem",
    "numeric_threshold",
    "plan_dp_clipped_sgd",
    "random_iterate_bound",
    "regime",
    "rule_of_thumb",
]
