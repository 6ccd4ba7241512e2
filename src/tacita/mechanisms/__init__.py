"""Mechanisms: noise that turns bounded values into a release."""

from tacita.mechanisms.gaussian import CalibratedGaussian, GaussianMechanism
from tacita.mechanisms.mechanism import Mechanism

__all__ = [
    "CalibratedGaussian",
    "GaussianMechanism",
    "Mechanism",
]
