"""tacita: differentially private training in PyTorch whose epsilon can be trusted.

One idea holds it together: a private gradient oracle with a line through it. Raw data only inside, ordinary
optimization outside, the ledger on the line.
"""

from tacita.accounting import Ledger, Part, Statement, statement
from tacita.clipping import AutomaticClipper, FlatClipper, PerLayerClipper
from tacita.errors import (
    BudgetExceededError,
    DataStructureError,
    LedgerError,
    ResumeError,
    TacitaError,
    UnsupportedEventError,
    UnsupportedModuleError,
)
from tacita.estimators import (
    BoundedFeedback,
    CappedSum,
    ClippedSum,
    GridSum,
    PrivateFeedback,
    ReleasedFeedback,
    StationarityQuery,
    UnclippedSum,
    clipped_gradient_sum,
)
from tacita.experiments.paper_noise import unsafe_paper_noise
from tacita.gradients import Explanation, NetworkSource, explain, is_second_order_stationary, public_stationarity
from tacita.mechanisms import CalibratedGaussian, DiscreteGaussian, GaussianMechanism, RoundedGaussian
from tacita.methods import RandomIterate, SuffixAverage
from tacita.oracles import (
    ClippedGradientOracle,
    ErrorFeedbackOracle,
    GradientOracle,
    Records,
    Release,
    StationaryCertificate,
    StationaryTest,
    UnclippedGradientOracle,
    cap_units,
    split,
)
from tacita.pipeline import load
from tacita.random import Randomness
from tacita.sampling import (
    DisjointSampler,
    FixedSizeSampler,
    FullBatchSampler,
    PoissonSampler,
    ShuffledEpochsSampler,
    UnitPoissonSampler,
)
from tacita.selection import Grid, Selection, Trial, clipped_training, select
from tacita.training import Run, fit

__version__ = "0.1.0"

__all__ = [
    "AutomaticClipper",
    "BoundedFeedback",
    "BudgetExceededError",
    "CalibratedGaussian",
    "CappedSum",
    "ClippedGradientOracle",
    "ClippedSum",
    "DataStructureError",
    "DiscreteGaussian",
    "DisjointSampler",
    "ErrorFeedbackOracle",
    "Explanation",
    "FixedSizeSampler",
    "FlatClipper",
    "FullBatchSampler",
    "GaussianMechanism",
    "GradientOracle",
    "Grid",
    "GridSum",
    "Ledger",
    "LedgerError",
    "NetworkSource",
    "Part",
    "PerLayerClipper",
    "PoissonSampler",
    "PrivateFeedback",
    "RandomIterate",
    "Randomness",
    "Records",
    "Release",
    "ReleasedFeedback",
    "ResumeError",
    "RoundedGaussian",
    "Run",
    "Selection",
    "ShuffledEpochsSampler",
    "Statement",
    "StationarityQuery",
    "StationaryCertificate",
    "StationaryTest",
    "SuffixAverage",
    "TacitaError",
    "Trial",
    "UnclippedGradientOracle",
    "UnclippedSum",
    "UnitPoissonSampler",
    "UnsupportedEventError",
    "UnsupportedModuleError",
    "cap_units",
    "clipped_gradient_sum",
    "clipped_training",
    "explain",
    "fit",
    "is_second_order_stationary",
    "load",
    "public_stationarity",
    "select",
    "split",
    "statement",
    "unsafe_paper_noise",
]
