"""Bugs of audits: a bound that is none, an adversary who knows too much, or one who sees nothing."""

from tacita.testing import (
    named_audits,
    simulator,
)
from tests.planted.plant import bug, put

AUDIT = "tests/testing/test_audit.py::"
CONTRACT = "tests/testing/test_oracle_contract.py::"

HOLDS = CONTRACT + "test_every_oracle_keeps_its_claim"


@bug(1, 45, caught_by=[HOLDS + "[poisson]"])
def audit_knows_the_canarys_coin():
    """An audit of Poisson sampling tells the adversary in which queries the canary was: true claims are refuted."""
    put(simulator.Parts, "coins_known", property(lambda self: True))


@bug(15, caught_by=[AUDIT + "test_persons_are_not_charged_as_rows"])
def person_with_one_row():
    """The audit of persons plants one row of the person, however many there are."""
    object.__setattr__(named_audits.READY["units"].adversaries[0], "copies", 1)
