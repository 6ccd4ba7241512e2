"""A public list of the runs on a data set, beside their folders, so that none is reported as if it were the only one.

Runs belong together if they have one ``dataset_name``, by default that of their file. A line holds the name of the
data, the name of the folder, epsilon and delta, the neighbouring relation, the privacy unit, what the run does outside
its guarantee, a tag that tells one run from another, and the run's lineage: a random name for each process that had its
key. A process that takes a run up adds a line, which stands for those of its lineage before it; so two copies of a run
that both go on count as two, and a run that was killed and resumed counts as one. All of it is public. Lines are added
and never removed. The list proves nothing against somebody who edits it.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from tacita._files import BINARY, flush
from tacita._lock import HeldLock
from tacita.ledger.run_sections import one_line
from tacita.random import Randomness
from tacita.runs.run_facts import run_id

NAME = "tacita-runs.jsonl"
MOST_NAMES = 5  # of other runs that are named
LARGEST = 1e200  # epsilon or delta of a line: sums of these do not overflow
_SAID = {"id", "epsilon", "delta", "neighboring_relation", "privacy_unit", "secret_noise", "exact_score"}


def check_name(dataset_name: str | None, folder: object) -> None:
    """Raise ``ValueError`` if ``dataset_name`` is given and cannot be listed beside ``folder``."""
    if dataset_name is None:
        return
    one_line("dataset_name", dataset_name)
    if folder is None:
        raise ValueError("dataset_name must go with folder, beside which the runs on a data set are listed.")


@dataclass(frozen=True)
class ListedRun:
    """A run of any front end as its line says it; ``output`` is its folder, beside which the list lies."""

    dataset_name: str
    output: str
    epsilon: float
    delta: float
    neighboring_relation: str
    privacy_unit: str
    exact_score: bool = False

    def __post_init__(self) -> None:
        check_name(self.dataset_name, self.output)

    def record(self, randomness: Randomness, *, finished: bool = False) -> None:
        """Add the run to the list, as this process has it; once it is sealed, ``finished``."""
        randomness.write_back()  # else the next process would not know of this one
        line = {
            "dataset_name": self.dataset_name,
            "run": Path(self.output).name,
            "id": run_id(randomness),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "neighboring_relation": self.neighboring_relation,
            "privacy_unit": self.privacy_unit,
            "secret_noise": randomness.secure,
            "exact_score": self.exact_score,
            "lineage": [*randomness.lineage],
            "finished": finished,
        }
        _add(self._list, line)

    def stated(self, randomness: Randomness) -> dict[str, Any]:
        """Return what the run's statement says about the list."""
        own = {"id": run_id(randomness), "process": randomness.lineage[-1]}
        found = {"name": self.dataset_name, **own, "list": NAME}
        return {
            **found,
            "other_runs": len(others(Path(self.output), found)),
            "together": together(self._list, found),
        }

    @property
    def _list(self) -> Path:
        return Path(self.output).absolute().parent / NAME


def finish_sealed(folder: Path, stated: Mapping[str, Any]) -> None:
    """Say that a run is finished whose process was killed between its seal and that line."""
    dataset, path = stated.get("dataset"), folder.absolute().parent / NAME
    if not isinstance(dataset, Mapping) or "process" not in dataset or not path.exists():
        return
    for line in _lines(path.read_bytes()):
        if line.get("id") == dataset.get("id") and _lineage(line)[-1:] == [dataset["process"]]:
            _add(path, {**line, "finished": True})
            return


def _add(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line to the list that it does not hold yet."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | BINARY, 0o644)
    with os.fdopen(handle, "rb+", buffering=0) as file:
        lock = HeldLock(path, wait=True, handle=file.fileno())
        try:
            before = file.read()
            if line not in _lines(before):
                torn = b"\n" if before and not before.endswith(b"\n") else b""
                file.write(torn + json.dumps(line).encode() + b"\n")
                flush(file.fileno())
        finally:
            lock.release()


def others(folder: Path, dataset: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the folders of the other runs on the same data set as the list beside ``folder`` names them.

    A line that cannot be read counts as one, and so does a copy that went on.
    """
    known = "process" if "process" in dataset else "id"
    listed = _on_same_data(folder.absolute().parent / NAME, dataset)
    return tuple(str(one.get("run", "?")) for one in listed if one.get(known) != dataset[known])


def together(path: Path, dataset: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all runs in the list on the same data set guarantee together, by basic composition.

    Guarantee: if the list is complete and the budgets did not depend on results, all releases of these runs together
    are (``epsilon``, ``delta``)-private under the relation and unit that they share. Where that does not follow,
    ``epsilon`` and ``delta`` are ``None``, and ``why`` says what is in the way: different relations or units (their
    epsilons do not add up), a line that cannot be read, noise from a seed, or an exact score of private rows.
    """
    runs = _on_same_data(path, dataset)
    if why := _in_the_way(runs):
        return {"epsilon": None, "delta": None, "why": why}
    total = {name: _sum_from_above(one[name] for one in runs) for name in ("epsilon", "delta")}
    if total["delta"] >= 1:
        return {"epsilon": None, "delta": None, "why": "the runs' deltas add up to 1 or more, which guarantees nothing"}
    return total


def _sum_from_above(values: Iterable[float]) -> float:
    """Return the least number that is not below the sum."""
    exact = sum(map(Fraction, values))
    found = float(exact)
    return found if found >= exact else math.nextafter(found, math.inf)


def _in_the_way(runs: list[dict[str, Any]]) -> str:
    """Say why the runs' epsilons may not be added up; empty if they may."""
    if not runs or not all(set(one) >= _SAID and _positive(one["epsilon"]) and _positive(one["delta"]) for one in runs):
        return "a line of the list cannot be read, or lacks what a total needs"
    if len({(one["neighboring_relation"], one["privacy_unit"]) for one in runs}) > 1:
        return "the runs differ in neighbouring relation or privacy unit, so that their epsilons do not add up"
    if not all(one["secret_noise"] is True for one in runs):
        return "the noise of a run came from a seed, so that the run is not private"
    if len({one.get("id") for one in runs}) < len(runs):
        return "a copy of a run went on by itself: they share what was drawn before, and what both cost is not proved"
    if not all(one["exact_score"] is False for one in runs):
        return "a run published an exact score of held-out rows, outside its guarantee"
    return ""


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LARGEST


def _on_same_data(path: Path, dataset: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the last line of each run on the same data set, of a copy that went on, too; and those unreadable."""
    try:
        lines = _lines(path.read_bytes())
    except OSError:
        return []
    found = [one for one in lines if one.get("dataset_name", dataset["name"]) == dataset["name"]]
    taken_up = {name for one in found for name in _lineage(one)[:-1]}
    last, unreadable = {}, []
    for one in found:
        if not (lineage := _lineage(one)):
            unreadable.append(one)
        elif one.get("finished") is True or lineage[-1] not in taken_up:
            last[lineage[-1]] = {**one, "process": lineage[-1]}
    return [*last.values(), *unreadable]


def _lineage(line: Mapping[str, Any]) -> list[str]:
    """Return the lineage of a line; empty if it has none that can be read."""
    found = line.get("lineage")
    return found if isinstance(found, list) and all(isinstance(name, str) for name in found) else []


def words(dataset: Mapping[str, Any], other_runs: int, names: Sequence[str] = ()) -> str:
    """Say what the reader of a statement must know if there are other runs, and which, if they are at hand."""
    plural = "run is" if other_runs == 1 else "runs are"
    which = f": {', '.join(names[:MOST_NAMES])}{', ...' * (len(names) > MOST_NAMES)}" if names else ""
    return (
        f"{other_runs} other {plural} recorded on the data set {dataset['name']!r} (in {dataset['list']}{which}): what "
        "they cost comes on top of this one's epsilon and delta, and if this one was chosen among them by its results, "
        "the price of that choice is in none of these numbers."
    )


def _lines(data: bytes) -> list[dict[str, Any]]:
    found = []
    for text in data.splitlines():
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        found.append(value if isinstance(value, dict) else {})
    return found
