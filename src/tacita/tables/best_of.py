"""The best of a random number of runs: open the session, make the runs, release the best one.

The proof needs runs that are independent and identically distributed, a number of runs that stays secret, and a ranking
by what each run itself released (docs/derivations/selection.md).
Source: Liu and Talwar (2019), https://arxiv.org/abs/1811.07971; Papernot and Steinke (2022),
https://arxiv.org/abs/2110.03620.

The private working folder holds the number of runs done and the best run so far; nothing in it may be shared. Losing
runs leave nothing in it: a run is kept in memory, and its result is written only if it is the best so far. The folder
has mode 0700, and is removed with the other private files of the run.

A winner that was found under one budget must not be released under another. So the session is registered for a keyed
tag of all settings and of the records that score, under the key in the working folder. No other folder can continue
that session, and no other session can be continued in that folder.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from tacita._files import remove_durably, replace_durably
from tacita.accounting import RepeatAndSelectEvent, Spend, epsilon
from tacita.errors import LedgerError, ResumeError
from tacita.ledger import Ledger, Session, settings_sha256
from tacita.oracles import Records
from tacita.random import Key, Randomness
from tacita.runs.folder import RunFolder
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.tables.grid import Sweep
from tacita.training.fingerprint import data_parts

FOLDER = "selection"  # in a run's private folder
_STATE = "runs.json"
FORMAT = "tacita selection 1"


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of one run. It is private until it is the winner.

    Attributes:
        point: Number of the run's point in the grid.
        score: Larger is better; NaN counts as minus infinity.
        facts: Further JSON values about the run.
        weights: The parameters and buffers of the run's model.
    """

    point: int
    score: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def rank(self) -> float:
        """The value by which runs are compared."""
        return -math.inf if math.isnan(self.score) else self.score

    def to_json(self) -> dict[str, Any]:
        """Return everything but the weights, as JSON values."""
        return {"point": self.point, "score": repr(float(self.score)), "facts": dict(self.facts)}


class WorkingFolder:
    """The number of runs done and the best of them, on disk or in memory.

    Args:
        path: The folder; ``None`` to keep everything in memory.

    Raises:
        ResumeError: The selection's files in it are damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.done = 0  # runs made, padding runs included
        self.best: RunResult | None = None
        self._best_run = -1  # number of the run that is the best
        self.begun = False  # whether :meth:`begin` was called, in this process or an earlier one
        if path is not None:
            path.mkdir(mode=0o700, exist_ok=True)
            os.chmod(path, 0o700)
            self._read()

    def begin(self) -> None:
        """Record that from now on a session of a ledger belongs to this folder."""
        if not self.begun:
            self._write_state()
        self.begun = True

    def record(self, result: RunResult | None) -> None:
        """Record one run. ``result`` is ``None`` for a padding run, which only hides how many runs were drawn."""
        wins = result is not None and (self.best is None or result.rank > self.best.rank)
        if wins:
            self.best, self._best_run = result, self.done
            self._write_weights()
        self.done += 1
        self._write_state()
        if wins:
            self._remove_others()

    def _weights(self, run: int) -> Path:
        assert self.path is not None
        return self.path / f"best-{run}.safetensors"

    def _write_weights(self) -> None:
        if self.path is not None and self.best is not None:
            data = safetensors.torch.save(_owned(self.best.weights))
            replace_durably(self._weights(self._best_run), data, mode=0o600)

    def _write_state(self) -> None:
        if self.path is not None:
            best = None if self.best is None else {**self.best.to_json(), "run": self._best_run}
            state = {"format": FORMAT, "done": self.done, "best": best}
            replace_durably(self.path / _STATE, json.dumps(state).encode(), mode=0o600)

    def _remove_others(self) -> None:
        """Remove the weights of runs that are no longer the best."""
        if self.path is not None:
            for path in self.path.glob("best-*.safetensors"):
                if path != self._weights(self._best_run):
                    remove_durably(path)

    def _read(self) -> None:
        assert self.path is not None
        self.begun = (self.path / _STATE).exists()
        if not self.begun:
            return
        try:
            state = json.loads((self.path / _STATE).read_bytes())
            if state["format"] != FORMAT or type(state["done"]) is not int or state["done"] < 0:
                raise ValueError("another format")
            self.done = state["done"]
            if (best := state["best"]) is not None:
                self._best_run = int(best["run"])
                weights = safetensors.torch.load(self._weights(self._best_run).read_bytes())  # not mapped to the file
                self.best = RunResult(
                    point=int(best["point"]), score=float(best["score"]), facts=dict(best["facts"]), weights=weights
                )
        except (OSError, ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError):
            raise ResumeError(f"the working folder {self.path.name!r} of this selection is damaged.") from None


def _owned(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of the tensors, since safetensors refuses tensors that share memory."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}


PURPOSE = "select"
Attempt = Callable[[int, Randomness], RunResult]  # (number of the grid's point, the run's own randomness) -> result


def register(ledger: Ledger, event: RepeatAndSelectEvent, settings: dict[str, Any], *, secure: bool) -> Session:
    """Return the session of a selection: a new one, or the one that an interrupted process left.

    Raises:
        LedgerError: The session in the ledger was registered for another event or other settings.
    """
    left = [one for one in ledger.sessions if one.purpose == PURPOSE and one.state != "withdrawn"]
    if not left:
        return ledger.register(event, planned_queries=1, purpose=PURPOSE, settings=settings, secure_randomness=secure)
    session = left[-1]
    if session.event != event or session.registration.settings_sha256 != settings_sha256(settings):
        raise LedgerError(
            f"session {session.id!r} was registered for another selection: repeat its settings, or use another ledger."
        )
    if session.registration.secure_randomness and not secure:
        raise LedgerError(f"session {session.id!r} was registered for secure randomness, and the given one is not.")
    return session


def best_of(
    session: Session, sweep: Sweep, randomness: Randomness, attempt: Attempt, folder: WorkingFolder
) -> RunResult | None:
    """Make the runs and release the best; return ``None`` if the number of runs drawn is 0.

    The session is open and its query reserved, on disk, before the number is drawn. The number, the points and the
    runs' own keys follow from the session's key, so an interrupted selection continues with the same ones. A run that
    was cut off is made again from its start, bit for bit, and nothing of it was released. If several runs have the
    highest score, the first one wins.
    """
    name = randomness.claim(session.id, ledger=session.ledger, resumed=session.opened)
    if not session.opened:
        session.open()
    if not session.closed:
        session.reserve(0, 0)
    randomness.mark_drawn(name)
    runs = _number_of_runs(session, sweep, randomness)
    for number in range(folder.done, max(runs, sweep.pad_to or 0)):
        key = _session_key(session, randomness)
        result = attempt(sweep.grid.draw(key.stream("point", number)), Randomness(key.derive("run", number)))
        folder.record(result if number < runs else None)
    _spend(session, randomness, folder.best)
    return folder.best


def one_run_epsilon(alongside: list[Spend], event: RepeatAndSelectEvent, delta: float) -> float:
    """Return the epsilon of one run with the same noise together with ``alongside``, for the statement."""
    return epsilon([*alongside, Spend(event.inner, 1)], delta).epsilon


def _number_of_runs(session: Session, sweep: Sweep, randomness: Randomness) -> int:
    if not session.is_reserved(0):
        raise LedgerError(f"session {session.id!r} must be open before its number of runs is drawn.")
    return sweep.runs.draw(_session_key(session, randomness).stream("number of runs"))


def _session_key(session: Session, randomness: Randomness) -> Key:
    return randomness.session_key(randomness.name_for(session.id, session.ledger))


def _spend(session: Session, randomness: Randomness, best: RunResult | None) -> None:
    """Write the ledger's line of the release and close the session; after a crash, compare with the line there."""
    words = json.dumps(None if best is None else best.to_json(), sort_keys=True).encode()
    weights = [] if best is None else [best.weights[name].detach().cpu() for name in sorted(best.weights)]
    parts = [words, *(value.contiguous().view(-1).view(torch.uint8).numpy() for value in weights if value.numel())]
    tag = _session_key(session, randomness).tag("winner", parts=parts)
    line = session.lookup(0)
    if line is None:
        session.spend(0, tag)
    elif line != tag:
        raise ResumeError(
            f"session {session.id!r} released another winner before: the data or the settings are not those with which "
            "it started. Repeat it with those."
        )
    if not session.closed:
        session.close()
    session.flush()


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
