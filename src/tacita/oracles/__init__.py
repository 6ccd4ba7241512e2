"""Oracles, which are the only way to get a gradient out of private data."""

from tacita.oracles.gate import ReleaseGate
from tacita.oracles.gradient_oracle import GradientOracle, Queryable, Release
from tacita.oracles.network import ClippedGradientOracle
from tacita.oracles.records import Records
from tacita.oracles.updates import trainable

__all__ = [
    "ClippedGradientOracle",
    "GradientOracle",
    "Queryable",
    "Records",
    "Release",
    "ReleaseGate",
    "trainable",
]
