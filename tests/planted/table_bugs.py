"""Bugs of tables: a parser that tells about rows, types and bounds that were not bought."""

from types import SimpleNamespace

import msgspec
import numpy as np

from tacita.mechanisms import GaussianMechanism
from tacita.tables import (
    additive,
    budget,
    cells,
    csv_lines,
    dry_run,
    intervals,
    lean_survey,
    preprocessing,
    purchases,
    random_rounding,
    readers,
    table_statement,
    task,
    units,
)
from tacita.tables import held_out_score as pipeline_score
from tacita.tables import score as scores
from tests.planted.plant import bug, put, swap

READERS = "tests/tables/test_readers.py::"
CELLS = "tests/tables/test_cells.py::"
PURCHASES = "tests/tables/test_purchases.py::"
BUDGET = "tests/tables/test_budget.py::"


@bug(50, caught_by=[CELLS + "test_what_float_might_take_is_no_number"])
def cells_parsed_by_float():
    """A cell goes to float(), whose message quotes it."""
    swap(cells.parse_number, float)


@bug(50, caught_by=[READERS + "test_a_broken_file_raises_one_line_that_shows_nothing_of_it"])
def parser_message_shown():
    """The message of a file's own parser is passed on."""
    names = readers._header

    def quoting(line, reading):
        try:
            return names(line, reading)
        except readers.DataStructureError as error:
            raise readers.DataStructureError(f"invalid header {line!r}") from error

    swap(names, quoting)


@bug(50, caught_by=[READERS + "test_a_row_of_the_wrong_width_keeps_its_place_and_counts_for_nothing"])
def row_of_the_wrong_width_raises():
    """A row with a cell too many stops the run, with the row in the message."""
    whole = readers.split_line

    def strict(line, reading):
        found = whole(line, reading)
        if len(found) != 2:
            raise ValueError(f"could not read {line!r}")
        return found

    swap(whole, strict)


@bug(
    18,
    50,
    caught_by=[
        PURCHASES + "test_every_count_gets_noise_std_times_its_own_normal_and_is_rounded",
    ],
)
def types_inferred_without_noise():
    """Types and bounds are read from exact counts."""
    put(GaussianMechanism, "__call__", lambda self, values, noise_std, normals: values)


@bug(18, caught_by=["tests/tables/test_lean_survey.py::test_every_dyadic_bin_is_in_one_coarse_bin"])
def number_in_two_coarse_bins():
    """A number of a lean survey counts in its coarse bin and in the one beside, and is charged for one."""
    whole = lean_survey.in_groups

    def overlapping(bins):
        found = whole(bins)
        found[:, 4:] += whole(bins)[:, 3:-1]
        return found

    swap(whole, overlapping)


@bug(38, caught_by=[PURCHASES + "test_floating_point_noise_leaves_no_trace"])
def floating_point_noise_on_counts():
    """Counts get floating-point noise, whose low bits show that they are integers."""
    put(purchases, "np", SimpleNamespace(rint=lambda counts: counts))


@bug(
    18,
    caught_by=[
        BUDGET + "test_single_texts_stay_unreleased",
        BUDGET + "test_new_texts_pass_the_threshold_with_at_most_the_stated_chance",
    ],
)
def texts_of_one_record_released():
    """A text is released as soon as its noisy count is likely to be above one."""
    swap(budget.text_threshold, lambda noise_std, failure, new, rows=1: noise_std + rows)


@bug(15, caught_by=[BUDGET + "test_the_event_states_the_move_of_the_worst_neighbour"])
def purchases_by_the_row():
    """Counts are bought at the price of one row where a person has several."""
    put(budget.PurchasePlan, "contribution", lambda self, histograms: histograms**0.5)


@bug(44, 50, caught_by=["tests/tables/test_pickles.py::test_an_object_in_an_npz_file_is_refused_and_not_run"])
def npz_unpickled():
    """Objects in an NPZ file are unpickled, which runs what they hold."""
    whole = np.load
    put(np, "load", lambda path, *, allow_pickle: whole(path, allow_pickle=True))


LINES = "tests/tables/test_csv_lines.py::"


@bug(50, caught_by=[LINES + "test_an_open_quote_reaches_no_other_line", LINES + "test_fast_is_plain"])
def quotes_reach_the_next_line():
    """Lines with any quotes are read together: an open quote swallows the records after it."""
    swap(csv_lines._well_quoted, lambda block, *more: np.ones(len(block.ends), bool))


@bug(50, caught_by=[LINES + "test_fast_is_plain"])
def faulty_text_decoded_together():
    """Bytes that are not UTF-8 are decoded over the end of a cell."""
    swap(csv_lines._one_text, lambda block, encoding: True)


@bug(50, caught_by=[LINES + "test_many_cells_are_read_as_one"])
def cells_cast_by_arrow():
    """Many cells are numbers where Arrow can cast them: nan, inf and what overflows."""
    import pyarrow as pa

    def cast(column, decimal="."):
        values = np.array([float(pa.scalar(cell).cast(pa.float64()).as_py()) if _castable(cell) else np.nan
                           for cell in column.to_pylist()])  # fmt: skip
        return np.nan_to_num(values), ~np.isnan(values)

    swap(cells.numbers_of, cast)


def _castable(cell):
    import pyarrow as pa

    try:
        pa.scalar(cell).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


@bug(30, caught_by=[LINES + "test_chunks_are_the_whole_bit_for_bit"])
def held_out_by_the_same_coins_in_each_chunk():
    """The coins that hold rows out are thrown once, and serve every chunk of the file."""
    whole = units.held_out

    def forgetful(table, fraction, key, *, first=0, **more):
        return whole(table, fraction, key, **more)

    swap(whole, forgetful)


SCORE = "tests/tables/test_score.py::"
TRUE = "tests/tables/test_truthful.py::"
INTERVALS = "tests/tables/test_intervals.py::"
TASK = "tests/tables/test_task.py::"


@bug(
    66,
    caught_by=[
        SCORE + "test_a_label_that_is_no_class_of_the_model_is_wrong",
        TRUE + "test_labels_that_were_not_bought_are_wrong_and_said",
    ],
)
def rows_of_unknown_labels_are_not_scored():
    """A held-out row whose label was not bought is left out of the score."""
    counts = scores.score_counts

    def known_only(encoder, outputs, target, known, labelled, **more):
        return counts(encoder, outputs, target, known, labelled & known, **more)

    swap(counts, known_only)


@bug(66, caught_by=[TRUE + "test_the_score_without_noise_counts_them_too"])
def the_exact_score_leaves_unknown_labels_out():
    """A score outside the guarantee is of the rows alone whose label the model knows."""
    answers = pipeline_score._answers

    def known_only(rows):
        target, known, labelled = answers(rows)
        return target, known, labelled & known

    put(pipeline_score, "_answers", known_only)


@bug(66, caught_by=[INTERVALS + "test_accuracy"])
def interval_without_sampling():
    """The stated error is that of the noise alone."""
    share = intervals.share

    def noise_alone(right, wrong, noise_std):
        rows = max(right + wrong, 1.0)
        half = 2 * noise_std / rows
        found = share(right, wrong, noise_std)
        value = min(max(right / rows, 0.0), 1.0)
        return intervals.ScoreInterval(value=found.value, lower=value - half, upper=value + half)

    swap(share, noise_alone)


@bug(66, caught_by=[INTERVALS + "test_accuracy"])
def interval_without_noise():
    """The stated error is that of sampling alone."""
    share = intervals.share
    swap(share, lambda right, wrong, noise_std: share(max(right, 0.0), max(wrong, 0.0), 0.0))


@bug(66, caught_by=[INTERVALS + "test_balanced_accuracy_and_auc"])
def interval_of_the_curve_without_sampling():
    """The interval of the area under the curve has the noise alone."""
    put(
        intervals,
        "_around",
        lambda value, half: intervals.ScoreInterval(value=value, lower=value - half / 3, upper=value + half / 3),
    )


@bug(66, caught_by=[INTERVALS + "test_r2"])
def baseline_is_the_bought_centre():
    """R2 compares with the bought centre of the target, not with its mean on the scored rows."""
    ratio = intervals.ratio

    def about_zero(errors, squares, targets, marks, **noise):
        return ratio(errors, squares, targets + targets[::-1], marks, **noise)  # whose mean is 0

    swap(ratio, about_zero)


ROUNDING = "tests/tables/test_random_rounding.py::"


@bug(66, caught_by=[INTERVALS + "test_r2_of_many_rows_whatever_the_law", ROUNDING + "test_the_mean_is_kept"])
def rounded_to_the_nearer_edge():
    """A squared error is counted at the nearer of two numbers, so that the mean of what is counted is another one."""
    kept = random_rounding.rounded
    swap(kept, lambda values, edges, coins: kept(values, edges, np.full_like(coins, 0.5)))


@bug(66, caught_by=[ROUNDING + "test_two_coins_keep_the_mean_and_that_of_the_squares"])
def one_coin_for_a_target():
    """The two roundings of a target share a coin: its mean is kept, and that of its square is too large."""
    kept = random_rounding.rounded
    swap(kept, lambda values, edges, coins: kept(values, edges, np.broadcast_to(coins[:1], coins.shape)))


@bug(66, caught_by=["tests/tables/test_train.py::test_a_redone_score_of_a_regression_is_the_same"])
def rounding_coins_of_the_moment():
    """The coins that round squared errors are thrown anew when a score is counted again."""
    put(pipeline_score, "_coins", lambda stream, first, rows: np.random.default_rng().random((scores.COINS, rows)))


@bug(66, caught_by=[SCORE + "test_errors_are_of_targets_that_are_not_clipped"])
def errors_of_clipped_targets():
    """Squared errors are taken from targets clipped to the bought bounds: wrong bounds make a good score."""
    counts = scores._number_counts
    put(scores, "_number_counts", lambda predicted, target, *more: counts(predicted, np.clip(target, -3, 3), *more))


@bug(66, caught_by=[TRUE + "test_a_constant_model_says_so_first_and_has_no_score"])
def a_constant_is_scored():
    """A model that is a constant gets a score like any other, and no word."""
    put(preprocessing.Preprocessing, "constant", property(lambda self: False))


@bug(67, caught_by=[TASK + "test_it_is_the_same_in_every_run", TASK + "test_noise_makes_no_regression_of_labels"])
def task_by_the_larger_noisy_count():
    """The task follows the sign of a noisy difference: noise makes regressions of small tables."""
    read = task.read_task

    def by_sign(counts, noise_std):
        found = read(counts, noise_std)
        number = counts[3] > 0.1 * counts[1:].sum()
        return msgspec.structs.replace(found, task="regression" if number else "classification")

    swap(read, by_sign)


@bug(67, caught_by=[TRUE + "test_the_task_is_said_where_it_is_decided"])
def the_task_is_not_said():
    """Nothing on the terminal says which task was decided."""
    put(table_statement, "task_words", lambda *arguments: "bought")


@bug(67, caught_by=[TRUE + "test_labels_that_were_not_bought_are_wrong_and_said"])
def classes_that_were_not_kept_are_not_said():
    """How many rows have a label that was not bought stands nowhere."""
    put(table_statement, "classes_kept", lambda *arguments: None)


@bug(66, caught_by=[TRUE + "test_what_a_label_needs_is_what_it_gets"])
def the_need_of_a_label_ignores_its_noise():
    """What a label is said to need before anything is spent is not the threshold that it must pass."""
    words = dry_run.what_survives
    swap(
        words, lambda plan: ["a label needs about 5 rows to be seen" if "label" in one else one for one in words(plan)]
    )


@bug(
    20, caught_by=["tests/tables/test_table_file.py::test_a_parquet_file_is_read_in_memory_that_does_not_grow_with_it"]
)
def parquet_bytes_kept():
    """Arrow keeps the bytes of every row group that it has read, as it does unless it is told otherwise."""
    from pyarrow import parquet

    whole = parquet.ParquetFile.__init__
    put(
        parquet.ParquetFile,
        "__init__",
        lambda self, source, **more: whole(self, source, **{**more, "pre_buffer": True}),
    )


@bug(66, caught_by=["tests/tables/test_interval_coverage.py::test_accuracy"])
def interval_without_the_half_row():
    """Where few rows are wrong the interval of the accuracy ends as if their number had a normal law."""
    put(intervals, "SKEW", 0.0)


ADDITIVE = "tests/tables/test_additive.py::"


@bug(66, caught_by=[ADDITIVE + "test_masses_are_those_that_were_bought"])
def the_mass_of_zero_stays_in_the_fine_bin():
    """The bin of zero has next to no mass where most rows are zero, so that its weight diverges quietly."""
    kept = additive._masses

    def spread(piece, facts):
        found = kept(piece, facts)
        place = np.searchsorted(piece.edges, 0.0, side="right")
        found[place], found[-2] = found[place] + found[-2], 0.0
        return found

    swap(kept, spread)


@bug(66, caught_by=[ADDITIVE + "test_clipping_starts_where_the_residual_is_at_its_bound"])
def the_factor_on_the_loss_forgets_the_bias():
    """Residuals are clipped below their bound, because a row's norm counts its columns alone."""
    kept = additive.row_weight
    swap(kept, lambda encoder, norm: kept(encoder, norm) * (1 + 1 / len(encoder.pieces)) ** 0.5)
