"""The names of the face, and the room that each comes from; ``__init__.py`` imports a room when it is first used."""

from . import (
    accounting as accounting,
    adaptive_clipping as adaptive_clipping,
    cli as cli,
    clipped_sgd as clipped_sgd,
    clipping as clipping,
    convex as convex,
    correlated as correlated,
    dry_run as dry_run,
    error_feedback as error_feedback,
    errors as errors,
    estimators as estimators,
    federated as federated,
    finetune as finetune,
    gradients as gradients,
    hardened as hardened,
    ledger as ledger,
    linear as linear,
    linear_model as linear_model,
    mechanisms as mechanisms,
    methods as methods,
    oracles as oracles,
    random as random,
    report as report,
    runs as runs,
    sampling as sampling,
    second_order as second_order,
    splitting as splitting,
    tables as tables,
    testing as testing,
    training as training,
    user_records as user_records,
)
from .accounting import Part
from .adaptive_clipping import AdaptiveClippedSum
from .clipping import AutomaticClipper, FlatClipper, PerLayerClipper
from .convex import ShuffleMeanOracle1, ShuffleMeanOracle2
from .correlated import CorrelatedGaussian
from .dry_run import Explanation, explain
from .error_feedback import BoundedFeedback, ErrorFeedbackOracle, PrivateFeedback, ReleasedFeedback
from .errors import (
    BudgetExceededError,
    DataStructureError,
    LedgerError,
    RankError,
    ResumeError,
    TacitaError,
    UnsupportedEventError,
    UnsupportedModuleError,
)
from .estimators import ClippedSum, clipped_gradient_sum
from .gradients import NetworkSource, SeveralViews, mean_over_views, pad_to
from .hardened import CappedSum, GridSum, RoundedGaussian
from .ledger import Ledger, Statement, statement
from .mechanisms import CalibratedGaussian, GaussianMechanism
from .methods import ExponentialAverage, RandomIterate, SuffixAverage
from .oracles import ClippedGradientOracle, GradientOracle, Records, Release
from .random import Randomness
from .runs import run_facts, seal_run
from .sampling import (
    AllocatedSampler,
    CyclicSampler,
    DisjointSampler,
    FixedSizeSampler,
    FullBatchSampler,
    PoissonSampler,
    ShuffledEpochsSampler,
    UnitPoissonSampler,
)
from .second_order import (
    StationarityQuery,
    StationaryCertificate,
    StationaryTest,
    is_second_order_stationary,
    public_stationarity,
)
from .splitting import cap_units, split
from .tables import Grid, Moments, MomentsOracle, Selection, Trial, clipped_training, load, select
from .training import Callback, EarlyStop, HeldOutLoss, Run, fit
from .user_records import UserRecords

__version__: str

__all__ = [
    "AdaptiveClippedSum",
    "AllocatedSampler",
    "AutomaticClipper",
    "BoundedFeedback",
    "BudgetExceededError",
    "CalibratedGaussian",
    "Callback",
    "CappedSum",
    "ClippedGradientOracle",
    "ClippedSum",
    "CorrelatedGaussian",
    "CyclicSampler",
    "DataStructureError",
    "DisjointSampler",
    "EarlyStop",
    "ErrorFeedbackOracle",
    "Explanation",
    "ExponentialAverage",
    "FixedSizeSampler",
    "FlatClipper",
    "FullBatchSampler",
    "GaussianMechanism",
    "GradientOracle",
    "Grid",
    "GridSum",
    "HeldOutLoss",
    "Ledger",
    "LedgerError",
    "Moments",
    "MomentsOracle",
    "NetworkSource",
    "Part",
    "PerLayerClipper",
    "PoissonSampler",
    "PrivateFeedback",
    "RandomIterate",
    "Randomness",
    "RankError",
    "Records",
    "Release",
    "ReleasedFeedback",
    "ResumeError",
    "RoundedGaussian",
    "Run",
    "Selection",
    "SeveralViews",
    "ShuffleMeanOracle1",
    "ShuffleMeanOracle2",
    "ShuffledEpochsSampler",
    "Statement",
    "StationarityQuery",
    "StationaryCertificate",
    "StationaryTest",
    "SuffixAverage",
    "TacitaError",
    "Trial",
    "UnitPoissonSampler",
    "UnsupportedEventError",
    "UnsupportedModuleError",
    "UserRecords",
    "cap_units",
    "clipped_gradient_sum",
    "clipped_training",
    "explain",
    "fit",
    "is_second_order_stationary",
    "load",
    "mean_over_views",
    "pad_to",
    "public_stationarity",
    "run_facts",
    "seal_run",
    "select",
    "split",
    "statement",
]
