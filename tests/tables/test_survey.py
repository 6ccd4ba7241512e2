"""The survey: one bin a histogram for each row, and readings that noise does not swamp."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tacita.errors import DataStructureError
from tacita.tables import FileFormat, Schema, read_table
from tacita.tables.cells import NUMBER
from tacita.tables.histograms import (
    BINS,
    ZERO,
    Bin,
    bin_bounds,
    cut,
    dyadic_bins,
    mean_and_std,
    quantile,
    read_survey,
    survey_counts,
)
from tacita.tables.schema import CategorySpec

CELL = st.one_of(
    st.sampled_from(
        ["", "?", "0", "-0", "1", "-1", "1e-40", "1e300", "-1e300", "nan", "inf", "1e999", "x", "x ", "1,2"]
    ),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text(alphabet="ab\0é ,", max_size=3),
)
LINE = st.tuples(CELL, CELL).map(",".join)


def counted(tmp_path, lines):
    """The survey's histograms as one dictionary (histogram, bin) -> count."""
    path = tmp_path / "t.csv"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    counts = survey_counts(read_table(path, FileFormat(header=False, columns=("a", "b"))), Schema(), ["a", "b"])
    bins = {(i, int(j)): float(counts.bins[i, j]) for i in range(2) for j in counts.bins[i].nonzero()[:, 0]}
    for i, (names, values) in enumerate(zip(counts.names, counts.texts, strict=True)):
        bins |= {(2 + i, name): float(count) for name, count in zip(names, values, strict=True)}
    return bins


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines=st.lists(LINE, max_size=4), extra=LINE, data=st.data())
def test_a_row_adds_one_to_at_most_one_bin_of_each_histogram(tmp_path, lines, extra, data):
    place = data.draw(st.integers(0, len(lines)))
    without = counted(tmp_path, lines)
    with_it = counted(tmp_path, [*lines[:place], extra, *lines[place:]])
    moved = {bin: with_it.get(bin, 0) - without.get(bin, 0) for bin in without.keys() | with_it.keys()}
    moved = {bin: change for bin, change in moved.items() if change}
    assert set(moved.values()) <= {1.0}
    histograms = [histogram for histogram, _ in moved]
    assert len(histograms) == len(set(histograms))


def test_wrong_width_is_in_no_histogram(tmp_path):
    assert counted(tmp_path, ["1,2,3", "1", ""]) == {}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_lies_in_its_bin(value):
    bin = int(dyadic_bins(np.array([value]), np.array([NUMBER]))[0])
    lower, upper = bin_bounds(bin)
    clipped = math.copysign(min(abs(value), np.nextafter(2.0**51, 0)), value) if abs(value) >= 2.0**-30 else 0.0
    assert 2 <= bin < BINS
    assert lower <= clipped <= upper
    assert lower < upper or bin == ZERO


def test_bins_touch_and_increase():
    bounds = [bin_bounds(bin) for bin in range(2, BINS)]
    assert bounds == sorted(bounds)
    assert bounds[0][0] == -(2.0**51)
    assert bounds[-1][1] == 2.0**51


def test_declared_dates_are_counted_as_numbers(table_of):
    schema = Schema.loads("[columns.d]\nkind = 'date'\nformat = '%Y-%m-%d'")
    counts = survey_counts(table_of("d", "1970-01-02", "soon"), schema, ["d"])
    assert counts.bins[0].nonzero()[:, 0].tolist() == [1, ZERO + 31]


def test_arrays_are_not_bought(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.zeros((2, 3)))
    with pytest.raises(DataStructureError, match="'x' holds arrays"):
        survey_counts(read_table(tmp_path / "t.npz"), Schema(), ["x"])


NOISE = 60.0


def noisy(seed, **counts):
    """One column's first histogram with noise; counts by bin."""
    bins = np.rint(NOISE * np.random.default_rng(seed).standard_normal((1, BINS)))
    for bin, count in counts.items():
        bins[0, int(bin[1:])] += count
    return bins


def survey(bins, texts=(), kinds=None):
    released = [dict(texts)]
    return read_survey(["a"], bins=bins, texts=released, noise_std=NOISE, threshold=400, kinds=kinds)


def test_the_cut_is_tight_to_one_survey_in_a_thousand():
    assert cut(NOISE, 165 * 15) == pytest.approx(NOISE * 4.94, rel=0.01)


def test_noise_alone_is_dropped_and_counts_no_rows():
    for seed in range(50):
        found = survey(noisy(seed))
        assert found.rows == 0
        assert found.facts("a").kind == "dropped"


def test_bins_are_cut_before_any_quantile():
    """Uncut, the quantiles of ages 16..127 come out anywhere between 1e-9 and 1e15."""
    age = dict.fromkeys([f"b{ZERO + 31 + e}" for e in (4, 5, 6)], 3000)
    for seed in range(50):
        bins = survey(noisy(seed, **age)).facts("a").bins
        assert [(bin.lower, bin.upper) for bin in bins] == [(16, 32), (32, 64), (64, 128)]
    uncut = noisy(0, **age)
    everything = [Bin(*bin_bounds(2 + i), max(count, 0.0)) for i, count in enumerate(uncut[0, 2:])]
    assert quantile(everything, 0.005) < 0 or quantile(everything, 0.995) > 1e6


def test_types_follow_the_larger_count_unless_the_schema_says():
    half = noisy(0, b1=5000, **{f"b{ZERO + 31}": 1000})
    assert survey(half, [("x", 5000.0)]).facts("a").kind == "category"
    forced = survey(half, [("x", 5000.0)], kinds={"a": "number"}).facts("a")
    assert forced.kind == "number"
    assert [bin.lower for bin in forced.bins] == [1.0]


def test_released_values_are_sorted_by_name_whatever_the_files_order():
    found = survey(noisy(0, b1=5000), [("z", 3000.0), ("a", 500.0), ("m", 900.0)])
    assert [value for value, _ in found.facts("a").values] == ["a", "m", "z"]


def test_rows_are_the_mean_over_the_columns():
    bins = np.zeros((2, BINS))
    bins[0, 0], bins[1, ZERO] = 1000, 1100
    found = read_survey(["a", "b"], bins=bins, texts=[{}, {}], noise_std=1.0, threshold=9)
    assert found.rows == 1050


def test_lean_cells_are_in_one_bin_of_both_histograms(table_of):
    lines = ["1.5,x", "?,y", "z,2", ",", "bad"]
    counts = survey_counts(table_of("a,b", *lines), Schema(), ["a", "b"], lean=True)
    total = counts.bins.sum() + sum(texts.sum() for texts in counts.texts)
    assert total == 2 * 4  # four rows that count, two columns
    assert counts.names == (("z",), ("x", "y"))


def test_lean_categories_may_be_numbers(table_of):
    """A column that is declared to hold categories is counted by its texts alone, whatever they look like."""
    schema = Schema(columns={"a": CategorySpec()})
    counts = survey_counts(table_of("a,b", "1,x", "2,y", ",3"), schema, ["a", "b"], lean=True)
    assert counts.names == (("1", "2"), ("x", "y"))
    assert counts.bins.sum(1).tolist() == [1, 1]  # the missing cell; the number
    assert sum(float(texts.sum()) for texts in counts.texts) + float(counts.bins.sum()) == 2 * 3


def test_quantile_and_moments_of_even_bins():
    bins = [Bin(float(i), i + 1.0, 10.0) for i in range(10)]
    assert [quantile(bins, level) for level in (0.0, 0.25, 1.0)] == [0.0, 2.5, 10.0]
    mean, std = mean_and_std(bins, -math.inf, math.inf)
    assert mean == pytest.approx(5)
    assert std == pytest.approx(10 / math.sqrt(12))
    assert mean_and_std(bins, 5.0, 5.0) == (5.0, 0.0)
