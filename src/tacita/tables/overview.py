"""A short view of runs: what is in a folder, and what one run guarantees and scored. Only public fields are read."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacita.errors import TacitaError
from tacita.ledger.journal import ends_with_seal
from tacita.ledger.verdict import Verdict
from tacita.runs.edits import EDITS
from tacita.runs.folder import RunFolder
from tacita.runs.sealed_run import STATEMENT, SealedRun
from tacita.tables.run_verdict import run_verdict


@dataclass(frozen=True)
class RunOverview:
    """One run in a list.

    Attributes:
        folder: The folder of the run.
        state: "finished", "unfinished" (its command, repeated, goes on), or "changed" (a file is not the one that its
            ledger was sealed with).
        fields: The statement's fields; empty if there is no statement.
    """

    folder: Path
    state: str
    fields: dict[str, Any]

    @property
    def verdict(self) -> Verdict:
        """What the run comes to, as far as its seal and what lies beside it tell."""
        if self.state == "unfinished":
            return Verdict(self.state)
        return run_verdict(self.folder, self.fields, changed=self.state == "changed")

    @property
    def score(self) -> dict[str, Any]:
        """The statement's field of the held-out score; empty if there is none."""
        found = self.fields.get("holdout_score")
        return found if isinstance(found, dict) else {}


def overview_of(folder: str | Path) -> RunOverview | None:
    """Look at one folder; ``None`` if it holds no run.

    A finished run is "changed" if a file differs from the seal. ``tacita statement`` checks more: that the statement
    follows from the ledger.
    """
    path = Path(folder)
    kept = RunFolder(path)
    if kept.unfinished and not kept.tidying:
        return RunOverview(path, "unfinished", {})
    if not any((path / name).is_file() for name in (STATEMENT, EDITS)) and not ends_with_seal(kept.ledger):
        return None
    try:
        run = SealedRun(path)
    except TacitaError:
        return RunOverview(path, "changed", {})
    return RunOverview(path, "changed" if run.faults else "finished", run.fields)


def runs_in(folder: str | Path) -> Iterator[RunOverview]:
    """Yield the runs in ``folder``: itself, and the folders directly in it, by name.

    Raises:
        ValueError: There is no such folder.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"folder must be a folder of runs, got {str(folder)!r}.")
    for one in (path, *sorted(entry for entry in path.iterdir() if entry.is_dir())):
        found = overview_of(one)
        if found is not None:
            yield found
