"""Correlated noise: each query's noise takes back part of the noise before it, so that running sums keep less.

It stands on the core, which knows nothing of it but that noise may have lags.
"""

from tacita.correlated.choice import Noise, Strategy, choose_strategy, recommended_noise
from tacita.correlated.event import CorrelatedEvent
from tacita.correlated.mechanism import CorrelatedGaussian
from tacita.correlated.strategy import recommended_power

__all__ = [
    "CorrelatedEvent",
    "CorrelatedGaussian",
    "Noise",
    "Strategy",
    "choose_strategy",
    "recommended_noise",
    "recommended_power",
]
