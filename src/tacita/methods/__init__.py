"""Below the line: what is made of releases. Any ``torch.optim`` optimizer serves too."""

from tacita.methods.averaged import SuffixAverage

__all__ = ["SuffixAverage"]
