import numpy as np
import pytest

from tacita.tables import Schema, Target, refined_columns
from tacita.tables.histograms import (
    FINE_BINS,
    ZERO,
    bounds,
    read_refinement,
    refinement_counts,
    survey_counts,
    survey_of,
    target_facts,
)
from tests.tables.buying import buy_refinement, buy_survey


def test_every_count_of_the_survey_gets_noise(table_of, normals):
    table = table_of("a,b", *["1,x"] * 1000)
    counts = survey_counts(table, Schema(), ["a", "b"])
    asked = {}

    def record(label, count):
        asked[label] = count
        return normals()(label, count)

    buy_survey(table, Schema(), ["a", "b"], noise_std=5.0, threshold=40.0, normals=record)
    assert asked == {label: values.numel() for label, values in counts.tensors().items()}


def test_without_noise_the_survey_reads_the_table(table_of, normals):
    rows = [f"{age},{job},{age}x" for age in range(20, 60) for job in ["cook"] * 3 + ["smith"]]
    table = table_of("age,job,code", *rows, "too,wide,row,x", "?,,")
    found = buy_survey(
        table, Schema(), ["age", "job", "code"], noise_std=0.0, threshold=10.0, normals=normals(factor=0.0)
    )
    age, job, code = found.columns
    assert found.rows == 161
    assert (age.kind, age.missing) == ("number", 1.0)
    assert [(bin.lower, bin.count) for bin in age.bins] == [(16.0, 48.0), (32.0, 112.0)]
    assert (job.kind, job.values) == ("category", (("cook", 120.0), ("smith", 40.0)))
    assert (code.kind, code.values) == ("dropped", ())  # unique texts: nothing is released


def test_the_refinement_counts_each_number_once_between_the_bought_bounds(table_of, normals):
    table = table_of("year,name", *[f"{year},n" for year in range(1990, 2021)] * 20, "1e9,n", "-5,n", "?,n")
    bare = buy_survey(table, Schema(), ["year", "name"], noise_std=2.0, threshold=40.0, normals=normals(1))
    assert refined_columns(bare) == ("year",)
    counts = refinement_counts(table, Schema(), bare)
    assert counts.shape == (1, FINE_BINS)
    assert counts.sum() == 31 * 20 + 2  # far values count in the end bins
    assert counts[0, 0] >= 1
    fine = buy_refinement(table, Schema(), bare, noise_std=2.0, normals=normals(2))
    bins = fine.facts("year").fine
    low, high = bounds(bins)
    assert 1970 < low < 1992
    assert 2015 < high < 2048
    assert bare.facts("year").bins == fine.facts("year").bins


def test_rows_that_do_not_count_are_in_no_purchase(table_of, normals):
    """A person's rows beyond the cap, say: well-formed, but not valid."""
    table = table_of("a", *["3"] * 500, *["7"] * 500)
    capped = table.keep(np.arange(1000) < 500)
    bare = buy_survey(table, Schema(), ["a"], noise_std=1.0, threshold=40.0, normals=normals(1))
    assert refinement_counts(capped, Schema(), bare).sum() == 500
    counts = survey_counts(capped, Schema(), ["a"])
    assert counts.bins.sum() == 500
    assert counts.names == (("3",),)


def test_neighbours_move_one_fine_bin(table_of, normals):
    lines = [str(value) for value in range(1, 300)]
    bare = buy_survey(table_of("a", *lines), Schema(), ["a"], noise_std=1.0, threshold=40.0, normals=normals(1))
    before = refinement_counts(table_of("a", *lines), Schema(), bare)
    for extra in ("5", "-1e300", "1e300", "?", "x", "", '"', "5,5"):
        moved = refinement_counts(table_of("a", *lines, extra), Schema(), bare) - before
        assert moved.abs().sum() <= 1
        assert moved.min() >= 0


def test_a_refinement_that_is_all_noise_keeps_the_dyadic_bins(table_of, normals):
    bare = buy_survey(table_of("a", *["3"] * 50), Schema(), ["a"], noise_std=1.0, threshold=40.0, normals=normals(1))
    found = read_refinement(bare, np.zeros((1, FINE_BINS)), 100.0)
    assert found.facts("a").fine == ()


@pytest.mark.parametrize("value", ["0", "7", "-2.5"])
def test_a_constant_column_has_bounds(table_of, normals, value):
    table = table_of("a", *[value] * 500)
    bare = buy_survey(table, Schema(), ["a"], noise_std=2.0, threshold=40.0, normals=normals(1))
    low, high = bounds(bare.facts("a").bins)
    assert low < high
    fine = buy_refinement(table, Schema(), bare, noise_std=2.0, normals=normals(2))
    assert bounds(fine.facts("a").fine)[0] <= float(value) <= bounds(fine.facts("a").fine)[1]


@pytest.mark.parametrize("lines", [[], ["1,x"], ["?,"], ["bad"]])
def test_tables_of_almost_no_rows_are_ordinary(table_of, normals, lines):
    schema = Schema(target=Target(column="y"))
    table = table_of("x,y", *lines)
    found = buy_survey(table, schema, ["x", "y"], noise_std=60.0, threshold=400.0, normals=normals(3))
    found = buy_refinement(table, schema, found, noise_std=60.0, normals=normals(4))
    assert found.rows == 0
    assert {facts.kind for facts in found.columns} == {"dropped"}


def test_a_task_decides_how_the_target_is_read(table_of, normals):
    rows = [str(3 + i % 7) for i in range(700)]
    for task, kind in (("regression", "number"), ("classification", "category"), (None, "number")):
        schema = Schema(target=Target(column="y", task=task))
        found = buy_survey(table_of("y", *rows), schema, ["y"], noise_std=2.0, threshold=20.0, normals=normals(5))
        assert found.facts("y").kind == kind
        assert len(found.facts("y").values) == 7


def test_zero_has_a_bin_of_its_own_width(table_of, normals):
    table = table_of("a", *["0"] * 900, *["5"] * 100)
    found = buy_survey(table, Schema(), ["a"], noise_std=2.0, threshold=40.0, normals=normals(1))
    assert [(bin.lower, bin.upper) for bin in found.facts("a").bins] == [(0.0, 0.0), (4.0, 8.0)]
    assert survey_counts(table, Schema(), ["a"]).bins[0, ZERO] == 900


def test_a_text_is_released_from_the_threshold_on_and_not_one_below(table_of):
    table = table_of("a", *["x"] * 3, *["y"] * 3, *["z"] * 3)
    counts = survey_counts(table, Schema(), ["a"])
    noisy = {"bins": counts.bins.numpy(), "texts 0": np.array([39.0, 40.0, 41.0])}
    found = survey_of(counts, noisy, Schema(), noise_std=1.0, threshold=40.0)
    assert found.facts("a").values == (("y", 40.0), ("z", 41.0))


def test_a_label_is_released_from_the_threshold_on_and_not_one_below(table_of):
    """Labels whose noisy counts are above zero and below the threshold may be those of one record."""
    counts = survey_counts(table_of("y", *["a"] * 3, *["b"] * 3, *["c"] * 3), Schema(), ["y"])
    noisy = {"target texts": np.array([39.0, 40.0, 1.0])}
    facts = target_facts(counts, noisy, "classification", noise_std=1.0, threshold=40.0)
    assert facts.values == (("b", 40.0),)
