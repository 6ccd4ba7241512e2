"""Check a finished run: make its statement again from the ledger, and hold its files against the seal."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacita.errors import LedgerError
from tacita.ledger import Ledger, Statement, statement
from tacita.ledger.verdict import Verdict, verdict
from tacita.runs.sealed_run import LEDGER, STATEMENT, TEXT, SealedRun
from tacita.tables import run_list
from tacita.tables.statement_versions import compare_statements
from tacita.tables.table_statement import EXTRAS, IF_ANY


@dataclass(frozen=True)
class Checked:
    """The result of :func:`check_run`.

    Attributes:
        text: The statement, made again from the ledger.
        faults: What was changed, in words; empty if nothing was.
        verdict: What the statement comes to.
        notes: What a reader should know that is no fault, in words: other runs on the same data that were added since,
            or another version of tacita that wrote the statement.
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
        ledger = Ledger.load(run.folder / LEDGER)
        again = _again(ledger, run.stated)
        text = again.text
    except (LedgerError, LookupError, AttributeError, TypeError, ValueError) as error:
        unread = [f"{LEDGER}: {error}"] if not faults else []
        return Checked(_text(run.folder), (*faults, *unread), Verdict("changed"))
    notes = _notes(run.folder, run.stated)
    compared = compare_statements(run.stated, again.to_json(), sealed=not faults)
    if compared.changed:
        faults.append(f"{STATEMENT} does not follow from the ledger: {', '.join(compared.changed)}")
    if _text(run.folder) != text and not compared.words_may_differ:
        faults.append(f"{TEXT} is not what follows from the ledger")
    if compared.words_may_differ and not faults and (_text(run.folder) != text or compared.worded):
        notes = (compared.note, *notes)
    return Checked(text, tuple(faults), verdict(again.to_json(), changed=bool(faults)), notes)


def _notes(folder: Path, stated: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note if the list of runs now has other runs on the same data set."""
    dataset = stated.get("dataset")
    if not isinstance(dataset, Mapping) or not {"name", "id", "list"} <= set(dataset):
        return ()
    count = run_list.others(folder.absolute().parent / run_list.NAME, dataset)
    return (run_list.words(dataset, count),) if count else ()


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
