"""The verdict of a run in a folder, which every view of it shows: its statement, and all that lies beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacita.ledger.verdict import Verdict, verdict
from tacita.runs.folder import RunFolder
from tacita.tables import run_list
from tacita.tables.run_audit import RunAudit


def run_verdict(folder: str | Path, fields: Mapping[str, Any], *, changed: bool) -> Verdict:
    """Weigh a run: the fields of its statement, an audit beside it, private files, and runs on the same data.

    Args:
        folder: The folder of the run.
        fields: The fields of its statement, with the edits of an edited run.
        changed: Whether something was changed since the run was finished.
    """
    audit = RunAudit.beside(Path(folder), fields)
    return verdict(
        fields,
        changed=changed,
        refuted=audit is not None and bool(audit.refuted),
        secrets=RunFolder(folder).holds_secrets,
        other_runs=other_runs(folder, fields),
    )


def other_runs(folder: str | Path, fields: Mapping[str, Any]) -> int:
    """Count the other runs on the same data set that the list beside the run's folder has by now."""
    dataset = fields.get("dataset")
    if not isinstance(dataset, Mapping) or not {"name", "id", "list"} <= set(dataset):
        return 0
    return run_list.others(Path(folder).absolute().parent / run_list.NAME, dataset)
