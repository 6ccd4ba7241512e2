"""Bugs of hardened noise: a law that is not exact, contributions that grow, claims that are too strong."""

import sys

import numpy as np
import torch

from tacita.gradients.program import capped_sums
from tacita.hardened import (
    CappedSum,
    DiscreteGaussian,
    DiscreteGaussianEvent,
    GridSum,
    RoundedGaussian,
    discrete_event,
    grid,
    grid_sums,
    integer_noise,
    mechanisms,
)
from tacita.linear import losses
from tacita.mechanisms import GaussianMechanism
from tacita.oracles import network
from tacita.tables import held_out_score as score
from tacita.tables import purchases
from tests.planted.plant import bug, put, swap

NOISE = "tests/hardened/test_integer_noise.py::"
GRID = "tests/hardened/test_grid.py::"
ALONE = "tests/linear/test_exact.py::"
SUMS = "tests/hardened/test_grid_sums.py::"
INTEGER = "tests/hardened/test_mechanisms.py::"
EVENTS = "tests/hardened/test_discrete_event.py::"
ORACLE = "tests/oracles/test_hardened.py::"
TABLE = "tests/tables/test_hardened.py::"


@bug(38, caught_by=[INTEGER + "test_a_release_is_the_value_plus_whole_steps"])
def float_noise_put_on_the_grid():
    """The noise is a float32 normal, scaled and rounded: a law with holes and a tail that ends."""

    def draw(stream, count, scale):
        return np.rint(stream.normals(count).numpy() * np.float32(scale)).astype(np.int64)

    put(RoundedGaussian, "_draw", staticmethod(draw))


@bug(38, caught_by=[NOISE + "test_the_refined_path_is_taken_and_gives_the_same"])
def doubt_ignored():
    """An integer that float64 leaves in doubt is taken as it is."""
    whole = integer_noise._decided
    swap(whole, lambda *args: (whole(*args)[0], np.zeros(len(args[0]), bool)))


@bug(38, caught_by=[NOISE + "test_the_bound_holds_against_multiprecision"])
def bound_of_the_arithmetic_too_small():
    """The error of float64 is taken for less than it is, so that some integers are wrong and nobody doubts them."""
    put(integer_noise, "LINEAR", 1.1)
    put(integer_noise, "INVERSE", 0.1)


@bug(38, caught_by=[NOISE + "test_the_tail_goes_on_where_64_bits_end"])
def tail_ends_with_the_first_word():
    """Digits beyond the first word are ones: the tail of the noise ends."""
    ones = 2**64 - 1

    def digits(stream, place, count):
        value = int(stream.words(1, place)[0])
        for _ in range(count - 1):
            value = value << 64 | ones
        return value, 64 * count

    put(integer_noise, "_digits", digits)


@bug(38, caught_by=[NOISE + "test_discrete_gaussians_have_their_law"])
def nothing_is_rejected():
    """The discrete Gaussian is the rounded one."""
    swap(integer_noise._redrawn, lambda stream, scale, places, integers, units: integers)


@bug(34, 38, caught_by=[NOISE + "test_rejected_values_are_drawn_anew_from_words_of_their_own"])
def coins_from_the_words_of_the_noise():
    """The coins of the rejection are read from the words that made the value."""
    put(integer_noise, "UNITS", 0)


@bug(39, caught_by=[INTEGER + "test_large_sums_wrap_after_the_noise_as_before_it"])
def large_sums_rounded_to_float():
    """A sum beyond 2^53 steps is rounded when it becomes a float: another record may move it by more than itself."""
    swap(mechanisms.wrapped, lambda whole: whole)


@bug(
    39,
    caught_by=[
        GRID + "test_no_record_adds_more_than_the_bound_exactly",
        GRID + "test_it_is_truncation_toward_zero_of_the_weighted_rows",
    ],
)
def rounded_to_nearest():
    """A record is rounded to the nearest step, so that its norm may grow."""

    def nearest(rows, factors, absent):
        products = rows.double() * factors.unsqueeze(-1)
        return torch.where(factors.unsqueeze(-1) == 0, 0.0, products).round().sum(dim=-2)

    swap(grid._truncated, nearest)


@bug(26, 39, caught_by=[GRID + "test_a_whole_step_reached_by_rounding_alone_is_not_taken"])
def no_room_for_the_product_on_a_grid():
    """The product of weight and gradient rounds up to the next whole step."""
    put(grid, "with_room", lambda weights, dtype: weights)


@bug(39, caught_by=[GRID + "test_given_rows_give_the_same_bits_in_every_order_where_float_sums_do_not"])
def truncated_after_the_sum():
    """Contributions are summed in floating point, and the sum is truncated."""

    def late(rows, weights, step):
        return ((weights.to(rows.dtype).unsqueeze(-1) * rows).sum(dim=-2) / step).trunc().to(torch.int64)

    swap(grid.truncated_sum, late)


@bug(38, 39, caught_by=[ALONE + "test_a_row_has_the_same_bits_wherever_it_stands"])
def softmax_shifted_by_the_batch():
    """The softmax is taken after the largest output of the batch, not of the row: companions show in the last bits."""

    def shifted(self, outputs, targets):
        shares = losses.exp_by_row(outputs - outputs.amax())
        return self._less_own(shares / losses.tree_sum(shares.clone()).unsqueeze(1), targets)

    put(losses.MultinomialLoss, "exact_derivative", shifted)


@bug(38, caught_by=[TABLE + "test_predictions_for_the_score_are_made_row_by_row"])
def score_predicted_in_batches():
    """The held-out rows are predicted together, so that one may turn another's tie."""
    whole = score._outputs
    swap(whole, lambda model, rows, *, alone=False: whole(model, rows, alone=False))


@bug(39, 47, caught_by=[SUMS + "test_a_record_whose_positions_cancel_is_capped"])
def reach_not_capped():
    """Products that cancel in one record's gradient are not capped, and their rounding has no bound."""
    swap(capped_sums._reach, lambda uses, names, like: torch.zeros_like(like))


@bug(39, caught_by=[SUMS + "test_its_sensitivity_has_the_rounding_in_it"])
def rounding_of_the_sum_forgotten():
    """The sensitivity of a sum in floating point is stated as that of the exact one."""
    put(CappedSum, "contribution_factor", property(lambda self: 1.0))


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


@bug(38, caught_by=[INTEGER + "test_discrete_noise_has_an_event_of_its_own_or_is_refused"])
def discrete_noise_charged_as_gaussian():
    """The discrete Gaussian is accounted with the Gaussian's privacy loss distribution, which it has not."""
    put(DiscreteGaussian, "event", lambda self, event: event)


@bug(1, 38, caught_by=[EVENTS + "test_cells_without_a_proof_are_refused"])
def discrete_noise_where_nothing_is_proved():
    """Any sampling and relation is taken for the discrete Gaussian."""
    put(DiscreteGaussianEvent, "__post_init__", lambda self: None)


@bug(12, 38, caught_by=[EVENTS + "test_the_bound_is_above_the_sampled_truth_in_both_directions"])
def moments_of_a_smaller_shift():
    """The moments of the sampled discrete Gaussian are those at 0.6 percent more noise."""
    whole = discrete_event.log_moment
    swap(whole, lambda rate, ratio, order: whole(rate, ratio * 0.994, order))


@bug(38, caught_by=[TABLE + "test_counts_are_bought_with_whole_noise"])
def purchases_in_floating_point():
    """What a hardened run buys has floating-point noise."""
    swap(purchases._mechanism, lambda session: GaussianMechanism(noise_multiplier=1.0))


@bug(38, caught_by=[ORACLE + "test_the_statement_says_what_is_claimed"])
def batched_kernels_claimed_as_exact():
    """Records that were computed together are claimed not to show in each other's bits."""
    swap(network._clipped, lambda clipper, mechanism, method: GridSum(clipper, together=False))


@bug(38, caught_by=[ORACLE + "test_a_session_without_hardening_is_named"])
def open_sessions_not_named():
    """A statement says that attacks on floating point are closed, though a session of the ledger is open to them."""
    module = sys.modules["tacita.ledger.statement"]
    whole = module.floating_point
    put(module, "floating_point", lambda ledger: whole(ledger).split("That does not cover")[0])
