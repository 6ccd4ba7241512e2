"""Bugs of hardened noise: a law that is not exact, contributions that grow, claims that are too strong."""

import sys

import numpy as np
import torch

from tacita.gradients.program import capped_sums
from tacita.hardened import CappedSum, GridSum, grid_sums, mechanisms
from tacita.oracles import network
from tests.planted.plant import bug, put, swap

SUMS = "tests/hardened/test_grid_sums.py::"
INTEGER = "tests/hardened/test_mechanisms.py::"
ORACLE = "tests/oracles/test_hardened.py::"


@bug(38, caught_by=[INTEGER + "test_a_release_is_the_value_plus_whole_steps"])
def float_noise_put_on_the_grid():
    """The noise is a float32 normal, scaled and rounded: a law with holes and a tail that ends."""

    def draw(stream, count, scale):
        return np.rint(stream.normals(count).numpy() * np.float32(scale)).astype(np.int64)

    put(mechanisms, "rounded_normals", draw)


@bug(39, 47, caught_by=[SUMS + "test_a_record_whose_positions_cancel_is_capped"])
def reach_not_capped():
    """Products that cancel in one record's gradient are not capped, and their rounding has no bound."""
    swap(capped_sums._reach, lambda uses, names, like: torch.zeros_like(like))


@bug(39, caught_by=[SUMS + "test_the_bound_counts_every_rounding"])
def roundings_of_one_block_only():
    """The bound of the sum's rounding forgets that blocks are added up."""
    swap(
        capped_sums.summation_error,
        lambda max_records, cap: capped_sums.gamma(capped_sums.BLOCK_TERMS, torch.float64) * max_records,
    )


@bug(
    39,
    caught_by=[
        SUMS + "test_batches_that_could_overflow_are_refused_when_built",
        ORACLE + "test_a_batch_that_could_overflow_is_refused_by_public_numbers",
    ],
)
def overflow_not_looked_at():
    """Batches that are too large for the grid, or for the bound of their rounding, are taken."""
    put(grid_sums._OnGrid, "check_batch", lambda self, expected_batch_size, shapes: None)
    put(CappedSum, "check_batch", lambda self, expected_batch_size, shapes: None)


@bug(38, caught_by=[ORACLE + "test_the_statement_says_what_is_claimed"])
def batched_kernels_claimed_as_exact():
    """Records that were computed together are claimed not to show in each other's bits."""
    swap(network._clipped, lambda clipper, mechanism, alone: GridSum(clipper, together=False))


@bug(38, caught_by=[ORACLE + "test_records_that_are_computed_together_are_not_claimed_to_be_alone"])
def records_together_claimed_alone():
    """A caller's claim that records are computed alone is taken whatever the source does."""
    put(GridSum, "needs_rows_alone", False)


@bug(38, caught_by=[ORACLE + "test_a_session_without_hardening_is_named"])
def open_sessions_not_named():
    """A statement says that attacks on floating point are closed, though a session of the ledger is open to them."""
    module = sys.modules["tacita.ledger.statement"]
    whole = module.floating_point
    put(module, "floating_point", lambda ledger: whole(ledger).split("That does not cover")[0])
