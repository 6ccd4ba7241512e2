"""Which tests that take long stay in ``make quick``: the cheapest that see what no quicker test sees."""

import pytest

from tests.slow import PLANTING, STAYS, WORTH, cheapest, left_out, listed, longest_first, share, staying, times

LITTLE, MUCH = 0.9 * WORTH, 10 * WORTH


@pytest.mark.parametrize(
    ("bugs", "stay"),
    [
        ([], set()),
        ([(["cheap", "dear"], False)], {"cheap"}),
        ([(["dear"], False)], set()),  # it is not worth its time
        ([(["dear"], True)], {"dear"}),  # but must be seen
        ([(["dear", "quick"], True)], set()),  # as it is already
        ([(["dear"], False)] * 11, {"dear"}),  # one test for eleven bugs
        ([(["cheap"], True), (["cheap", "also cheap"], True)], {"cheap"}),
    ],
)
def test_the_cheapest_that_see_what_nothing_quicker_sees_stay(bugs, stay):
    assert staying({"cheap": LITTLE, "also cheap": LITTLE, "dear": MUCH}, bugs) == stay


def test_a_list_is_read_as_it_was_written():
    seconds = {"a.py::test_a": 0.4, "b.py": 12.0}
    text = listed(seconds, [(["a.py::test_a"], True)])
    assert times(text.splitlines()) == seconds
    assert [line for line in text.splitlines() if line.endswith(STAYS)] == [f"a.py::test_a 0.4{STAYS}"]


def test_planting_is_left_out():
    assert PLANTING in left_out()


def test_the_cheapest_is_the_first_of_those_that_take_least():
    seconds = {"a.py::dear": 2.0, "b.py": 1.0}
    assert cheapest(["a.py::dear[1]", "a.py::quick", "a.py::other"], seconds) == "a.py::quick"
    assert cheapest(["a.py::dear", "b.py::any[0]"], seconds) == "b.py::any[0]"


def test_planting_and_then_the_longest_files_come_first():
    seconds = {"b.py::dear": 2.0, "c.py": 5.0}
    order = longest_first(["a.py::one", "b.py::dear[0]", "b.py::dear[1]", "c.py::all", f"{PLANTING}::any"], seconds)
    assert sorted(order, key=lambda file: order[file]) == [PLANTING, "c.py", "b.py", "a.py"]
    assert order["b.py"] == -2.0


def test_of_a_long_test_some_cases_are_taken_evenly_and_of_a_short_one_all():
    cases = [f"a.py::dear[{k}]" for k in range(7)]
    assert share(
        [*cases, "a.py::cheap[0]", "a.py::cheap[1]", "b.py::one"], {"a.py::dear": 5.0, "b.py::one": 9.0}, 2.0
    ) == [
        "a.py::dear[0]",
        "a.py::dear[3]",
        "a.py::dear[6]",
        "a.py::cheap[0]",
        "a.py::cheap[1]",
        "b.py::one",
    ]


def test_of_a_very_long_test_one_in_eight_is_taken():
    cases = [f"a.py::dear[{k}]" for k in range(17)]
    assert share(cases, {"a.py::dear": 100.0}, 2.0) == ["a.py::dear[0]", "a.py::dear[8]", "a.py::dear[16]"]
