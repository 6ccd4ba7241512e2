"""The audit in one run that lies beside a run: ``tacita audit one-run RUN`` writes it into the folder ``RUN-audit``.

Nothing seals an audit to the run, and whoever can write its file can change it; the page says so. An edited copy of a
run holds the audit of that run, as it was when it was edited, in ``parent-audit/``.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacita.ledger.text_lines import rounded_down, rounded_up
from tacita.runs.edits import PARENT

RESULT = "audit.json"
OF_PARENT, OF_BEFORE = f"{PARENT}-audit", "Of the run before the edit: "
SAME = ("neighboring_relation", "privacy_unit")  # without which an audit is about something else
UNREADABLE = "A file of an audit lies beside this run and cannot be read, so nothing is said of it."
UNSEALED = (
    "An audit is not part of this run's sealed ledger: whoever can write its file can change it, and no check of this "
    "run would notice."
)
ANOTHER = (
    "The audit trained the configuration again. It says nothing of this model, and spent the privacy stated here in "
    "addition."
)


@dataclass(frozen=True)
class RunAudit:
    """What a page says of an audit.

    Attributes:
        folder: Name of the audit's folder.
        refuted: Whether it refuted the claim; ``None`` if its file cannot be read, or is about something else.
        words: The result in a sentence; lower bounds are rounded down, claims up.
        details: Names and values of all that was measured.
    """

    folder: str
    refuted: bool | None
    words: str
    details: Mapping[str, str]

    @classmethod
    def beside(cls, folder: Path, stated: Mapping[str, Any]) -> "RunAudit | None":
        """Return the audit beside the run in ``folder``, whose statement is ``stated``; ``None`` if there is none."""
        for place in places(folder):
            try:
                return cls._read(place.name, json.loads((place / RESULT).read_bytes()), stated)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
                return cls(place.name, None, UNREADABLE, {})
        return None

    @classmethod
    def _read(cls, name: str, found: Any, stated: Mapping[str, Any]) -> "RunAudit":
        audit, at = found["audit"], found["audit"]["verdict_at"]
        other = [field for field in SAME if found[field] != stated.get(field)]
        if other:
            words = f"An audit lies beside this run and is about another {' and '.join(other).replace('_', ' ')}."
            return cls(name, None, words, {})
        claimed, measured = _claim(audit["epsilon_claimed"]), _bound(audit["epsilon_lower_bound"])
        strict_claim, strict = _claim(at["epsilon_claimed"]), _bound(at["epsilon_lower_bound"])
        refuted = audit["verdict"] != "consistent" or strict > strict_claim
        delta, confidence = float(audit["delta"]), float(audit["confidence"])
        of, verdict = OF_BEFORE * (name == OF_PARENT), "REFUTED" if refuted else "Consistent, which proves nothing"
        words = (
            f"{of}{verdict}: epsilon is at least {rounded_down(measured)} with confidence {confidence:g}, and at most "
            f"{_up(claimed)} is claimed of the training, at delta {delta:g}."
        )
        details = {
            "Verdict": f"epsilon at least {rounded_down(strict)} measured, at most {_up(strict_claim)} claimed, at "
            f"delta {float(at['delta']):.2g}; a true claim is refuted in at most one audit of a million",
            "Guesses": f"{int(audit['correct_guesses'])} of {int(audit['guesses'])} right, {int(audit['canaries'])} "
            "canaries",
            "Could have shown": f"epsilon {rounded_down(_bound(at['largest_possible_lower_bound']))} at most, had "
            "every guess been right",
            "Adversary": str(audit["adversary"]),
            "Cost": f"epsilon at most {_up(_claim(audit['epsilon_of_the_audit']))} at delta {delta:g}, on the same "
            "records",
        }
        return cls(name, refuted, words, details)


def places(folder: Path) -> tuple[Path, Path]:
    """Return where the audit of a run may lie: beside its folder, or of the run before an edit in the edited copy."""
    whole = folder.absolute()
    return whole.with_name(f"{whole.name}-audit"), whole / OF_PARENT


def _claim(value: Any) -> float:
    """Return a claimed epsilon; ``null`` stands for infinity."""
    return math.inf if value is None else _bound(value)


def _bound(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError("a bound of an audit must be a number >= 0.")
    return float(value)


def _up(value: float) -> str:
    return "infinity" if math.isinf(value) else rounded_up(value)
