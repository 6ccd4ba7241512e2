"""What ties an interrupted selection to its working folder, its ledger, its settings and the records that score it.

Place: workplace -> [selection.binding] -> choose. A winner that was found under one budget must not come out under
another. The session is registered for a keyed tag of everything that may be compared, under the key that lies in the
folder: no other folder continues that session, and no other session is continued in that folder.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacita.accounting import Ledger, RepeatAndSelectEvent, settings_sha256
from tacita.errors import ResumeError
from tacita.oracles import Records
from tacita.random import Randomness
from tacita.selection.best_of import PURPOSE
from tacita.selection.workplace import KEY, Workplace
from tacita.training.fingerprint import data_parts


def enter(folder: Path, ledger: Ledger, randomness: Randomness | None) -> tuple[Workplace, Randomness, bool]:
    """The working folder and the key in it; whether the key was there.

    Raises:
        ValueError: The folder holds something else, the ledger among it; or the ledger is in memory.
        ResumeError: The folder is that of a selection whose key is gone.
    """
    if ledger.path is None:
        raise ValueError("folder needs a ledger with a path: an interrupted selection goes on in the ledger it began.")
    if folder.resolve() in ledger.path.resolve().parents:
        raise ValueError(
            f"folder must not hold the ledger, got {str(folder)!r}: it is private, and removed at the end."
        )
    place = Workplace(folder)
    key = folder / KEY
    if key.exists():
        return place, Randomness.load(key), True
    if any(not path.name.startswith(".") for path in folder.iterdir()):
        raise ResumeError(f"the working folder {folder.name!r} has lost its key: remove it, and use another ledger.")
    randomness = randomness or Randomness.system()
    randomness.save(key)
    return place, randomness, False


def bound(settings: Mapping[str, Any], held_out: Records, randomness: Randomness) -> dict[str, Any]:
    """``settings`` with a keyed tag of them and of the records that score: what the session is registered for."""
    key = randomness.session_key("selection inputs")
    declared = json.dumps([settings, repr(held_out.part), held_out.max_rows_per_unit], sort_keys=True).encode()
    parts = [declared, held_out.rows.tobytes(), *data_parts(held_out.dataset, key)]
    return {**settings, "inputs": key.tag("inputs", parts=parts)}


def check(ledger: Ledger, event: RepeatAndSelectEvent, settings: dict[str, Any], place: Workplace, ours: bool) -> None:
    """Refuse to go on with a selection that is not this one.

    Args:
        ledger: Pays.
        event: What this selection spends.
        settings: What its session is registered for.
        place: Its working folder.
        ours: Whether the key was in the folder already.

    Raises:
        ResumeError: Folder and ledger do not belong together, or settings or records are others.
    """
    left = [one for one in ledger.sessions if one.purpose == PURPOSE and one.state != "withdrawn"]
    session = left[-1] if left else None
    if session is not None and session.opened and not ours:
        raise ResumeError(
            f"session {session.id!r} was opened by an earlier process, whose private working folder is not here: use "
            "another ledger."
        )
    if not place.begun:
        return
    same = session is not None and session.event == event
    if session is None or not same or session.registration.settings_sha256 != settings_sha256(settings):
        raise ResumeError(
            "folder holds an interrupted selection with other settings or held-out records, or of another ledger: "
            "repeat it with those, or choose another folder and another ledger."
        )
    if place.done and not session.opened:
        raise ResumeError(f"folder holds runs, and session {session.id!r} was never opened: the ledger is not theirs.")
