"""The verdict of a statement in one word, and what the guarantee lets an attacker guess."""

from collections.abc import Mapping
from typing import Any

NEXT_TO_NOTHING = 20.0  # from this epsilon on, the statement calls its promise by this name
RISK = ("attack_accuracy", "attack_accuracy_from", "gdp_mu")  # follow from the whole privacy curve
BUT_NEXT_TO_NOTHING = ", but epsilon promises next to nothing"


def verdict(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Sum the guarantee up for programs, and take the risk away where nothing is guaranteed."""
    epsilon = fields["conditional_epsilon"] if fields["conditions"] else fields["epsilon"]
    if not fields["ledger_verified"]:
        found = "ledger not intact"
    elif epsilon is None or not fields["secure_randomness"] or not (fields["sessions"] or fields["shares"]):
        found = "not private"
    else:
        found = "private model" if exact_score(fields) else "private"
        found += " under conditions" if fields["conditions"] else ""
        found += ", exact score" if exact_score(fields) else ""
    guaranteed = epsilon is not None and found.startswith("private")
    return {"verdict": found, **(dict.fromkeys(RISK) if not guaranteed else {name: fields[name] for name in RISK})}


def promises_next_to_nothing(fields: Mapping[str, Any]) -> bool:
    """Return whether a guarantee, under its conditions if it has any, has so large an epsilon that it is one in name.

    Example:
        >>> promises_next_to_nothing({"epsilon": 500.0}), promises_next_to_nothing({"epsilon": 8.0})
        (True, False)
    """
    epsilon = fields.get("conditional_epsilon") if fields.get("conditions") else fields.get("epsilon")
    return isinstance(epsilon, int | float) and epsilon >= NEXT_TO_NOTHING


def verdict_in_words(fields: Mapping[str, Any]) -> str:
    """Return the verdict for people, who are told beside "private" of an epsilon that promises next to nothing.

    Example:
        >>> verdict_in_words({"verdict": "private", "epsilon": 500.0})
        'private, but epsilon promises next to nothing'
        >>> verdict_in_words({"verdict": "private", "epsilon": 1.0})
        'private'
    """
    found = str(fields.get("verdict", "-"))
    vacuous = found.startswith("private") and promises_next_to_nothing(fields)
    return f"{found}{BUT_NEXT_TO_NOTHING if vacuous else ''}"


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
