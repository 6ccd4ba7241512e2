"""The lean survey: magnitudes from coarse bins, then scales from dyadic ones."""

import math

import numpy as np
import pytest
import torch

from tacita.tables import Schema
from tacita.tables.cells import NUMBER
from tacita.tables.features import CLAMP
from tacita.tables.lean_survey import GROUPS, in_groups, read_lean, read_scales, window
from tacita.tables.refinement import bounds
from tacita.tables.survey import BINS, LOW, ZERO, cut, dyadic_bins, mean_and_std, survey_counts

NOISE = 30.0
NOTHING = np.zeros(3 + GROUPS)


def exact(values):
    """The dyadic counts of a column of numbers."""
    kinds = np.full(len(values), NUMBER, np.int8)
    return np.bincount(dyadic_bins(np.asarray(values, float), kinds), minlength=BINS).astype(float)


def coarse(counts):
    return in_groups(torch.from_numpy(counts[None])).numpy()[0]


def both_queries(values, seed, noise=NOISE, kinds=None):
    """The facts of one column after both queries."""
    rng, counts = np.random.default_rng(seed), exact(values)
    first = np.rint(coarse(counts) + noise * rng.standard_normal(3 + GROUPS))
    second = np.rint(counts + noise * rng.standard_normal(BINS))
    found = read_lean(["a"], bins=first[None], texts=[{}], noise_std=noise, kinds=kinds)
    return read_scales(found, first[None], second[None], (noise, noise))[0]


def test_every_dyadic_bin_is_in_one_coarse_bin():
    """So a cell is in one bin of the first query, whose sensitivity is that of one histogram."""
    whole = in_groups(torch.eye(BINS, dtype=torch.float64))
    assert whole.shape == (BINS, 3 + GROUPS)
    assert (whole.sum(dim=1) == 1).all()
    assert ((whole == 0) | (whole == 1)).all()
    assert whole.sum(dim=0).tolist() == [1, 1, 1] + [6] * GROUPS  # three octaves of both signs


@pytest.mark.parametrize("value", [1.0, 7.99, -1.0, 2.0**-30, 2.0**20, -(2.0**20)])
def test_numbers_of_a_magnitude_share_a_coarse_bin(value):
    place = (math.frexp(abs(value))[1] - 1 - LOW) // 3
    assert coarse(exact([value])).nonzero()[0].tolist() == [3 + place]


@pytest.mark.parametrize("scale", [1e-3, 0.05, 1.0, 700.0, 3e7])
@pytest.mark.parametrize("centre", [0.0, 5.0])
def test_few_rows_show_their_scale(scale, centre):
    """450 rows at a noise of 75: hardly any dyadic bin stands out."""
    values = scale * (centre + np.random.default_rng(1).standard_normal(450))
    found = [both_queries(values, seed, noise=75.0) for seed in range(40)]
    assert sum(facts.kind == "number" for facts in found) >= 32
    assert np.mean([shown(values, facts.bins) for facts in found]) > 0.6
    assert cut(75.0, BINS) > 300  # by it alone hardly anything would be seen


def shown(values, bins):
    """The correlation of a column with its feature, which is clipped and standardised by these bins."""
    if not bins:
        return 0.0
    low, high = bounds(bins)
    mean, std = mean_and_std(bins, low, high)
    feature = np.clip((np.clip(values, low, high) - mean) / std, -CLAMP, CLAMP)
    return abs(np.corrcoef(feature, values)[0, 1]) if feature.std() > 0.1 else 0.0


def test_noise_alone_has_a_magnitude_once_in_a_while():
    """One column in two or so. Its feature says nothing, which a model bears better than a lost column."""
    found = [both_queries([], seed).kind for seed in range(300)]
    assert 0.3 < found.count("number") / 300 < 0.75


def test_zeros_are_a_number_too():
    facts = both_queries([0.0] * 500 + [1.0] * 500, 0)
    assert facts.kind == "number"
    assert {(bin.lower, bin.upper) for bin in facts.bins} >= {(0.0, 0.0), (1.0, 2.0)}
    zeros = both_queries([0.0] * 900, 0)
    assert (0.0, 0.0) in {(bin.lower, bin.upper) for bin in zeros.bins}


def test_texts_that_were_released_outweigh_fewer_numbers():
    first = NOTHING.copy()
    first[3 + 10] = 200.0
    for count, kind in ((100.0, "number"), (300.0, "category")):
        (found,) = read_lean(["a"], bins=first[None], texts=[{"x": count}], noise_std=NOISE)
        assert found.kind == kind
        assert bool(found.bins) == (kind == "number")
    (forced,) = read_lean(["a"], bins=first[None], texts=[{"x": 300.0}], noise_std=NOISE, kinds={"a": "number"})
    assert (forced.kind, forced.values) == ("number", ())


def test_nothing_that_stands_out_is_dropped():
    (found,) = read_lean(["a"], bins=NOTHING[None], texts=[{}], noise_std=NOISE)
    assert (found.kind, found.bins, found.values) == ("dropped", (), ())
    (again,) = read_scales((found,), NOTHING[None], np.zeros((1, BINS)), (NOISE, NOISE))
    assert again.kind == "dropped"


def test_the_second_query_is_read_where_the_first_one_saw_numbers():
    """What stands beside the magnitude in the second query alone is noise, unless it is more than any noise."""
    first, second = NOTHING.copy(), np.zeros(BINS)
    first[3 + 10] = 400.0  # 1 to 8
    second[[ZERO + 1 + 30, ZERO + 1 + 40]] = 50.0, 100.0
    (found,) = read_lean(["a"], bins=first[None], texts=[{}], noise_std=NOISE)
    (facts,) = read_scales((found,), first[None], second[None], (NOISE, NOISE))
    assert [(bin.lower, bin.upper) for bin in facts.bins] == [(1.0, 2.0)]
    second[ZERO + 1 + 40] = 1000.0
    (facts,) = read_scales((found,), first[None], second[None], (NOISE, NOISE))
    assert [bin.lower for bin in facts.bins] == [1.0, 1024.0]


def test_counts_that_were_bought_twice_are_averaged_by_their_noise():
    first, second = NOTHING.copy(), np.zeros(BINS)
    first[0], second[0] = 100.0, 200.0
    (found,) = read_lean(["a"], bins=first[None], texts=[{}], noise_std=10.0)
    (facts,) = read_scales((found,), first[None], second[None], (10.0, 20.0))
    assert facts.missing == 120.0


def lean_bins(counts, seed):
    return np.rint(NOISE * np.random.default_rng(seed).standard_normal(BINS - 2)) + counts


def test_a_lean_survey_finds_the_scale_where_no_bin_passes_the_cut():
    """Numbers spread over three octaves, of both signs: no single bin stands out, the window does."""
    counts = np.zeros(BINS - 2)
    for place in (30, 31, 32):
        counts[[ZERO - 2 + place, ZERO - 2 - place]] = 150
    found = [window(lean_bins(counts, seed), NOISE) for seed in range(100)]
    assert sum(bool(bins) and bins[-1].upper in (1.0, 2.0, 4.0) and bins[0].lower < 0 for bins in found) > 90
    assert cut(NOISE, BINS) > 130


def test_noise_alone_hardly_ever_has_a_scale():
    assert sum(bool(window(lean_bins(0, seed), NOISE)) for seed in range(200)) < 30


def test_what_is_counted_is_grouped_before_any_noise(table_of):
    lines = ["1.5", "-1.5", "7", "0", "?", "x", "1e-40"]
    counts = survey_counts(table_of("a,b", *(f"{line},1" for line in lines)), Schema(), ["a"], lean=True)
    assert in_groups(counts.bins)[0, :3].tolist() == [1, 0, 2]
    assert float(in_groups(counts.bins).sum()) == float(counts.bins.sum()) == 6


def test_with_enough_rows_both_queries_have_dyadic_bins_and_their_mean_is_read():
    """The same numbers twice: what is read has the noise of the mean, by the noise of each."""
    first, second = np.zeros((1, BINS)), np.zeros((1, BINS))
    first[0, ZERO + 31], second[0, ZERO + 31] = 100.0, 400.0
    (found,) = read_lean(["a"], bins=first, texts=[{}], noise_std=10.0)
    (facts,) = read_scales((found,), first, second, (10.0, 20.0))
    assert [(bin.lower, bin.count) for bin in facts.bins] == [(1.0, 160.0)]
    (dropped,) = read_lean(["a"], bins=np.zeros((1, BINS)), texts=[{}], noise_std=10.0)
    (seen,) = read_scales((dropped,), np.zeros((1, BINS)), second, (10.0, 10.0))
    assert seen.kind == "number"  # what the first query did not show, the mean may
