"""The verdict of a run in a folder, which every view of it shows: its statement, and all that lies beside it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacita.errors import TacitaError
from tacita.ledger.verdict import Verdict, verdict
from tacita.runs import run_list
from tacita.runs.folder import RunFolder
from tacita.runs.sealed_run import STATEMENT
from tacita.runs.signing import signatures
from tacita.tables.run_audit import RunAudit


def run_verdict(folder: str | Path, fields: Mapping[str, Any], *, changed: bool) -> Verdict:
    """Weigh a run: the fields of its statement, an audit beside it, private files, and runs on the same data.

    Args:
        folder: The folder of the run.
        fields: The fields of its statement, with the edits of an edited run.
        changed: Whether something was changed since the run was finished.
    """
    audit = RunAudit.beside(Path(folder), fields)
    found = verdict(
        fields,
        changed=changed,
        refuted=audit is not None and bool(audit.refuted),
        secrets=RunFolder(folder).holds_secrets,
        noise_used_twice=bool(copies_that_went_on(folder, fields)),
        other_runs=other_runs(folder, fields),
    )
    return replace(found, missing=tuple(name for name in found.missing if name not in _given_by_signers(folder)))


def copies_that_went_on(folder: str | Path, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of folders beside the run's whose ledgers went another way from the same key.

    A folder that is copied with its private files and continued twice draws the noise of its queries twice, so that
    the difference of two releases has none. A copy of a finished run has the same ledger, and is none of these.
    """
    own = Path(folder).absolute()
    if fields.get("secure_randomness") is not True or (run := _id(fields)) is None:
        return ()
    beside = [path for path in sorted(own.parent.glob(f"*/{STATEMENT}")) if path.parent != own]
    others = [(path.parent.name, _read(path, str(run).encode())) for path in beside]
    return tuple(
        name for name, one in others if _id(one) == run and one.get("ledger_sha256") != fields.get("ledger_sha256")
    )


def _id(fields: Mapping[str, Any]) -> Any:
    run = fields.get("run")
    return run.get("id") if isinstance(run, Mapping) else None


def _read(path: Path, run: bytes) -> Mapping[str, Any]:
    """Return the fields of a statement in which the id of a run stands; nothing for others, which are not parsed."""
    try:
        data = path.read_bytes()
        found = json.loads(data) if run in data else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}


def _given_by_signers(folder: str | Path) -> set[str]:
    """Return what signers said where the statement does not, by name; whose keys they are is for a reader to check."""
    try:
        return {name for one in signatures(folder) for name in one.given}
    except TacitaError:
        return set()


def other_runs(folder: str | Path, fields: Mapping[str, Any]) -> int:
    """Count the other runs on the same data set that the list beside the run's folder has by now."""
    dataset = fields.get("dataset")
    if not isinstance(dataset, Mapping) or not {"name", "id", "list"} <= set(dataset):
        return 0
    return run_list.others(Path(folder).absolute().parent / run_list.NAME, dataset)
