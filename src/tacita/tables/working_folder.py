"""The private working folder of a selection: the number of runs done, and the best run so far.

Nothing in it may be shared. Losing runs leave nothing in it: a run is kept in memory, and its result is written only if
it is the best so far. The folder has mode 0700, and is removed with the other private files of the run.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from tacita._files import remove_durably, replace_durably
from tacita.errors import ResumeError
from tacita.runs.sealed_run import owned

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
            data = safetensors.torch.save(owned(self.best.weights))
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
