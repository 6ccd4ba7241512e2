"""Hardened noise: whole numbers on a grid, sampled exactly, against attacks on the rounding of floating point.

It stands on the core, which knows nothing of it: a mechanism names the estimator that its noise needs.
"""

from tacita.hardened.grid_sums import CappedSum, GridSum
from tacita.hardened.mechanisms import RoundedGaussian

__all__ = [
    "CappedSum",
    "GridSum",
    "RoundedGaussian",
]
