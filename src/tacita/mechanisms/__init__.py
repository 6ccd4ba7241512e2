"""Noise: what turns bounded values into a release."""

from tacita.mechanisms.gaussian import CalibratedGaussian, GaussianMechanism

__all__ = ["CalibratedGaussian", "GaussianMechanism"]
