"""One run's life: its folder, checkpoints, facts, and the seal of what it made."""

from tacita.runs.sealed_run import SealedRun, seal_run

__all__ = ["SealedRun", "seal_run"]
