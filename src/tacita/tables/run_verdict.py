"""The verdict of a run in a folder, which every view of it shows: its statement, and all that lies beside it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacita.errors import TacitaError
from tacita.ledger.verdict import Verdict, verdict
from tacita.runs import run_list
from tacita.runs.folder import RunFolder
from tacita.runs.signing import signatures
from tacita.tables.run_audit import RunAudit


def run_verdict(folder: str | Path, fields: Mapping[str, Any], *, changed: bool) -> Verdict:
    """Weigh a run: the fields of its statement, an audit beside it, private files, signatures, runs on the same data.

    Args:
        folder: The folder of the run.
        fields: The fields of its statement, with the edits of an edited run.
        changed: Whether something was changed since the run was finished.
    """
    audit = RunAudit.beside(Path(folder), fields)
    try:
        given, forged = {name for one in signatures(folder) for name in one.given}, False
    except TacitaError:
        given, forged = set[str](), not changed  # else the signatures are not at fault
    found = verdict(
        fields,
        changed=changed,
        refuted=audit is not None and bool(audit.refuted),
        secrets=RunFolder(folder).holds_secrets,
        forged=forged,
        other_runs=len(other_runs(folder, fields)),
    )
    # What signers said where the statement does not; whose keys they are is for a reader to check.
    return replace(found, missing=tuple(name for name in found.missing if name not in given))


def other_runs(folder: str | Path, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the other runs on the same data set that the list beside the run's folder has by now."""
    dataset = fields.get("dataset")
    if not isinstance(dataset, Mapping) or not {"name", "id", "list"} <= set(dataset):
        return ()
    return run_list.others(Path(folder), dataset)
