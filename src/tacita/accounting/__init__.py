"""Accounting: what sessions spend, and the epsilon and delta that follow."""

from tacita.accounting.accountant import Bound, delta, epsilon
from tacita.accounting.attack_accuracy import attack_accuracy
from tacita.accounting.calibration import calibrate, least_max_batch_size
from tacita.accounting.curve import PrivacyCurve, curve_accuracy, privacy_curve
from tacita.accounting.events.counts import (
    HistogramGaussianEvent,
    StableCountsEvent,
    stable_failure_probability,
    stable_threshold,
)
from tacita.accounting.events.event import Event, NoiseSettings, Spend
from tacita.accounting.events.gaussian_sums import GaussianSumEvent, NoisySumEvent, gaussian_sum_event
from tacita.accounting.events.guarantee import Guarantee
from tacita.accounting.events.guarantee import gaussian as gaussian_guarantee
from tacita.accounting.events.mixtures import MixtureOfGaussiansEvent
from tacita.accounting.events.pure import ApproximateDPEvent, LaplaceEvent, ZCDPEvent
from tacita.accounting.events.sampled import Proof, SampledEvent
from tacita.accounting.events.wrapped import (
    AssumingEvent,
    ConditionalEvent,
    CoupledEvent,
    HardenedEvent,
    RefutedClaimEvent,
    hardening,
)
from tacita.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from tacita.accounting.gaussian_filter import GaussianFilter
from tacita.accounting.parts import Part
from tacita.accounting.relations import RELATIONS, NeighboringRelation, check_relation, moved
from tacita.accounting.renyi_filter import RenyiFilter
from tacita.accounting.sampling_laws import (
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
    "AssumingEvent",
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
    "RefutedClaimEvent",
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
    "moved",
    "privacy_curve",
    "stable_failure_probability",
    "stable_threshold",
]
