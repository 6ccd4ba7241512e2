"""Training: the loop, checkpoints, progress, and the five-line path."""

from tacita.training.fit import Run, fit

__all__ = ["Run", "fit"]
