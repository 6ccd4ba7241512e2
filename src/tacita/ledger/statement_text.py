"""The text of a privacy statement, written from its fields for a reader who has to sign it.

Bounds are rounded up where they are printed. A technical term is explained where it first stands, and only if it stands
there (``TERMS``).
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context
from typing import Any

from tacita.accounting.relations import NeighboringRelation

WIDTH = 100
_EXACT = 2.0**53  # below it, float64 holds every integer
HEADLINE = "headline"  # a further field that stands in the first line, if a front end gives it

NEIGHBOURS: dict[NeighboringRelation, str] = {
    "add_or_remove_one": "one unit is present in one of them and absent from the other. The number of units is "
    "protected, too",
    "replace_one": "the data of one unit are replaced by any other data. The number of units is public",
    "zero_out_one": "the contribution of one unit is replaced by zero. The number of units is public",
}

METHODS = {  # in the name of an accountant -> what it stands for
    "PLD": "PLD stands for privacy loss distribution",
    "RDP": "RDP stands for Rényi differential privacy",
    "Rényi filter": "a Rényi filter lets later sessions depend on earlier releases, as long as a fixed total is kept",
}

TERMS = {  # in the words of a session -> what it means
    "Poisson sampling": "Poisson sampling lets a separate random coin decide whether a record enters a query; the "
    "sample rate is the coin's chance.",
    "Fixed-size sampling": "Fixed-size sampling draws the records of each query anew, always the same number of them.",
    "Disjoint batches": "Disjoint batches put no record into two queries.",
    "Shuffled epochs": "Shuffled epochs put a record into one query of each pass through the data.",
    "amplification": "Amplification is the gain in privacy from nobody knowing which records a query used.",
    "max_contribution": "max_contribution is the most that one record can add to a sum (its length as a vector, the L2 "
    "norm).",
    "noise_std": "noise_std is the standard deviation of the noise that is added to every entry of a sum.",
    "blocks": "Blocks are sums that one query releases together.",
    "hidden error": "A hidden error is a correction that a session remembers, adds to later sums and never releases.",
    "residual": "A residual is what clipping cut off a record's gradient; max_residual is the most that one record "
    "adds to the hidden error at a time.",
    "Stable counts": "Stable counts are counts of values that the data itself names; only large ones are released.",
    "AboveThreshold": "AboveThreshold releases only whether a value passed a threshold, with noise on both.",
    "sensitivity": "Sensitivity is the most that the data of one unit can change a value.",
    "rho": "rho is the cost of a query in zero-concentrated privacy, a form of differential privacy; costs add up.",
    "hardened": "Hardened noise consists of whole steps of a public grid; the caveats say which attacks that closes.",
    "discrete Gaussian": "Discrete Gaussian noise has whole numbers in place of real ones.",
    "split": "A split divides the records into parts; a session on one part sees no other records.",
    "share-": "A share is an epsilon and a delta set aside in advance, for sessions whose settings are chosen later.",
    "counted as spent": "Queries are reserved on disk before their noise is drawn, so that a process which stops "
    "suddenly cannot have released more than is counted.",
}


def write_text(fields: Mapping[str, Any], extra: Sequence[str] = ()) -> str:
    """Return the text of a statement; ``extra`` names the fields that the caller added."""
    return _Text(fields, extra).write()


def _up(value: float) -> str:
    """Round up to four significant digits, so that a printed bound is still a bound.

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
        self._list("What the guarantee rests on", [f"{text}." for text in fields["assumptions"]])
        self._list("Bought from the data, with noise", fields["purchases"])
        self._list("Settings chosen by tacita, by its public rules", fields["chosen_by_tacita"])
        self._list("Held-out score", [] if fields["holdout_score"] is None else [fields["holdout_score"]])
        self._list("Further details", [f"{name}: {_words(fields[name])}" for name in self._extra if name != HEADLINE])
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
            self._entries(entries)

    def _entries(self, entries: Sequence[Any]) -> None:
        for entry in entries:
            self._line(_words(entry), indent="    ", first="  - ")

    def _alarms(self) -> None:
        fields = self._fields
        if fields.get(HEADLINE):
            self._line(fields[HEADLINE])
        if not fields["secure_randomness"]:
            self._line(
                "NOT PRIVATE (test streams): the noise of a session came from a random stream that the caller handed "
                "in, so that it can be computed again and removed. The numbers below say what the same run would "
                "guarantee with secret noise."
            )
        if fields["non_private"]:
            self._line("NO PRIVACY GUARANTEE: a session adds no noise, or too little for any epsilon at this delta.")
        for disclaimer in fields["disclaimers"]:
            self._line(f"{disclaimer[0].upper()}{disclaimer[1:]}. What is guaranteed is stated below.")
        if not fields["ledger_verified"]:
            self._line(f"LEDGER NOT INTACT: {fields['ledger_reason']}. The numbers below cannot be relied on.")
        if self._lines:
            self._line()

    def _guarantee(self) -> None:
        fields = self._fields
        self._heading("What is guaranteed")
        if not fields["sessions"] and not fields["shares"]:
            self._line("Nothing: no session is registered, so nothing can be said of any model.", indent="  ")
            return
        epsilon = fields["epsilon"] if not fields["conditions"] else fields["conditional_epsilon"]
        given = "epsilon = infinity" if epsilon is None else f"epsilon <= {_up(epsilon)}"
        if fields["conditions"]:
            self._line(
                "No unconditional epsilon. The numbers below hold only under these conditions, which nobody enforces:",
                indent="  ",
            )
            for condition in fields["conditions"]:
                self._line(condition + ".", indent="      ", first="    - ")
        self._line(
            f"Differential privacy with {given} at delta = {fields['delta']:g}, for the plan: all queries that the "
            "sessions below may make.",
            indent="  ",
        )
        self._row("For whom", f"{fields['privacy_unit']} (the privacy unit)")
        relation = fields["neighboring_relation"]
        self._row("Neighbours", f"the data sets compared differ in one unit. By {relation}, {NEIGHBOURS[relation]}.")
        if epsilon is not None:
            self._row("In words", _odds(epsilon, fields["delta"]))
        self._row("Accountant", _accountant(fields["accountant"], bounded=epsilon is not None))
        if fields["failure_probability"]:
            self._row("Of delta", _failures(fields["failure_probability"], fields["failure_delta"]))

    def _row(self, name: str, text: str) -> None:
        self._line(text, indent=" " * 15, first=f"  {name + ':':<12} ")

    def _spent(self) -> None:
        fields = self._fields
        spent = fields["conditional_epsilon_spent"] if fields["conditions"] else fields["epsilon_spent"]
        if not fields["sessions"]:
            return
        self._heading("Spent so far")
        amount = "epsilon = infinity" if spent is None else f"epsilon <= {_up(spent)}"
        conditions = ", under the same conditions" if fields["conditions"] else ""
        self._line(
            f"{amount} at the same delta{conditions}, for the queries that may have been released so far. The plan's "
            "number holds whatever is done with the releases; this one holds only if queries are missing for a reason "
            "that has nothing to do with what was released (the machine stopped, say).",
            indent="  ",
        )

    def _sessions(self) -> None:
        entries = [_session_words(session) for session in self._fields["sessions"]]
        entries += [
            f"{one['id']}: set aside, epsilon {one['epsilon']:g} at delta {one['delta']:g}"
            for one in self._fields["shares"]
        ]
        if entries:
            self._heading("Sessions")
            self._line(
                "A session is a series of queries for one purpose; a query is one noisy answer computed from the data.",
                indent="  ",
            )
            for term, meaning in TERMS.items():
                if any(term in entry for entry in entries):
                    self._line(meaning, indent="    ", first="  ")
            self._entries(entries)

    def _ledger(self) -> None:
        fields = self._fields
        self._heading("Ledger")
        self._line(
            "The ledger is the record of all sessions and queries. Each line holds a hash (SHA-256, a fingerprint) of "
            "the line before, so that later changes show, unless somebody rewrites the ledger and every copy of its "
            "last hash.",
            indent="  ",
        )
        held = f"intact, checked against {fields['ledger_anchor']}" if fields["ledger_verified"] else "NOT INTACT"
        self._line(f"{fields['ledger_lines']} lines, {held}. SHA-256 of the last of them:", indent="  ")
        self._line(fields["ledger_sha256"], indent="  ")
        files = fields.get("files")
        if isinstance(files, Mapping) and files:
            names = ", ".join(sorted(files))
            self._line(
                f"The next line, the seal, ends the ledger. It holds the hashes of this statement and of {names}; "
                'without it the run is not finished. "tacita statement" checks all of them.',
                indent="  ",
            )


def _session_words(session: Mapping[str, Any]) -> str:
    made = f"{session['queries_made']} of {session['planned_queries']} planned queries made"
    if session["queries_spent"] > session["queries_made"]:
        made += f" ({session['queries_spent']} counted as spent, because they were reserved when the process stopped)"
    where = (
        "" if session["part"] is None else f", part {session['part']['index']} of split {session['part']['split']!r}"
    )
    paid = "" if session["share"] is None else f", paid from {session['share']}"
    if session.get("restart_of"):
        paid += f", planned to replace {session['restart_of']} if that one is interrupted"
    return f"{session['id']} ({session['purpose']}, {session['state']}{where}{paid}): {session['event']}; {made}."


def _accountant(name: str, *, bounded: bool) -> str:
    """The method that computed epsilon, with its abbreviations spelt out."""
    if not bounded:
        return f"{name}."
    spelt_out = "".join(f"; {words}" for method, words in METHODS.items() if method in name)
    return f"{name}: the method that computed epsilon, as an upper bound{spelt_out}."


def _failures(probability: float, delta: float) -> str:
    return (
        f"{_up(delta)} of it, (1 + e^epsilon) x {probability:g}, covers the chance that a condition or a randomised "
        "solver fails on either of two neighbouring data sets; the rest is for the noise."
    )


def _odds(epsilon: float, delta: float) -> str:
    if epsilon >= 20:
        return (
            f"an epsilon of {_up(epsilon)} promises next to nothing: the probability of a conclusion may differ "
            f"e^{_up(epsilon)}-fold between data sets that differ in one unit."
        )
    return (
        "whoever sees everything that was released, and knows everything about all other units, draws any given "
        f"conclusion with a probability that is at most {_up(math.exp(epsilon))} times (e^epsilon) what it would be "
        f"for a neighbouring data set, plus {delta:g} (delta)."
    )


def _words(value: Any, *, nested: bool = False) -> str:
    """Return a field in words: short numbers, mappings as "name: value; name: value".

    Example:
        >>> _words({"what": "counts", "noise_std": 43.350369982, "released": {"rows": 2001234.0}, "private": True})
        'what: counts; noise_std: 43.3504; released: (rows: 2001234); private: yes'
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < _EXACT else f"{value:.6g}"
    if isinstance(value, Mapping):
        words = "; ".join(f"{name}: {_words(part, nested=True)}" for name, part in value.items())
        return f"({words})" if nested else words
    if isinstance(value, list | tuple):
        return "; ".join(_words(part, nested=True) for part in value) or "none"
    return "none" if value is None else str(value)
