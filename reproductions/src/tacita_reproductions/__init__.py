"""Experiments that reproduce the papers' figures and tables, and the runner behind ``tacita reproduce``."""

from tacita_reproductions.catalogue import catalogue, find
from tacita_reproductions.runner import Check, Experiment, Progress, Result

__all__ = ["Check", "Experiment", "Progress", "Result", "catalogue", "find"]
