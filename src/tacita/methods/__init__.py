"""Methods that use releases only (post-processing). Any ``torch.optim`` optimizer can be used beside them."""

from tacita.methods.averaged import ExponentialAverage, SuffixAverage
from tacita.methods.random_iterate import RandomIterate

__all__ = [
    "ExponentialAverage",
    "RandomIterate",
    "SuffixAverage",
]
