"""Bugs of what plans promise, and of what a run's average is made of."""

import numpy as np
import torch

import tacita
from tacita import _domains
from tacita.methods import ExponentialAverage
from tests.planted.plant import bug, put, swap

VARIANTS = "tests/training/test_fit_variants.py::"
CONTRACT = "tests/clipped_sgd/test_contract.py::"


@bug(caught_by=[CONTRACT + "test_bad_input_is_refused_by_its_name"])
def nan_passes_for_a_number():
    """Arguments of theory are refused where they are too small or too large, and NaN is neither."""

    def lenient(name, value, domain, arrays):
        array = np.asarray(value, dtype=np.float64)
        if not np.all(domain.holds(array) | np.isnan(array)):
            raise ValueError(f"{name} must be {domain.words}, got {value!r}.")

    swap(_domains.check, lenient)


@bug(caught_by=[VARIANTS + "test_what_a_run_ends_at_is_a_function_of_its_releases"])
def average_of_values_above_the_line():
    """The fading average leans towards the batch's clipped sum without its noise."""
    private, commit, update = {}, tacita.oracles.ReleaseGate.commit, ExponentialAverage.update

    def seeing(self, query, values, seen=None):
        private.update({name: value.detach().clone() for name, value in values["gradient"].items()})
        return commit(self, query, values, seen)

    def leaning(self, params):
        update(self, {name: p.detach() - 0.01 * torch.sign(private[name]) for name, p in params.items()})

    put(tacita.oracles.ReleaseGate, "commit", seeing)
    put(ExponentialAverage, "update", leaning)
