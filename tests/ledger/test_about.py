"""What a run is said to be for: the six names that a statement has a place for, each one line of text."""

import pytest

from tacita.ledger.run_sections import GIVEN, check_about


def test_each_name_of_the_statement_is_taken():
    check_about({name: "one line" for name in GIVEN})
    check_about({})


@pytest.mark.parametrize(
    ("about", "error", "message"),
    [
        ({"who": "x"}, ValueError, "about must hold responsible, contact"),
        ({"purpose": ""}, ValueError, r"about\.purpose must be one line of text"),
        ({"purpose": "a\nEpsilon: 0"}, ValueError, r"about\.purpose must be one line of text"),
        ({"contact": 7}, ValueError, r"about\.contact must be one line of text"),
        ("purpose", TypeError, "about must be a mapping"),
    ],
)
def test_what_has_no_place_is_refused(about, error, message):
    with pytest.raises(error, match=message):
        check_about(about)
