"""Units: coins that belong to one person alone."""

import numpy as np
import pytest
from scipy.stats import binom

from tacita.random import Key
from tacita.tables import cap_rows, held_out

KEY = Key.insecure(7)
MISSING = ("", "?")


def people(table_of, rows):
    return table_of("p,x", *(f"{person},{i}" for i, person in enumerate(rows)))


def kept(table, max_rows=2, key=KEY):
    return cap_rows(table, "p", max_rows, MISSING, key).valid


def test_at_most_k_rows_of_a_person_count(table_of):
    valid = kept(people(table_of, ["a", "b", "a", "a", "b", "c", "a", "?", "b", ""]))
    assert [valid[[0, 2, 3, 6]].sum(), valid[[1, 4, 8]].sum(), valid[5], valid[7], valid[9]] == [
        2,
        2,
        True,
        False,
        False,
    ]


def test_rows_of_the_wrong_width_take_no_place(table_of):
    table = table_of("p,x", "a,1", "a,1,1", "a", "a,2")
    assert kept(table).tolist() == [True, False, False, True]


def test_rows_that_were_left_out_before_take_no_place(table_of):
    counted = [True, False, False, True, False, True]
    table = people(table_of, "aaaaaa").keep(np.array(counted))
    for seed in range(10):
        assert kept(table, 3, Key.insecure(seed)).tolist() == counted
        assert not held_out(table, 1.0, Key.insecure(seed), unit="p", missing=MISSING)[~np.array(counted)].any()


@pytest.mark.parametrize("removed", ["a", "b", "c"])
def test_another_person_moves_nobody(table_of, removed):
    """A coin by position would: every later row moves up by the removed person's rows."""
    rows = list("abcacbabccba" * 5)
    stay = np.array(rows) != removed
    with_all, without = people(table_of, rows), people(table_of, [r for r in rows if r != removed])
    assert kept(with_all, 4)[stay].tolist() == kept(without, 4).tolist()
    for seed in range(20):
        key = Key.insecure(seed)
        coins = held_out(with_all, 0.5, key, unit="p", missing=MISSING)[stay]
        assert coins.tolist() == held_out(without, 0.5, key, unit="p", missing=MISSING).tolist()


def test_all_rows_of_a_person_share_the_coin(table_of):
    rows = [f"p{i % 50}" for i in range(500)]
    coins = held_out(people(table_of, rows), 0.3, KEY, unit="p", missing=MISSING)
    assert 0 < coins.sum() < 500
    assert all(len(set(coins[i::50])) == 1 for i in range(50))


def test_which_rows_are_dropped_depends_on_key_and_person(table_of):
    table = people(table_of, ["a"] * 20 + ["b"] * 20)
    one, other = kept(table, 10), kept(table, 10, Key.insecure(8))
    assert one.tolist() != other.tolist()
    assert one[:20].tolist() != one[20:].tolist()


@pytest.mark.parametrize("unit", [None, "p"])
def test_the_coins_have_their_chance(table_of, unit):
    table = people(table_of, [f"p{i}" for i in range(4000)])
    low, high = binom.ppf([5e-7, 1 - 5e-7], 4000, 0.1)
    held = held_out(table, 0.1, KEY, unit=unit, missing=MISSING).sum()
    assert low <= held <= high
    assert not low <= held_out(table, 0.15, KEY, unit=unit, missing=MISSING).sum() <= high


def test_a_missing_unit_is_never_held_out(table_of):
    assert not held_out(people(table_of, ["", "?", "a"]), 1.0, KEY, unit="p", missing=MISSING)[:2].any()


@pytest.mark.parametrize("fraction", [0.0, 1.5, float("nan")])
def test_wrong_fraction(table_of, fraction):
    with pytest.raises(ValueError, match="fraction"):
        held_out(people(table_of, ["a"]), fraction, KEY)


def test_wrong_cap(table_of):
    with pytest.raises(ValueError, match="max_rows_per_unit"):
        kept(people(table_of, ["a"]), 0)


@pytest.mark.parametrize("missing", [(), ("?",), ("",)])
def test_rows_without_a_person_are_nobodys(table_of, missing):
    """Taken for one person, they would share a cap: one row more would choose among the others anew."""
    table = people(table_of, ["", "a", "", "a", "", "b"])
    assert cap_rows(table, "p", 2, missing, KEY).valid.tolist() == [False, True, False, True, False, True]
    assert not held_out(table, 1.0, KEY, unit="p", missing=missing)[[0, 2, 4]].any()
