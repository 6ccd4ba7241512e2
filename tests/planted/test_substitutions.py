"""Every substitution applies and names tests, one of which make quick runs; test_planted.py plants them."""

from dataclasses import replace

import pytest

from tests.planted.bugs import BUGS
from tests.planted.substitutions import ROOT, SOURCE, Outcome, Substitution, load
from tests.slow import is_slow, left_out

BUGS_OF_TEXT = load()


def test_every_substitution_applies_and_names_tests():
    for bug in BUGS_OF_TEXT.values():
        bug.applied((SOURCE / bug.file).read_text(encoding="utf-8"))
        for test in bug.caught_by:
            file, name = test.split("[")[0].split("::")
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), test
    assert not BUGS_OF_TEXT.keys() & BUGS.keys()


def test_make_quick_sees_every_substitution_but_those_that_say_so():
    slow = left_out()
    unseen = {bug.name for bug in BUGS_OF_TEXT.values() if all(is_slow(test, slow) for test in bug.caught_by)}
    assert unseen == {bug.name for bug in BUGS_OF_TEXT.values() if bug.slow}


# -- the check can fail

BUG = Substitution(name="bug", says="It is one.", file="f.py", old="one", new="two", caught_by=("a", "b"))


@pytest.mark.parametrize("text", ["nothing", "one and one"])
def test_a_text_that_does_not_stand_there_once_is_an_error(text):
    with pytest.raises(ValueError, match=r"bug: [02] places in f.py read 'one'"):
        BUG.applied(text)


@pytest.mark.parametrize(
    ("failed", "trouble", "says"),
    [
        ({"a": "AssertionError"}, "", "bug survived b"),
        ({}, "", "bug survived a, b"),
        ({"a": "AssertionError", "b": "NameError: x"}, "", "broke the code"),
        ({}, "the tests did not end", "did not end"),
        ({"a": "AssertionError", "b": "Failed: DID NOT RAISE"}, "", ""),
    ],
)
def test_the_verdict(failed, trouble, says):
    found = Outcome(failed, {}, trouble).verdict(BUG)
    assert says in found if says else not found


def test_a_case_has_seen_a_bug_if_its_test_has():
    assert not Outcome({"a": "AssertionError"}, {}, "").verdict(replace(BUG, caught_by=("a[case]",)))
