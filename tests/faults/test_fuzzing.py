"""The check of fuzz tests can fail: on another error, on a message that shows the program, on one outcome alone."""

import traceback
from json import JSONDecodeError

import pytest

from tacita.errors import DataStructureError, LedgerError, TacitaError
from tests.faults.fuzzing import LONGEST, Outcomes, one_line


def raising(error):
    def read():
        raise error

    return read


def test_what_is_read_comes_back_and_what_is_refused_is_none():
    outcomes = Outcomes()
    assert outcomes.of(lambda: 7, ValueError) == 7
    assert outcomes.of(raising(ValueError("rows must be an integer >= 1, got 0.")), ValueError) is None
    assert (outcomes.read, outcomes.refused) == (1, 1)
    outcomes.check()


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("x"), RecursionError("x"), AssertionError("x")])
def test_an_error_of_another_kind_comes_out(error):
    with pytest.raises(type(error)):
        Outcomes().of(raising(error), ValueError)


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), JSONDecodeError("bad", "x", 0)])
def test_an_error_of_a_library_is_not_ours(error):
    with pytest.raises(AssertionError, match="is not an error of ours"):
        Outcomes().of(raising(error), ValueError)


def test_errors_of_ours_below_the_one_that_is_named_are_ours():
    assert Outcomes().of(raising(DataStructureError("no column 'x'.")), ValueError) is None
    assert Outcomes().of(raising(LedgerError("closed.")), TacitaError) is None


def shown():
    try:
        raise KeyError("x")
    except KeyError:
        return traceback.format_exc()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("one\ntwo", "more than one line"),
        ("one\rtwo", "more than one line"),
        ("one\u2028two", "more than one line"),
        ("one\x0ctwo", "more than one line"),
        ("a line and its end\n", "more than one line"),
        (shown(), "more than one line"),
        (shown().replace("\n", " "), "shows the program"),
        ('in File "ledger.py", line 3', "shows the program"),
        (f"cannot read {object()}", "shows the program"),
        ("x" * LONGEST, f"says {LONGEST} characters"),
        ("", "says nothing"),
        ("  ", "says nothing"),
    ],
    ids=range(12),  # an address in a name would differ from worker to worker
)
def test_a_message_that_is_not_one_line_of_words_is_seen(said, why):
    with pytest.raises(AssertionError, match=why):
        one_line(ValueError(said))
    with pytest.raises(AssertionError, match=why):
        Outcomes().of(raising(ValueError(said)), ValueError)


def test_one_outcome_alone_is_not_enough():
    with pytest.raises(AssertionError, match="all of 0 inputs were refused"):
        Outcomes().check()
    reads, refuses = Outcomes(), Outcomes()
    for _ in range(3):
        reads.of(lambda: 7, ValueError)
        refuses.of(raising(ValueError("no")), ValueError)
    with pytest.raises(AssertionError, match="all of 3 inputs were read"):
        reads.check()
    with pytest.raises(AssertionError, match="all of 3 inputs were refused"):
        refuses.check()


def test_none_is_no_reading():
    with pytest.raises(AssertionError, match="None stands for refused"):
        Outcomes().of(lambda: None, ValueError)
