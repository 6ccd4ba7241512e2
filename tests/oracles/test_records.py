"""Splits: disjoint, by coins that belong to each record or person alone."""

import numpy as np
import pytest
import scipy.stats
import torch

import tacita
from tacita.oracles.records import data_and_rows
from tacita.random import Key
from tacita.sampling.units import unit_codes, within_cap


def rows_within_cap(units, cap, key):
    return np.flatnonzero(within_cap(*unit_codes(units), cap, key))


DATA = (torch.arange(20_000.0),)


def test_a_coin_split_covers_each_row_once_and_has_its_law():
    parts = tacita.split(DATA, [0.7, 0.2, 0.1], randomness=tacita.Randomness.insecure(0))
    assert np.array_equal(np.sort(np.concatenate([part.rows for part in parts])), np.arange(20_000))
    counts = [len(part.rows) for part in parts]
    assert scipy.stats.chisquare(counts, [14_000, 4_000, 2_000]).pvalue > 1e-6
    assert scipy.stats.chisquare(counts, [13_600, 4_400, 2_000]).pvalue < 1e-6  # a 2 % error would be seen


def test_a_rows_coin_does_not_depend_on_the_rows_after_it():
    short = tacita.split((torch.zeros(50),), [0.5, 0.5], randomness=tacita.Randomness.insecure(1))
    long = tacita.split((torch.zeros(51),), [0.5, 0.5], randomness=tacita.Randomness.insecure(1))
    assert np.array_equal(short[0].rows, long[0].rows[long[0].rows < 50])


def test_all_rows_of_a_person_fall_into_one_part_whoever_else_is_there():
    units = [f"person {i % 40}" for i in range(200)]
    randomness = tacita.Randomness.insecure(2)
    parts = tacita.split((torch.zeros(200),), [0.5, 0.5], units=units, max_rows_per_unit=5, randomness=randomness)
    of = [{units[row] for row in part.rows} for part in parts]
    assert not of[0] & of[1]
    assert of[0]
    assert of[1]
    fewer = [unit for unit in units if unit != "person 7"]  # one person absent: nobody else's coin changes
    again = tacita.split(
        (torch.zeros(len(fewer)),),
        [0.5, 0.5],
        units=fewer,
        max_rows_per_unit=5,
        randomness=tacita.Randomness.insecure(2),
    )
    assert [{fewer[row] for row in part.rows} for part in again] == [part - {"person 7"} for part in of]


def test_rows_beyond_the_cap_are_dropped_by_the_persons_own_coins():
    units = np.array(["a"] * 10 + ["b"] * 3 + ["c"] * 10)
    rows = rows_within_cap(units, 4, Key.insecure(0))
    assert {u: int((units[rows] == u).sum()) for u in "abc"} == {"a": 4, "b": 3, "c": 4}
    without_a = rows_within_cap(units[10:], 4, Key.insecure(0))
    assert np.array_equal(without_a + 10, rows[rows >= 10])


def test_each_row_of_a_person_is_kept_with_the_same_chance():
    kept = np.zeros(5)
    for seed in range(2000):
        kept[rows_within_cap(["p"] * 5, 2, Key.insecure(seed))] += 1
    assert scipy.stats.chisquare(kept).pvalue > 1e-6


@pytest.mark.parametrize("sizes", [[0.5, 0.4], [0.5, 0.0, 0.5], [10, 20], [-1, 20_001]])
def test_sizes_that_are_no_split_are_refused(sizes):
    with pytest.raises(ValueError, match="sizes must"):
        tacita.split(DATA, sizes)


def test_persons_cannot_be_split_by_position():
    with pytest.raises(ValueError, match="units cannot be split by position"):
        tacita.split(DATA, [10_000, 10_000], units=np.arange(20_000))


def test_printing_records_shows_no_data():
    (part, _) = tacita.split((torch.full((10,), 123.5),), [0.9, 0.1])
    assert "123.5" not in repr(part)
    assert "rows=" not in repr(part)


def test_sessions_on_the_parts_of_a_split_compose_in_parallel():
    ledger = tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    parts = tacita.split((torch.zeros(100, 2),), [0.5, 0.5])

    def build(records, noise_multiplier):
        return tacita.ClippedGradientOracle(
            torch.nn.Linear(2, 1),
            lambda model, batch: model(batch[0]).sum(1),
            records,
            ledger=ledger,
            sampler=tacita.PoissonSampler(sample_rate=0.1, num_records=50),
            clipper=tacita.FlatClipper(max_grad_norm=1.0),
            mechanism=tacita.GaussianMechanism(noise_multiplier=noise_multiplier),
            planned_queries=20,
        )

    build(parts[0], 1.0)
    alone = ledger.epsilon(1e-5)
    build(parts[1], 2.0)
    assert ledger.epsilon(1e-5) == pytest.approx(alone)
    build(parts[1], 1.0)
    assert ledger.epsilon(1e-5) > alone * 1.01


def test_a_cap_and_a_sampler_must_agree():
    records = tacita.cap_units((torch.zeros(100, 2),), ["p"] * 100, 3)
    with pytest.raises(ValueError, match="max_rows_per_unit is 1 in the sampler and 3 in the records"):
        tacita.ClippedGradientOracle(
            torch.nn.Linear(2, 1),
            lambda model, batch: model(batch[0]).sum(1),
            records,
            ledger=tacita.Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one person"),
            sampler=tacita.PoissonSampler(sample_rate=0.1, num_records=50),
            clipper=tacita.FlatClipper(max_grad_norm=1.0),
            mechanism=tacita.GaussianMechanism(noise_multiplier=1.0),
            planned_queries=20,
        )


def test_a_split_made_again_with_other_coins_is_another_split():
    data = (torch.zeros(1000, 2),)
    first, again = tacita.split(data, [0.5, 0.5])[0], tacita.split(data, [0.5, 0.5])[1]
    assert set(first.rows) & set(again.rows)
    assert first.part.split != again.part.split  # the ledger composes them in sequence
    same = [tacita.split(data, [0.5, 0.5], randomness=tacita.Randomness.insecure(0))[0] for _ in range(2)]
    assert same[0].part == same[1].part
    assert np.array_equal(same[0].rows, same[1].rows)


def test_what_is_read_and_which_rows_of_it():
    data = (torch.zeros(10),)
    assert data_and_rows(data) == (data, {"rows": None, "part": None, "max_rows_per_unit": 1})
    records = tacita.cap_units(data, ["a"] * 4 + ["b"] * 6, 3)
    read, taken = data_and_rows(records)
    assert read is data
    assert taken["rows"] is records.rows
    assert (taken["part"], taken["max_rows_per_unit"]) == (None, 3)
    part = tacita.split(data, [7, 3])[1]
    assert data_and_rows(part)[1]["part"] == part.part
