"""Units with several rows: the cap, and coins that belong to one unit alone."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from tacita.random import Key
from tacita.sampling.units import unit_codes, unit_name, unit_words, within_cap


def kept(units, cap, seed=0):
    return within_cap(*unit_codes(units), cap, Key.insecure(seed))


@pytest.mark.parametrize("cap", [1, 2, 3, 7])
def test_no_unit_keeps_more_than_the_cap_and_none_less_than_it_may(cap):
    units = [f"u{size}" for size in range(1, 9) for _ in range(size)]  # units of 1 to 8 rows
    found = kept(units, cap)
    for size in range(1, 9):
        assert sum(k for k, unit in zip(found, units, strict=True) if unit == f"u{size}") == min(size, cap)


def test_the_rows_of_two_units_are_chosen_by_coins_of_their_own():
    """With one coin for all, units of equally many rows would keep the same places."""
    alike = [
        np.array_equal(*kept(["a"] * 6 + ["b"] * 6, 3, seed).reshape(2, 6))  # 1 of 20 by chance
        for seed in range(400)
    ]
    assert 3 < sum(alike) < 50  # 20 expected, standard deviation 4.4


def test_a_row_that_does_not_count_is_in_no_choice():
    codes, names = np.array([0, -1, 0, -1, 0]), ["a"]
    for seed in range(20):
        found = within_cap(codes, names, 2, Key.insecure(seed))
        assert found.sum() == 2
        assert not found[[1, 3]].any()
    assert (unit_words(codes, names, Key.insecure(0))[[1, 3]] == 0).all()


SAME = [
    (1, 1.0), (1, np.int64(1)), (1, np.float32(1)), (1, True), (1, np.bool_(True)), (0.0, -0.0), (0.5, np.float16(0.5)),
    (0.5, Fraction(1, 2)), (2**70, float(2**70)), ("a", np.str_("a")), (("a", 1), ("a", 1.0)), (np.inf, float("inf")),
]  # fmt: skip
OTHER = [
    (1, "1"), (1, 2), (b"a", "a"), (b"a", "b'a'"), (0.1, Fraction(1, 10)), (2**53, 2**53 + 1), (("a", "b"), ("ab",)),
    (("a", ("b",)), ("a", "b")), (("1 a", "b"), ("1 a b",)), ("None", None), ("nan", np.nan), (10, 16), ("number 1", 1),
    (np.inf, -np.inf), ("A", "a"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME, ids=repr)
def test_equal_units_are_one_however_they_are_written(one, other):
    """With two names for one person, twice as many rows as the cap would count."""
    assert one == other
    assert unit_name(one) == unit_name(other)
    assert kept([one, other] * 5, 3).sum() == 3


@pytest.mark.parametrize(("one", "other"), OTHER, ids=repr)
def test_other_units_are_not_merged_by_the_way_they_print(one, other):
    """With one name for two persons, the rows that one of them keeps would depend on the other."""
    assert unit_name(one) != unit_name(other)
    if unit_name(other) is not None:
        assert kept([one, other] * 5, 3).sum() == 6


@pytest.mark.parametrize(
    "nobody", [None, np.nan, float("nan"), np.float32("nan"), pd.NA, pd.NaT, ("a", None)], ids=repr
)
def test_a_row_without_a_unit_is_nobodys(nobody):
    """As one unit, all such rows would share a cap: one person more among them would move the others."""
    codes, names = unit_codes(["a", nobody, nobody, "a"])
    assert (codes.tolist(), names) == ([0, -1, -1, 0], ["text a"])


@pytest.mark.parametrize(
    "unit",
    [object(), [1], {"a": 1}, 1j, np.datetime64("2024-05-01"), np.zeros(2)],
    ids=lambda unit: type(unit).__name__,
)
def test_units_that_do_not_say_when_they_are_equal_are_refused(unit):
    with pytest.raises(TypeError, match="units must hold texts, bytes, numbers") as refused:
        unit_codes(["a", unit])
    assert "2024" not in str(refused.value)
