"""Training: the life of a run, the loop, checkpoints, progress, and ``fit``, the five-line path."""

from tacita.training.callbacks import Callback, Spent
from tacita.training.finished_run import Run
from tacita.training.fit import fit
from tacita.training.held_out_loss import HeldOutLoss
from tacita.training.public_loss import EarlyStop

__all__ = [
    "Callback",
    "EarlyStop",
    "HeldOutLoss",
    "Run",
    "Spent",
    "fit",
]
