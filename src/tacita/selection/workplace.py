"""The private working folder of a selection: how far it is, and the best run so far. Nothing of it may be shared.

Place: the ground of selection. Losers leave nothing in it: a run lives in memory, and what it found is written only if
it is the best so far. The folder has mode 0700 and is removed at the end, with the files that are ours and no others.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from tacita._files import remove_durably, replace_durably
from tacita.errors import ResumeError

KEY = "selection-key.json"  # of a selection with a folder of its own: its name marks the folder as ours
_STATE = "runs.json"
_OURS = re.compile(r"selection-key\.json|runs\.json|best-\d+\.safetensors")
FORMAT = "tacita selection 1"


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one run found. Private, until it is the winner.

    Attributes:
        point: Number of its point in the grid.
        score: Larger is better; one that is not a number counts as minus infinity.
        facts: More JSON values about it.
        weights: The parameters and buffers of its model.
    """

    point: int
    score: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def rank(self) -> float:
        """What runs are compared by."""
        return -math.inf if math.isnan(self.score) else self.score

    def words(self) -> dict[str, Any]:
        """All but the weights, as JSON values."""
        return {"point": self.point, "score": repr(float(self.score)), "facts": dict(self.facts)}


class Workplace:
    """Runs made and the best of them, on disk or in memory.

    Args:
        path: The folder, or ``None``: in memory.

    Raises:
        ValueError: The folder holds something that is not ours.
        ResumeError: What is ours in it is damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.done = 0  # runs made, with consequence or without
        self.best: Found | None = None
        self._kept = -1  # the run that found it
        self.begun = False  # whether :meth:`begin` was called, by whatever process
        if path is not None:
            path.mkdir(mode=0o700, exist_ok=True)
            _check_ours(path)
            os.chmod(path, 0o700)
            self._read()

    def begin(self) -> None:
        """Write down that from here on a session of some ledger belongs to this folder."""
        if not self.begun:
            self._write_state()
        self.begun = True

    def keep(self, found: Found | None) -> None:
        """One run more is made; ``found`` if it may win, ``None`` if it was made for the time it takes."""
        wins = found is not None and (self.best is None or found.rank > self.best.rank)
        if wins:
            self.best, self._kept = found, self.done
            self._write_weights()
        self.done += 1
        self._write_state()
        if wins:
            self._remove_others()

    def destroy(self) -> None:
        """Remove our files, the key last, and the folder if nothing else is in it.

        That the bytes are gone is not claimed.
        """
        if self.path is not None and self.path.exists():
            remove_durably(self.path / _STATE)
            for path in sorted(filter(_is_ours, self.path.iterdir()), key=lambda path: KEY in path.name):
                remove_durably(path)
            with suppress(OSError):  # somebody put a file of theirs into it
                self.path.rmdir()

    def _weights(self, run: int) -> Path:
        assert self.path is not None
        return self.path / f"best-{run}.safetensors"

    def _write_weights(self) -> None:
        if self.path is not None and self.best is not None:
            data = safetensors.torch.save(_owned(self.best.weights))
            replace_durably(self._weights(self._kept), data, mode=0o600)

    def _write_state(self) -> None:
        if self.path is not None:
            best = None if self.best is None else {**self.best.words(), "run": self._kept}
            state = {"format": FORMAT, "done": self.done, "best": best}
            replace_durably(self.path / _STATE, json.dumps(state).encode(), mode=0o600)

    def _remove_others(self) -> None:
        """Remove the weights of runs that are no longer the best."""
        if self.path is not None:
            for path in self.path.glob("best-*.safetensors"):
                if path != self._weights(self._kept):
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
                self._kept = int(best["run"])
                weights = safetensors.torch.load_file(self._weights(self._kept))
                self.best = Found(
                    point=int(best["point"]), score=float(best["score"]), facts=dict(best["facts"]), weights=weights
                )
        except (OSError, ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError):
            raise ResumeError(f"the working folder {self.path.name!r} of this selection is damaged.") from None


def _is_ours(path: Path) -> bool:
    """Whether we write files of this name, or what an interrupted write of one leaves."""
    name = path.name
    if name.startswith(".") and name.endswith(".tmp"):
        name = name[1:-4]
    return _OURS.fullmatch(name) is not None and path.is_file() and not path.is_symlink()


def _check_ours(folder: Path) -> None:
    if (folder / KEY).exists() or (folder / _STATE).exists():
        return
    if not all(map(_is_ours, folder.iterdir())):
        raise ValueError(
            f"folder must be a new or an empty one, or that of an interrupted selection, got {str(folder)!r}, which "
            "holds something else: choose another one."
        )


def _owned(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies, since safetensors refuses tensors that share memory."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
