"""Private convex optimization on heavy-tailed data: mean oracles, the shuffle model, solvers, bounds and plans.

Paper: "Private stochastic optimization with large worst-case Lipschitz parameter".
"""

from tacita.convex.accelerated import AcceleratedSGD
from tacita.convex.domains import Ball, Box, L1Ball, Simplex
from tacita.convex.localized import LocalizedSubgradient, Phase
from tacita.convex.median_event import MedianOfMeansEvent
from tacita.convex.median_of_means import MedianOfMeans
from tacita.convex.penalties import L1, ElasticNet, GroupLasso, NuclearNorm
from tacita.convex.proximal import ProximalSGD, RegularizedSubgradient, WeightedSGD
from tacita.convex.proximal_operators import ProximalOperator, ProximalSum
from tacita.convex.shuffle_oracles import ShuffleMeanOracle1, ShuffleMeanOracle2
from tacita.convex.shuffle_round import Analyzer, Shuffler, ShuffleRound, UserEncoder
from tacita.convex.shuffled_sum_event import ShuffledSumEvent
from tacita.convex.solver import Solver

__all__ = [
    "L1",
    "AcceleratedSGD",
    "Analyzer",
    "Ball",
    "Box",
    "ElasticNet",
    "GroupLasso",
    "L1Ball",
    "LocalizedSubgradient",
    "MedianOfMeans",
    "MedianOfMeansEvent",
    "NuclearNorm",
    "Phase",
    "ProximalOperator",
    "ProximalSGD",
    "ProximalSum",
    "RegularizedSubgradient",
    "ShuffleMeanOracle1",
    "ShuffleMeanOracle2",
    "ShuffleRound",
    "ShuffledSumEvent",
    "Shuffler",
    "Simplex",
    "Solver",
    "UserEncoder",
    "WeightedSGD",
]
