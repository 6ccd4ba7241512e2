"""The verdict of a statement in one word, and what the guarantee lets an attacker guess."""

from collections.abc import Mapping
from typing import Any

from tacita.accounting import attack_accuracy


def verdict(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Sum the guarantee up for programs, and say what it lets an attacker guess who is undecided before."""
    epsilon = fields["conditional_epsilon"] if fields["conditions"] else fields["epsilon"]
    if not fields["ledger_verified"]:
        found = "ledger not intact"
    elif epsilon is None or not fields["secure_randomness"] or not (fields["sessions"] or fields["shares"]):
        found = "not private"
    else:
        found = "private model" if exact_score(fields) else "private"
        found += " under conditions" if fields["conditions"] else ""
        found += ", exact score" if exact_score(fields) else ""
    accuracy = None
    if epsilon is not None and found.startswith("private"):
        accuracy = attack_accuracy(epsilon, fields["delta"])
    return {"verdict": found, "attack_accuracy": accuracy}


def exact_score(fields: Mapping[str, Any]) -> bool:
    """Return whether the held-out score was computed without noise, on rows that nobody declared public.

    Example:
        >>> exact_score({"holdout_score": {"value": 0.8, "private": False, "of_rows": "private"}})
        True
        >>> exact_score({"holdout_score": {"value": 0.8, "private": False, "of_rows": "public"}})
        False
    """
    score = fields.get("holdout_score")
    return isinstance(score, Mapping) and score.get("private") is False and score.get("of_rows") != "public"
