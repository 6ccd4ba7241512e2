"""Parts: the classes of records are exactly the sets of sessions that one record can be in."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacita.accounting import FullBatchLaw, GaussianSumEvent
from tacita.accounting.parts import MAX_CLASSES, Part, check_part, overlap, record_classes
from tacita.errors import LedgerError, UnsupportedEventError
from tacita.ledger import Ledger


def coin(index, split="s"):
    return Part(split=split, kind="coin", index=index)


def rows(start, stop, split="r", index=0):
    return Part(split=split, kind="range", index=index, start=start, stop=stop)


def test_coins_of_one_split_are_disjoint_and_those_of_two_are_not():
    assert not coin(0).overlaps(coin(1))
    assert coin(0).overlaps(coin(0))
    assert coin(0).overlaps(coin(1, split="other"))
    assert overlap(None, coin(0))


def test_ranges_overlap_where_they_share_a_row():
    assert not rows(0, 10).overlaps(rows(10, 20))
    assert rows(0, 11).overlaps(rows(10, 20))
    for index in (0, 1):  # kinds mixed under one name: no claim
        assert coin(index, "r").overlaps(rows(0, 5))
        assert rows(0, 5).overlaps(coin(index, "r"))


def test_a_range_is_refused_under_add_or_remove_one_and_the_way_out_is_named():
    with pytest.raises(UnsupportedEventError, match="Split by coin, or use replace_one or zero_out_one"):
        check_part(rows(0, 5), "add_or_remove_one")
    check_part(rows(0, 5), "replace_one")
    check_part(coin(0), "add_or_remove_one")


def test_units_are_split_under_add_or_remove_one_alone():
    part = Part(split="s", kind="coin", index=0, fraction=0.5, units=True)
    check_part(part, "add_or_remove_one")
    for relation in ("replace_one", "zero_out_one"):
        with pytest.raises(UnsupportedEventError, match="needs add_or_remove_one"):
            check_part(part, relation)


@pytest.mark.parametrize(
    ("index", "more", "says"),
    [
        (1, {"fraction": 0.5}, "add up to more than 1"),
        (0, {"fraction": 0.5}, "other fractions or units"),
        (0, {}, "other fractions or units"),
        (1, {"fraction": 0.4, "units": True}, "other fractions or units"),
    ],
)
def test_parts_that_are_not_of_one_drawing_are_refused(index, more, says):
    """Which they would have to be, to count as disjoint."""
    ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    event = GaussianSumEvent(
        sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,)
    )
    first = Part(split="s", kind="coin", index=0, fraction=0.6)
    ledger.register(event, planned_queries=1, part=first)
    with pytest.raises(LedgerError, match=says):
        ledger.register(event, planned_queries=1, part=Part(split="s", kind="coin", index=index, **more))
    with pytest.raises(LedgerError, match=says):
        ledger.register_share(0.1, 1e-6, part=Part(split="s", kind="coin", index=index, **more))
    ledger.register(event, planned_queries=1, part=Part(split="s", kind="coin", index=1, fraction=0.4))
    ledger.register(event, planned_queries=1, part=first)
    ledger.register(event, planned_queries=1, part=Part(split="other", kind="coin", index=1, fraction=0.9))


def test_tenths_add_up_to_one():
    ledger = Ledger(neighboring_relation="add_or_remove_one", privacy_unit="one row")
    event = GaussianSumEvent(
        sampling=FullBatchLaw(), relation="add_or_remove_one", max_contribution=(1.0,), noise_std=(5.0,)
    )
    sessions = [
        ledger.register(event, planned_queries=1, part=Part(split="s", kind="coin", index=index, fraction=0.1))
        for index in range(10)
    ]
    assert [session.part.index for session in sessions] == [*range(10)]
    with pytest.raises(LedgerError, match="add up to more than 1"):
        ledger.register(event, planned_queries=1, part=Part(split="s", kind="coin", index=10, fraction=0.1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"split": "", "kind": "coin", "index": 0},
        {"split": "s", "kind": "hash", "index": 0},
        {"split": "s", "kind": "coin", "index": -1},
        {"split": "s", "kind": "coin", "index": 0, "fraction": 0.0},
        {"split": "s", "kind": "coin", "index": 0, "start": 1},
        {"split": "s", "kind": "coin", "index": 0, "units": False},
        {"split": "s", "kind": "range", "index": 0, "start": 0, "stop": 1, "units": True},
        {"split": "s", "kind": "range", "index": 0, "start": 1},
        {"split": "s", "kind": "range", "index": 0, "start": 5, "stop": 5},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must|needs|belong"):
        Part(**wrong)


def test_a_part_survives_the_ledger():
    for part in (coin(3), rows(2, 9), Part(split="s", kind="coin", index=1, fraction=0.1, units=True)):
        assert Part.from_dict(part.to_dict()) == part


PARTS = st.one_of(
    st.none(),
    st.builds(coin, st.integers(0, 3), st.sampled_from("ab")),
    st.builds(lambda a, n, s: rows(a, a + n, s), st.integers(0, 6), st.integers(1, 4), st.sampled_from("rq")),
)


def touched(parts, coins, places):
    """The sessions that see a record with these coins and these rows."""
    return {
        i
        for i, part in enumerate(parts)
        if part is None
        or (part.kind == "coin" and coins[part.split] == part.index)
        or (part.kind == "range" and places[part.split] in part.rows)
    }


@settings(max_examples=60, deadline=None)
@given(st.lists(PARTS, max_size=6))
def test_every_record_is_in_a_class_and_every_class_is_some_record(parts):
    """Against all records there are: two coins of four sides, a row in each of two orders."""
    classes = [set(members) for members in record_classes(parts)]
    records = [
        touched(parts, {"a": a, "b": b}, {"r": r, "q": q})
        for a, b, r, q in itertools.product(range(4), range(4), range(11), range(11))
    ]
    assert all(any(record <= members for members in classes) for record in records)
    assert all(members in records for members in classes)


def test_many_parts_of_one_split_stay_parallel():
    assert len(record_classes([coin(i) for i in range(MAX_CLASSES + 10)])) == MAX_CLASSES + 10


def test_too_many_combinations_fall_back_to_an_upper_bound():
    parts = [coin(i, "a") for i in range(70)] + [coin(i, "b") for i in range(69)]
    classes = record_classes(parts)
    assert len(classes) == 70
    assert all(set(range(70, 139)) <= set(members) for members in classes)
