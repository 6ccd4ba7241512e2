"""Training: the life of a run, the loop, checkpoints, progress, and ``fit``, the five-line path."""

from tacita.training.fit import Run, fit
from tacita.training.sealed_run import SealedRun, seal_run

__all__ = ["Run", "SealedRun", "fit", "seal_run"]
