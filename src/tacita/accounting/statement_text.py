"""The words of a privacy statement, from its fields.

Place: [accounting.statement_text] -> accounting.statement. Bounds are rounded up where they are printed.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context
from typing import Any

from tacita.accounting.relations import NeighboringRelation

WIDTH = 100

NEIGHBOURS: dict[NeighboringRelation, str] = {
    "add_or_remove_one": "one unit is present in one and absent from the other; the number of units is protected, too",
    "replace_one": "one unit's data are replaced by any other data; the number of units is public",
    "zero_out_one": "one unit's contribution is replaced by zero; the number of units is public",
}


def write_text(fields: Mapping[str, Any], extra: Sequence[str] = ()) -> str:
    """The statement of ``fields``; ``extra`` names those that the caller added."""
    return _Text(fields, extra).write()


def _up(value: float) -> str:
    """Four significant digits, rounded up: a bound that is printed is still a bound.

    Example:
        >>> _up(1.65431), _up(0.0)
        ('1.655', '0')
    """
    return f"{Context(prec=4, rounding=ROUND_CEILING).create_decimal(value).normalize():f}"


class _Text:
    """Writes the fields of a statement as text."""

    def __init__(self, fields: Mapping[str, Any], extra: Sequence[str]):
        self._fields, self._extra = fields, extra
        self._lines: list[str] = []

    def write(self) -> str:
        self._alarms()
        self._line("PRIVACY STATEMENT")
        self._guarantee()
        self._spent()
        self._sessions()
        fields = self._fields
        self._list("It rests on", [f"{text}." for text in fields["assumptions"]])
        self._list("Bought from the data", fields["purchases"])
        self._list("Chosen by tacita, by its public rules", fields["chosen_by_tacita"])
        self._list("Held-out score", [] if fields["holdout_score"] is None else [fields["holdout_score"]])
        self._list("Further", [f"{name}: {_words(fields[name])}" for name in self._extra])
        self._list("Caveats", fields["caveats"])
        self._ledger()
        return "\n".join(self._lines) + "\n"

    def _line(self, text: str = "", indent: str = "", first: str | None = None) -> None:
        wrapped = textwrap.wrap(
            text,
            WIDTH,
            initial_indent=indent if first is None else first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        self._lines.extend(wrapped or [""])

    def _heading(self, text: str) -> None:
        self._line()
        self._line(text)

    def _list(self, heading: str, entries: Sequence[Any]) -> None:
        if entries:
            self._heading(heading)
            for entry in entries:
                self._line(_words(entry), indent="    ", first="  - ")

    def _alarms(self) -> None:
        fields = self._fields
        if not fields["secure_randomness"]:
            self._line(
                "NOT PRIVATE (test streams): the noise of a session came from a stream that was handed in, so that "
                "it can be computed again and taken off. The numbers below say what the same run would guarantee "
                "with secret noise."
            )
        if fields["non_private"]:
            self._line("NO PRIVACY GUARANTEE: a session adds no noise, or too little for any epsilon at this delta.")
        for disclaimer in fields["disclaimers"]:
            self._line(f"{disclaimer[0].upper()}{disclaimer[1:]}. What is guaranteed is said below.")
        if not fields["ledger_verified"]:
            self._line(f"LEDGER NOT INTACT: {fields['ledger_reason']}. The numbers below cannot be relied on.")
        if self._lines:
            self._line()

    def _guarantee(self) -> None:
        fields = self._fields
        self._heading("What is guaranteed")
        if not fields["sessions"] and not fields["shares"]:
            self._line("Nothing: no session is registered, and nothing can be said of any model.", indent="  ")
            return
        epsilon = fields["epsilon"] if not fields["conditions"] else fields["conditional_epsilon"]
        given = "epsilon = infinity" if epsilon is None else f"epsilon <= {_up(epsilon)}"
        if fields["conditions"]:
            self._line("No unconditional epsilon. Nobody enforces, and the numbers hold only if:", indent="  ")
            for condition in fields["conditions"]:
                self._line(condition + ".", indent="      ", first="    - ")
        self._line(f"Differential privacy with {given} at delta = {fields['delta']:g}: the plan.", indent="  ")
        self._row("For whom", fields["privacy_unit"])
        relation = fields["neighboring_relation"]
        self._row("Neighbours", f"{relation}: two data sets in which {NEIGHBOURS[relation]}.")
        self._row("Accountant", fields["accountant"])
        if fields["failure_probability"]:
            self._row("Of delta", _failures(fields["failure_probability"], fields["failure_delta"]))
        if epsilon is not None:
            self._row("In words", _odds(epsilon, fields["delta"]))

    def _row(self, name: str, text: str) -> None:
        self._line(text, indent=" " * 15, first=f"  {name + ':':<12} ")

    def _spent(self) -> None:
        fields = self._fields
        spent = fields["conditional_epsilon_spent"] if fields["conditions"] else fields["epsilon_spent"]
        if not fields["sessions"]:
            return
        self._heading("Spent so far")
        amount = "epsilon = infinity" if spent is None else f"epsilon <= {_up(spent)}"
        self._line(
            f"{amount} at the same delta. The plan counts whatever was done with the releases; the smaller number "
            "counts only if queries are missing for a reason that has nothing to do with what was released (the "
            "machine stopped, say).",
            indent="  ",
        )

    def _sessions(self) -> None:
        entries = [_session_words(session) for session in self._fields["sessions"]]
        entries += [
            f"{one['id']}: set aside, epsilon {one['epsilon']:g} at delta {one['delta']:g}"
            for one in self._fields["shares"]
        ]
        self._list("Sessions", entries)

    def _ledger(self) -> None:
        fields = self._fields
        self._heading("Ledger")
        held = f"intact, checked against {fields['ledger_anchor']}" if fields["ledger_verified"] else "NOT INTACT"
        self._line(f"{fields['ledger_lines']} lines, {held}. SHA-256 of the last line:", indent="  ")
        self._line(fields["ledger_sha256"], indent="  ")


def _session_words(session: Mapping[str, Any]) -> str:
    made = f"{session['queries_made']} of {session['planned_queries']} planned queries made"
    if session["queries_spent"] > session["queries_made"]:
        made += f" ({session['queries_spent']} counted as spent: reserved when the process stopped)"
    where = (
        "" if session["part"] is None else f", part {session['part']['index']} of split {session['part']['split']!r}"
    )
    paid = "" if session["share"] is None else f", paid from {session['share']}"
    return f"{session['id']} ({session['purpose']}, {session['state']}{where}{paid}): {session['event']}; {made}."


def _failures(probability: float, delta: float) -> str:
    return (
        f"(1 + e^epsilon) x {probability:g} = {_up(delta)} is for a failure, of a condition or of a randomised "
        "solver, on either of two neighbouring data sets; the rest is for the noise."
    )


def _odds(epsilon: float, delta: float) -> str:
    if epsilon >= 20:
        return f"an epsilon of {_up(epsilon)} promises next to nothing: probabilities may differ by e^{_up(epsilon)}."
    return (
        "whoever sees all that was released, and knows everything about all other units, draws any given conclusion "
        f"with a probability that is at most {_up(math.exp(epsilon))} times (e^epsilon) what it would be for a "
        f"neighbouring data set, plus {delta:g}."
    )


def _words(value: Any, *, nested: bool = False) -> str:
    """A field in words: numbers short, mappings as "name: value; name: value".

    Example:
        >>> _words({"what": "counts", "noise_std": 43.350369982, "released": {"number": 6}, "private": True})
        'what: counts; noise_std: 43.3504; released: (number: 6); private: yes'
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        words = "; ".join(f"{name}: {_words(part, nested=True)}" for name, part in value.items())
        return f"({words})" if nested else words
    if isinstance(value, list | tuple):
        return "; ".join(_words(part, nested=True) for part in value) or "none"
    return "none" if value is None else str(value)
