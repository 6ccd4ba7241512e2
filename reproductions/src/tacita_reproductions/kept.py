"""Results of single runs, kept in a file, so that an experiment that was stopped goes on where it was."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacita.runs.run_facts import tacita_version


def data_hash(tensors: Iterable[Tensor], texts: Iterable[str] = ()) -> str:
    """Return 16 hexadecimal digits of a SHA-256 hash of all dtypes, shapes, values and texts, in their order.

    It belongs into the key of a run: another file with the same number of records is other data.
    """
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    for text in texts:
        found.update(f"text {len(text)}; {text}".encode())
    return found.hexdigest()[:16]


class Kept:
    """Results by key: a JSON line each, appended and flushed as soon as it is there.

    A key names everything that the result follows from, with the :func:`data_hash` of its records; the versions of
    tacita and torch are added to it here. A line that does not parse (the last one, after a crash) is left out, and its
    run is made again.

    Args:
        path: The file; ``None`` keeps nothing.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._known: dict[str, Any] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    one = json.loads(line)
                    self._known[one["key"]] = one["value"]
                except (ValueError, KeyError, TypeError):
                    continue

    def result(self, key: str, make: Callable[[], Any]) -> Any:
        """Return the result that is kept under ``key``, or make it and keep it. It is plain data for JSON."""
        whole = f"tacita {tacita_version()}, torch {torch.__version__}: {key}"
        if whole not in self._known:
            self._known[whole] = make()
            if self.path is not None:
                self._append({"key": whole, "value": self._known[whole]})
        return self._known[whole]

    def _append(self, line: dict[str, Any]) -> None:
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")  # after a torn line
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
