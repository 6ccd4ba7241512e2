"""A public list of the runs on a data set, beside their folders, so that none is reported as if it were the only one.

Only runs with a ``dataset_name`` are listed. A line holds the name of the data, the name of the folder, epsilon and
delta, and a tag that tells one run from another; all of it is public. Lines are added and never removed. The list
proves nothing against somebody who edits it.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacita._files import BINARY, flush
from tacita._lock import HeldLock
from tacita.pipeline.settings import TableSettings
from tacita.random import Randomness

NAME = "tacita-runs.jsonl"


def record(settings: TableSettings, randomness: Randomness) -> None:
    """Add this run to the list, unless it is there already because it is resumed."""
    if settings.dataset_name is None:
        return
    line = {
        "dataset_name": settings.dataset_name,
        "run": Path(settings.output).name,
        "id": _id(randomness),
        "epsilon": settings.epsilon,
        "delta": settings.delta,
    }
    path = _path(settings)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | BINARY, 0o644)
    with os.fdopen(handle, "rb+", buffering=0) as file:
        lock = HeldLock(path, wait=True, handle=file.fileno())
        try:
            before = file.read()
            if not any(one.get("id") == line["id"] for one in _lines(before)):
                torn = b"\n" if before and not before.endswith(b"\n") else b""
                file.write(torn + json.dumps(line).encode() + b"\n")
                flush(file.fileno())
        finally:
            lock.release()


def recorded(settings: TableSettings, randomness: Randomness) -> dict[str, Any] | None:
    """Return what the statement says about the list; ``None`` without a ``dataset_name``."""
    if settings.dataset_name is None:
        return None
    found = {"name": settings.dataset_name, "id": _id(randomness), "list": NAME}
    return {**found, "other_runs": others(_path(settings), found)}


def others(path: Path, dataset: Mapping[str, Any]) -> int:
    """Count the other runs on the same data set in the list; a line that cannot be read counts as one."""
    try:
        lines = _lines(path.read_bytes())
    except OSError:
        return 0
    return sum(
        one.get("dataset_name", dataset["name"]) == dataset["name"] and one.get("id") != dataset["id"] for one in lines
    )


def words(dataset: Mapping[str, Any], other_runs: int) -> str:
    """Say what the reader of a statement must know if there are other runs."""
    plural = "run is" if other_runs == 1 else "runs are"
    return (
        f"{other_runs} other {plural} recorded on the data set {dataset['name']!r} (in {dataset['list']}): what they "
        "cost adds up with this one's epsilon and delta, and if this one was chosen among them by its results, the "
        "price of that choice is in none of these numbers."
    )


def _path(settings: TableSettings) -> Path:
    return Path(settings.output).absolute().parent / NAME


def _id(randomness: Randomness) -> str:
    """Return the run's tag: a resumed run keeps it, every other run has another. It reveals nothing of the key."""
    return randomness.session_key("public name of the run").tag("id", parts=[])


def _lines(data: bytes) -> list[dict[str, Any]]:
    found = []
    for text in data.splitlines():
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        found.append(value if isinstance(value, dict) else {})
    return found
