"""Resuming an interrupted selection, and the checks that it is the same one.

A winner that was found under one budget must not be released under another. The session is registered for a keyed tag
of all settings and of the records that score, under the key in the working folder. So no other folder can continue that
session, and no other session can be continued in that folder.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tacita.errors import ResumeError
from tacita.ledger import Ledger, settings_sha256
from tacita.oracles import Records
from tacita.runs.folder import RunFolder
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.tables.best_of import PURPOSE
from tacita.tables.selection_events import RepeatAndSelectEvent
from tacita.tables.working_folder import WorkingFolder
from tacita.training.fingerprint import data_parts


def folder_for(folder: str | Path | None, ledger: Ledger) -> RunFolder | None:
    """Return the private working folder of a selection that spends in ``ledger``; ``None`` without one.

    Raises:
        ValueError: The folder holds the ledger; or the ledger is in memory.
    """
    if folder is None:
        return None
    if ledger.path is None:
        raise ValueError("folder needs a ledger with a path, in which an interrupted selection can be continued.")
    if Path(folder).resolve() in ledger.path.resolve().parents:
        raise ValueError(
            f"folder must not hold the ledger, got {str(folder)!r}: the folder is private and is removed at the end."
        )
    return RunFolder(folder, ledger=ledger.path)


def bind(run: RunLifecycle, settings: Mapping[str, Any], held_out: Records) -> dict[str, Any]:
    """Bind the run to ``settings`` and to the records that score; add the tag, for which the session is registered.

    Raises:
        ResumeError: The interrupted selection has other settings or records.
    """
    declared = json.dumps([settings, repr(held_out.part), held_out.max_rows_per_unit], sort_keys=True).encode()
    rows = b"" if held_out.rows is None else np.asarray(held_out.rows).tobytes()
    parts = [declared, rows, *data_parts(held_out.dataset, run.randomness.session_key("input"))]
    return {**settings, "inputs": run.bind(parts, "settings or held-out records")}


def check_resumable(
    ledger: Ledger, event: RepeatAndSelectEvent, settings: dict[str, Any], folder: WorkingFolder, key_found: bool
) -> None:
    """Check that ledger and folder hold nothing yet, or this same selection.

    Args:
        ledger: The ledger in which the selection spends.
        event: The event of this selection.
        settings: The settings for which its session is registered.
        folder: Its working folder.
        key_found: Whether the key was already in the folder.

    Raises:
        ResumeError: Folder and ledger do not belong together, or settings or records differ.
    """
    left = [one for one in ledger.sessions if one.purpose == PURPOSE and one.state != "withdrawn"]
    session = left[-1] if left else None
    if session is not None and session.opened and not key_found:
        raise ResumeError(
            f"session {session.id!r} was opened by an earlier process, whose private working folder is not here: use "
            "another ledger."
        )
    if not folder.begun:
        return
    same = session is not None and session.event == event
    if session is None or not same or session.registration.settings_sha256 != settings_sha256(settings):
        raise ResumeError(
            "folder holds an interrupted selection with another training, or of another ledger: repeat it with those, "
            "or choose another folder and another ledger."
        )
    if folder.done and not session.opened:
        raise ResumeError(
            f"folder holds runs, but session {session.id!r} was never opened: they belong to another ledger. Use that "
            "one, or another folder."
        )
