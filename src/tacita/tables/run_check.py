"""Check a finished run: make its statement again from the ledger, and hold its files against the seal.

Words change from version to version, and bounds get tighter; what a ledger holds does not change. So the words of a
sealed statement by another version need not be those of this one, and its epsilon may be larger than the one that is
computed today. A smaller epsilon, or another value of any other field, is a change.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacita.errors import LedgerError, TacitaError
from tacita.ledger import Ledger, Statement, statement
from tacita.ledger.run_sections import other_runs_in_words
from tacita.ledger.verdict import Verdict
from tacita.runs import run_list
from tacita.runs.edits import EDITS, LEDGER, PARENT
from tacita.runs.folder import RunFolder
from tacita.runs.run_facts import tacita_version
from tacita.runs.sealed_run import STATEMENT, TEXT, SealedRun
from tacita.runs.signing import SIGNATURES, Signature, signatures
from tacita.tables.run_verdict import other_runs, run_verdict
from tacita.tables.table_model import load
from tacita.tables.table_statement import EXTRAS, IF_ANY

SECRETS = (
    "private/ is still here: whoever has its key and the releases can subtract the noise. Remove it before anybody "
    "else gets the folder: repeat the command of the run, or after a loop of your own tacita.Randomness.destroy(key)"
)
EDITED = "edited: what is sealed is the run before the edit; tacita statement {} shows it, with its score"
UNCOVERED = "no seal and no signature covers these files, whatever they say: {}"
LINKS = "links, not files: what was checked is what they point to now, and they can be pointed elsewhere later: {}"
TAMPERED = "TAMPERED: what follows does not hold, because something was changed"
SIGNED = "signed by {}; whose keys these are is not checked here: tacita verify RUN --public-key FILE"


@dataclass(frozen=True)
class Checked:
    """The result of :func:`check_run`.

    Attributes:
        text: The statement, made again from the ledger.
        faults: What was changed, in words; empty if nothing was.
        verdict: What the statement comes to.
        notes: What a reader should know that is no fault, in words: signatures, which are not checked; private files
            that are still there; other runs on
            the same data that were added since; or another version of tacita that wrote the statement.
    """

    text: str
    faults: tuple[str, ...]
    verdict: Verdict
    notes: tuple[str, ...] = ()


def check_run(folder: str | Path) -> Checked:
    """Verify ledger, statement and files of a finished run against each other, and make the statement again.

    Every file is held against the seal that ends the ledger, and the statement against the ledger, too. Another version
    of tacita may have written the statement in other words: then its numbers are compared, and ``notes`` says so. No
    code of the run is imported. The check claims nothing against somebody who rewrites all of them.

    Raises:
        TacitaError: There is no finished run here, or its statement cannot be read.
    """
    run = SealedRun(folder)
    faults = list(run.faults)
    try:
        ledger = Ledger.load(run.sealed / LEDGER)
        again = _again(ledger, run.stated)
        shown = again if run.fields is run.stated else _again(ledger, run.fields)  # of an edited run: with its edits
        text = again.text
    except (LedgerError, LookupError, AttributeError, TypeError, ValueError) as error:
        unread = [f"{LEDGER}: {error}"] if not faults else []
        return Checked(_text(run.folder), (*faults, *unread), Verdict("changed"))
    notes = _notes(run)
    if not again.to_json()["ledger_verified"]:  # a statement of such a ledger differs in itself
        return Checked(shown.text, tuple(faults), run_verdict(folder, shown.to_json(), changed=True), notes)
    compared = compare_statements(run.stated, again.to_json(), sealed=not faults)
    if compared.changed:
        faults.append(f"{STATEMENT} does not follow from the ledger: {', '.join(compared.changed)}")
    if _text(run.sealed) != text and not compared.words_may_differ:
        faults.append(f"{TEXT} is not what follows from the ledger")
    if compared.words_may_differ and not faults and (_text(run.sealed) != text or compared.worded):
        notes = (compared.note, *notes)
    faults += _unfit(run.folder) if run.edits and not faults else []
    weighed = run_verdict(folder, shown.to_json(), changed=bool(faults))
    return Checked(shown.text, tuple(faults), weighed, notes)


def _unfit(folder: Path) -> list[str]:
    """Say how the edits do not fit the model of an edited run, if they do not."""
    try:
        load(folder)
    except TacitaError as error:
        return [str(error).rstrip(".")]
    return []


def _notes(run: SealedRun) -> tuple[str, ...]:
    """Return notes of signatures, edits, private files, files without a seal, and other runs on the same data set."""
    folder = run.folder
    found = {
        _signed(folder): (folder / SIGNATURES).exists(),
        EDITED.format(folder / PARENT): (folder / EDITS).exists(),
        SECRETS: RunFolder(folder).holds_secrets,
        UNCOVERED.format(", ".join(run.uncovered)): bool(run.uncovered),
        LINKS.format(", ".join(run.links)): bool(run.links),
        _listed(run): isinstance(run.stated.get("dataset"), Mapping),
    }
    return tuple(words for words, holds in found.items() if words and holds)


def _signed(folder: Path) -> str:
    """Say who signed and what they said, or why the signatures are worth nothing."""
    try:
        found = signatures(folder)
    except TacitaError as error:
        return f"the signatures do not hold: {error}"
    return SIGNED.format("; ".join(_signer(one) for one in found))


def _signer(one: Signature) -> str:
    said = ", ".join(f"{name}: {words}" for name, words in one.given.items())
    return f"{one.signer}, {one.date}" + (f" (says: {said})" if said else "")


def _listed(run: SealedRun) -> str:
    """Say which other runs on the same data set are listed by now, and what all guarantee together."""
    dataset = run.stated.get("dataset")
    path = run.folder.absolute().parent / run_list.NAME
    if not isinstance(dataset, Mapping) or not {"name", "id", "list"} <= set(dataset):
        return ""
    if not path.exists():
        return f"{run_list.NAME} is not beside the folder: which other runs used the same data is not known here"
    names = other_runs(run.folder, run.stated)
    if len(names) < (stated := dataset.get("other_runs") or 0):
        return f"lines of {run_list.NAME} are gone: it names {len(names)} other runs, and {stated} when this was stated"
    if not names:
        return ""
    now = {**dataset, "other_runs": len(names), "together": run_list.together(path, dataset)}
    known = run_list.words(dataset, len(names), names)
    return f"{known} Today: {other_runs_in_words(now).replace(' when this was stated', '')}"


def _text(folder: Path) -> str:
    try:
        return (folder / TEXT).read_bytes().decode("utf-8", "replace")  # line ends as they are
    except OSError:
        return ""


def _again(ledger: Ledger, stated: Mapping[str, Any]) -> Statement:
    # Standing caveats follow from the ledger and come first; the others are the run's own and are taken as stated. Of a
    # statement by another version, whose standing caveats have other words, these are repeated with the run's own.
    own = [] if not isinstance(stated["caveats"], list) else stated["caveats"]
    num_units = stated.get("num_units")
    standing = statement(ledger, stated["delta"], num_units=num_units).to_json()["caveats"]
    own = own[len(standing) :] if own[: len(standing)] == standing else [one for one in own if one not in standing]
    return statement(
        ledger,
        stated["delta"],
        purchases=stated["purchases"],
        chosen_by_tacita=stated["chosen_by_tacita"],
        caveats=own,
        holdout_score=stated["holdout_score"],
        num_units=num_units,
        **{name: value for name, value in stated.items() if name in (*EXTRAS, *IF_ANY)},  # in the order they were in
    )


WORDS = frozenset(
    {
        "accountant",
        "assumptions",
        "attack_accuracy_from",
        "caveats",
        "files_policy",
        "sampler",
        "verdict_warnings",
    }
)
ADDED = frozenset({"attack_accuracy_from", "gdp_mu", "num_units", "verdict_warnings"})  # statements of 0.1 lack them
GONE = frozenset({"disclaimers"})  # and have these, with nothing in them
UPPER_BOUNDS = frozenset(
    {
        "attack_accuracy",
        "conditional_epsilon",
        "conditional_epsilon_spent",
        "epsilon",
        "epsilon_spent",
        "failure_delta",
        "gdp_mu",
    }
)
PRIVATE = "private"  # verdicts that begin so differ in what they say beside it, but for this:
CONDITIONAL = "under conditions"


@dataclass(frozen=True)
class ComparedStatements:
    """The result of :func:`compare_statements`.

    Attributes:
        changed: Names of fields with another value than the ledger gives; empty for a statement that holds.
        worded: Names of fields that another version writes otherwise.
        words_may_differ: Whether another version wrote the statement, and the ledger was sealed over it.
        version: That version.
    """

    changed: tuple[str, ...]
    worded: tuple[str, ...]
    words_may_differ: bool
    version: str

    @property
    def note(self) -> str:
        """What a reader should know of a statement by another version."""
        where = f" (fields {', '.join(self.worded)})" if self.worded else ""
        return (
            f"written by another version of tacita ({self.version}); its numbers are those of the ledger. Words that "
            f"this version ({tacita_version()}) writes otherwise are shown as it writes them{where}."
        )


def compare_statements(stated: Mapping[str, Any], again: Mapping[str, Any], *, sealed: bool) -> ComparedStatements:
    """Compare the fields of a statement with those that follow from its ledger today.

    Args:
        stated: The fields of the statement's file.
        again: The fields that this version makes from the ledger.
        sealed: Whether the file is, byte by byte, the one that the ledger was sealed with. If not, nothing may differ.
    """
    version = _version_of(stated)
    other = sealed and version is not None and version != tacita_version()
    one, two = ({name: _as_text(value) for name, value in x.items()} for x in (stated, again))
    found = sorted(name for name in {*one, *two} if one.get(name) != two.get(name))
    worded = [name for name in found if other and _reworded(name, stated, again)]
    changed = [name for name in found if name not in worded]
    names = (tuple(name if name.isidentifier() else repr(name) for name in these) for these in (changed, worded))
    return ComparedStatements(*names, words_may_differ=other, version=str(version))


def _version_of(stated: Mapping[str, Any]) -> str | None:
    """Return the version that a statement says it was written by; ``None`` if it says none."""
    run = stated.get("run")
    versions = run.get("versions") if isinstance(run, Mapping) else None
    found = versions.get("tacita") if isinstance(versions, Mapping) else None
    return found if isinstance(found, str) else None


def _as_text(value: Any) -> str:
    """Return a JSON text in which values differ that Python takes for equal: ``null`` is one, and 1 is not ``true``."""
    return json.dumps(value, sort_keys=True)


def _reworded(name: str, stated: Mapping[str, Any], again: Mapping[str, Any]) -> bool:
    """Return whether a field says the same in other words, or a larger bound."""
    if name not in stated or name not in again:
        return name in ADDED if name not in stated else name in GONE and stated[name] == []
    before, now = stated[name], again[name]
    if name in WORDS:
        return type(before) is type(now)
    if name == "verdict":
        if not all(isinstance(one, str) and one.startswith(PRIVATE) for one in (before, now)):
            return False
        return (CONDITIONAL in before) == (CONDITIONAL in now)
    if name == "sessions":
        return _as_text(_without_words(before)) == _as_text(_without_words(now))
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (before, now))
    return name in UPPER_BOUNDS and numbers and before >= now


def _without_words(sessions: Any) -> Any:
    """Return a statement's sessions without the words in which their events are described."""
    if not isinstance(sessions, list):
        return sessions
    return [{**one, "event": None} if isinstance(one, dict) and "event" in one else one for one in sessions]
