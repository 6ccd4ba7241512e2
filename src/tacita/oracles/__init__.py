"""Oracles: the only way a gradient gets out."""

from tacita.oracles.certificate import StationaryCertificate
from tacita.oracles.clipped import ClippedGradientOracle
from tacita.oracles.error_feedback import ErrorFeedbackOracle
from tacita.oracles.gradient_oracle import GradientOracle, Release, trainable
from tacita.oracles.line import Line
from tacita.oracles.records import Records, cap_units, split
from tacita.oracles.stationary_test import StationaryTest
from tacita.oracles.unclipped import UnclippedGradientOracle

__all__ = [
    "ClippedGradientOracle",
    "ErrorFeedbackOracle",
    "GradientOracle",
    "Line",
    "Records",
    "Release",
    "StationaryCertificate",
    "StationaryTest",
    "UnclippedGradientOracle",
    "cap_units",
    "split",
    "trainable",
]
