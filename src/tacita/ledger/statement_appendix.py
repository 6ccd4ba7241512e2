"""The appendix of a statement's text: sessions, assumptions, purchases, settings, columns, hashes, and a glossary."""

from collections.abc import Mapping, Sequence
from typing import Any

from tacita.ledger.glossary import explained
from tacita.ledger.text_lines import TextLines, in_words, names_in_words, rounded_up


class Appendix:
    """Writes the long lists of a statement, for those who check its first page.

    Args:
        lines: Where the first page stands already.
        fields: The statement's fields.
        extra: Names of the fields that a front end added and that are on no other place of the text.
    """

    def __init__(self, lines: TextLines, fields: Mapping[str, Any], extra: Sequence[str]) -> None:
        self._lines, self._fields, self._extra = lines, fields, extra

    def write(self) -> None:
        """Add the appendix to the lines."""
        lines, fields = self._lines, self._fields
        lines.heading("APPENDIX")
        self._spent()
        self._sessions()
        lines.listed("What the guarantee rests on", [f"{text}." for text in fields["assumptions"]])
        lines.listed("Bought from the data, with noise", fields["purchases"])
        lines.listed("Settings chosen by tacita, by its public rules", fields["chosen_by_tacita"])
        self._columns()
        lines.listed("Held-out score in full", [] if fields["holdout_score"] is None else [fields["holdout_score"]])
        lines.listed("Further details", [f"{name}: {in_words(fields[name])}" for name in self._extra])
        self._ledger()
        self._glossary()

    def _spent(self) -> None:
        lines, fields = self._lines, self._fields
        spent = fields["conditional_epsilon_spent"] if fields["conditions"] else fields["epsilon_spent"]
        if not fields["sessions"]:
            return
        lines.heading("Spent so far")
        amount = "epsilon = infinity" if spent is None else f"epsilon <= {rounded_up(spent)}"
        conditions = ", under the same conditions" if fields["conditions"] else ""
        lines.line(
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
        self._lines.listed("Sessions", entries)

    def _columns(self) -> None:
        columns = self._fields.get("columns")
        if isinstance(columns, Mapping):
            self._lines.heading("Columns")
            for name, found in columns.items():
                listed = names_in_words(found) or "none"
                self._lines.entries([f"{name.replace('_', ' ')} ({len(found)}): {listed}"])

    def _ledger(self) -> None:
        lines, fields = self._lines, self._fields
        lines.heading("Ledger")
        lines.line(
            "The ledger is the record of all sessions and queries. Each line holds a hash (SHA-256, a fingerprint) of "
            "the line before, so that later changes show, unless somebody rewrites the ledger and every copy of its "
            "last hash.",
            indent="  ",
        )
        held = f"intact, checked against {fields['ledger_anchor']}" if fields["ledger_verified"] else "NOT INTACT"
        lines.line(f"{fields['ledger_lines']} lines, {held}. SHA-256 of the last of them:", indent="  ")
        lines.line(fields["ledger_sha256"], indent="  ")
        files = fields.get("files")
        if isinstance(files, Mapping) and files:
            names = ", ".join(sorted(files))
            lines.line(
                f"The next line, the seal, ends the ledger. It holds the hashes of this statement and of {names}; "
                'without it the run is not finished. "tacita statement" checks all of them.',
                indent="  ",
            )

    def _glossary(self) -> None:
        self._lines.listed("Glossary", explained(self._lines.text))


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
