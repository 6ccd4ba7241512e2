"""Accounting: what sessions spend, and the epsilon and delta that follow."""

from tacita.accounting.accountant import Bound, delta, epsilon
from tacita.accounting.cells import (
    DisjointLaw,
    FixedSizeLaw,
    FullBatchLaw,
    PoissonLaw,
    PoissonUnitLaw,
    SamplingLaw,
    ShuffledEpochsLaw,
    gaussian_sum_event,
)
from tacita.accounting.events import Event, Spend
from tacita.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from tacita.accounting.gaussian_events import (
    FixedSizeGaussianEvent,
    FullBatchGaussianEvent,
    HistogramGaussianEvent,
    OnePassGaussianEvent,
    PoissonGaussianEvent,
    ShuffledEpochsGaussianEvent,
)
from tacita.accounting.mixture_events import MixtureOfGaussiansEvent, PoissonUnitEvent
from tacita.accounting.relations import RELATIONS, NeighboringRelation, check_relation, moved

__all__ = [
    "RELATIONS",
    "Bound",
    "DisjointLaw",
    "Event",
    "FixedSizeGaussianEvent",
    "FixedSizeLaw",
    "FullBatchGaussianEvent",
    "FullBatchLaw",
    "HistogramGaussianEvent",
    "MixtureOfGaussiansEvent",
    "NeighboringRelation",
    "OnePassGaussianEvent",
    "PoissonGaussianEvent",
    "PoissonLaw",
    "PoissonUnitEvent",
    "PoissonUnitLaw",
    "SamplingLaw",
    "ShuffledEpochsGaussianEvent",
    "ShuffledEpochsLaw",
    "Spend",
    "check_relation",
    "delta",
    "epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_sum_event",
    "moved",
]
