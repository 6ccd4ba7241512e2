"""Bugs of audits: a bound that is none, an adversary who knows too much, or one who sees nothing."""

from tacita.testing import (
    named_audits,
)
from tests.planted.plant import bug

AUDIT = "tests/testing/test_audit.py::"


@bug(15, caught_by=[AUDIT + "test_persons_are_not_charged_as_rows"])
def person_with_one_row():
    """The audit of persons plants one row of the person, however many there are."""
    object.__setattr__(named_audits.READY["units"].adversaries[0], "copies", 1)
