from .accountant import Bound, delta, epsilon
from .batch_limit import least_max_batch_size
from .budget import most_queries
from .calibration import calibrate
from .curve import PrivacyCurve, attack_accuracy, curve_accuracy, privacy_curve
from .events.counts import (
    HistogramGaussianEvent,
    StableCountsEvent,
    stable_failure_probability,
    stable_threshold,
)
from .events.coupled import CoupledEvent
from .events.event import Event, NoiseSettings, Spend
from .events.gaussian_sums import GaussianSumEvent, NoisySumEvent, gaussian_sum_event
from .events.guarantee import Guarantee, gaussian_guarantee
from .events.hardened import HardenedEvent, hardening
from .events.laplace import LaplaceEvent, ZCDPEvent
from .events.mixtures import MixtureOfGaussiansEvent
from .events.pure import ApproximateDPEvent
from .events.sampled import Proof, SampledEvent
from .events.wrapped import ConditionalEvent
from .gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from .gaussian_filter import GaussianFilter
from .parts import Part
from .relations import RELATIONS, NeighboringRelation, check_relation, moved
from .renyi_filter import RenyiFilter
from .sampling_laws import (
    CyclicLaw,
    CyclicPoissonLaw,
    DisjointLaw,
    FixedSizeLaw,
    FullBatchLaw,
    PoissonLaw,
    PoissonUnitLaw,
    SamplingLaw,
    ShuffledEpochsLaw,
    TruncatedPoissonLaw,
)

__all__ = [
    "RELATIONS",
    "ApproximateDPEvent",
    "Bound",
    "ConditionalEvent",
    "CoupledEvent",
    "CyclicLaw",
    "CyclicPoissonLaw",
    "DisjointLaw",
    "Event",
    "FixedSizeLaw",
    "FullBatchLaw",
    "GaussianFilter",
    "GaussianSumEvent",
    "Guarantee",
    "HardenedEvent",
    "HistogramGaussianEvent",
    "LaplaceEvent",
    "MixtureOfGaussiansEvent",
    "NeighboringRelation",
    "NoiseSettings",
    "NoisySumEvent",
    "Part",
    "PoissonLaw",
    "PoissonUnitLaw",
    "PrivacyCurve",
    "Proof",
    "RenyiFilter",
    "SampledEvent",
    "SamplingLaw",
    "ShuffledEpochsLaw",
    "Spend",
    "StableCountsEvent",
    "TruncatedPoissonLaw",
    "ZCDPEvent",
    "attack_accuracy",
    "calibrate",
    "check_relation",
    "curve_accuracy",
    "delta",
    "epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_guarantee",
    "gaussian_mu",
    "gaussian_sum_event",
    "hardening",
    "least_max_batch_size",
    "most_queries",
    "moved",
    "privacy_curve",
    "stable_failure_probability",
    "stable_threshold",
]
