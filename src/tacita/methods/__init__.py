"""Methods that use releases only (post-processing). Any ``torch.optim`` optimizer can be used beside them."""

from tacita.methods.accelerated import AcceleratedSGD
from tacita.methods.adaptive_ridge import adaptive_elastic_net, adaptive_ridge
from tacita.methods.averaged import ExponentialAverage, SuffixAverage
from tacita.methods.domains import Ball, Box, L1Ball, Simplex
from tacita.methods.localized import LocalizedSubgradient, Phase
from tacita.methods.newton import NewtonDescent
from tacita.methods.penalties import L1, ElasticNet, GroupLasso, NuclearNorm
from tacita.methods.preconditioned import MomentumDescent, PreconditionedDescent
from tacita.methods.proximal import ProximalSGD, RegularizedSubgradient, WeightedSGD
from tacita.methods.proximal_operators import ProximalOperator, ProximalSum
from tacita.methods.random_iterate import RandomIterate
from tacita.methods.solver import Solver

__all__ = [
    "L1",
    "AcceleratedSGD",
    "Ball",
    "Box",
    "ElasticNet",
    "ExponentialAverage",
    "GroupLasso",
    "L1Ball",
    "LocalizedSubgradient",
    "MomentumDescent",
    "NewtonDescent",
    "NuclearNorm",
    "Phase",
    "PreconditionedDescent",
    "ProximalOperator",
    "ProximalSGD",
    "ProximalSum",
    "RandomIterate",
    "RegularizedSubgradient",
    "Simplex",
    "Solver",
    "SuffixAverage",
    "WeightedSGD",
    "adaptive_elastic_net",
    "adaptive_ridge",
]
