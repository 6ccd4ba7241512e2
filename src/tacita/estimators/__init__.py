"""Above the line: bounded values of a batch, their sensitivity, and the event of a session."""

from tacita.estimators.clipped_difference import ClippedDifference, ClippedMean
from tacita.estimators.clipped_sum import ClippedGradientSum, ClippedSum, clipped_gradient_sum
from tacita.estimators.error_feedback import (
    BoundedErrorSum,
    BoundedFeedback,
    HiddenErrorSum,
    PrivateFeedback,
    ReleasedErrorSum,
    ReleasedFeedback,
)
from tacita.estimators.estimator import Estimator, Values
from tacita.estimators.grid_sums import CappedSum, GridSum
from tacita.estimators.median_of_means import MedianOfMeans
from tacita.estimators.released_difference import ReleasedDifference
from tacita.estimators.second_moment import SecondMoment, symmetric_entries, symmetric_matrix
from tacita.estimators.stationarity_query import StationarityQuery
from tacita.estimators.unclipped_sum import UnclippedSum

__all__ = [
    "BoundedErrorSum",
    "BoundedFeedback",
    "CappedSum",
    "ClippedDifference",
    "ClippedGradientSum",
    "ClippedMean",
    "ClippedSum",
    "Estimator",
    "GridSum",
    "HiddenErrorSum",
    "MedianOfMeans",
    "PrivateFeedback",
    "ReleasedDifference",
    "ReleasedErrorSum",
    "ReleasedFeedback",
    "SecondMoment",
    "StationarityQuery",
    "UnclippedSum",
    "Values",
    "clipped_gradient_sum",
    "symmetric_entries",
    "symmetric_matrix",
]
