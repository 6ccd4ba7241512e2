"""Accounting: what sessions spend, and the epsilon and delta that follow."""

from tacita.accounting.accountant import Bound, delta, epsilon
from tacita.accounting.bounded_residual_events import BoundedResidualGaussianEvent, BoundedResidualPoissonEvent
from tacita.accounting.calibration import calibrate
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
from tacita.accounting.chain import Anchor, Verification
from tacita.accounting.composed_events import ComposedEvent, WorstOfEvent
from tacita.accounting.discrete_events import DiscreteGaussianEvent, discrete
from tacita.accounting.events import Event, Spend
from tacita.accounting.feedback_cells import (
    bounded_residual_event,
    feedback_table,
    hidden_error_event,
    released_residual_event,
)
from tacita.accounting.feedback_events import HiddenErrorGaussianEvent, HiddenErrorPoissonEvent
from tacita.accounting.first_draw_event import FirstDrawEvent
from tacita.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from tacita.accounting.gaussian_events import (
    FixedSizeGaussianEvent,
    FullBatchGaussianEvent,
    HistogramGaussianEvent,
    OnePassGaussianEvent,
    PoissonGaussianEvent,
    ShuffledEpochsGaussianEvent,
)
from tacita.accounting.hardened_events import HardenedEvent, hardening
from tacita.accounting.interleaved_event import InterleavedEvent
from tacita.accounting.journal import verify_file
from tacita.accounting.ledger import Ledger
from tacita.accounting.mixture_events import MixtureOfGaussiansEvent, PoissonUnitEvent
from tacita.accounting.parts import Part
from tacita.accounting.pure_events import ApproximateDPEvent, LaplaceEvent, ZCDPEvent
from tacita.accounting.refuted_claim_event import RefutedClaimEvent
from tacita.accounting.relations import RELATIONS, NeighboringRelation, check_relation, moved
from tacita.accounting.renyi_filter import RenyiFilter
from tacita.accounting.reservations import Reservations
from tacita.accounting.session import Session, Share, settings_sha256
from tacita.accounting.stable_counts import StableCountsEvent, stable_failure_probability, stable_threshold
from tacita.accounting.statement import Statement, statement
from tacita.accounting.threshold_event import AboveThresholdEvent
from tacita.accounting.wrapped_events import ConditionalEvent, CoupledEvent, RepeatAndSelectEvent

__all__ = [
    "RELATIONS",
    "AboveThresholdEvent",
    "Anchor",
    "ApproximateDPEvent",
    "Bound",
    "BoundedResidualGaussianEvent",
    "BoundedResidualPoissonEvent",
    "ComposedEvent",
    "ConditionalEvent",
    "CoupledEvent",
    "DiscreteGaussianEvent",
    "DisjointLaw",
    "Event",
    "FirstDrawEvent",
    "FixedSizeGaussianEvent",
    "FixedSizeLaw",
    "FullBatchGaussianEvent",
    "FullBatchLaw",
    "HardenedEvent",
    "HiddenErrorGaussianEvent",
    "HiddenErrorPoissonEvent",
    "HistogramGaussianEvent",
    "InterleavedEvent",
    "LaplaceEvent",
    "Ledger",
    "MixtureOfGaussiansEvent",
    "NeighboringRelation",
    "OnePassGaussianEvent",
    "Part",
    "PoissonGaussianEvent",
    "PoissonLaw",
    "PoissonUnitEvent",
    "PoissonUnitLaw",
    "RefutedClaimEvent",
    "RenyiFilter",
    "RepeatAndSelectEvent",
    "Reservations",
    "SamplingLaw",
    "Session",
    "Share",
    "ShuffledEpochsGaussianEvent",
    "ShuffledEpochsLaw",
    "Spend",
    "StableCountsEvent",
    "Statement",
    "Verification",
    "WorstOfEvent",
    "ZCDPEvent",
    "bounded_residual_event",
    "calibrate",
    "check_relation",
    "delta",
    "discrete",
    "epsilon",
    "feedback_table",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gaussian_sum_event",
    "hardening",
    "hidden_error_event",
    "moved",
    "released_residual_event",
    "settings_sha256",
    "stable_failure_probability",
    "stable_threshold",
    "statement",
    "verify_file",
]
