"""Below the line: what is made of releases. Any ``torch.optim`` optimizer serves too."""

from tacita.methods.averaged import SuffixAverage
from tacita.methods.random_iterate import RandomIterate

__all__ = ["RandomIterate", "SuffixAverage"]
