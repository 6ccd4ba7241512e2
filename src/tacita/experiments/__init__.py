"""Experiments: the papers' figures and tables as data, and one runner (``tacita reproduce``)."""

from tacita.experiments.catalogue import catalogue, find
from tacita.experiments.runner import Check, Experiment, Progress, Result

__all__ = ["Check", "Experiment", "Progress", "Result", "catalogue", "find"]
