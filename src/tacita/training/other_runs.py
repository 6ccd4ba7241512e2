"""What the statement of a ``fit`` says of other runs on the same data: those of a list, or those of its process."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from tacita.runs.run_facts import run_id
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.run_list import ListedRun

_RUNS: dict[int, set[str]] = {}  # of this process which no list has, by the address of their data


def _other_runs(dataset: Any, run: RunLifecycle) -> int:
    """Count the other runs of this process on the same data, as of a cell that is called again with other settings."""
    while isinstance(dataset, tuple | list | Mapping) and dataset:
        dataset = next(iter(dataset.values() if isinstance(dataset, Mapping) else dataset))
    if id(dataset) not in _RUNS:
        try:
            weakref.finalize(dataset, _RUNS.pop, id(dataset), None)  # another object may have its address then
        except TypeError:  # a number, say, which does not live as long as the data
            return 0
    _RUNS.setdefault(id(dataset), set()).add(run_id(run.randomness))
    return len(_RUNS[id(dataset)]) - 1


def with_other_runs(
    fields: Callable[[], Mapping[str, Any]] | None, run: RunLifecycle, data: Any, dataset_name: str | None, *terms: Any
) -> Callable[[], Mapping[str, Any]] | None:
    """List the run, if its data have a name, and return what its statement will say of other runs, too.

    Without a name, they are those of this process on the same ``data``, ``None`` where the caller's ledger counts them.
    """
    if run.sealed:
        return fields
    if dataset_name is not None:
        listed = ListedRun(dataset_name, *terms)
        run.record(listed)
        return lambda: {**({} if fields is None else fields()), "dataset": listed.stated(run.randomness)}
    if not (others := _other_runs(data, run)):
        return fields
    return lambda: {**({} if fields is None else fields()), "dataset": {"other_runs": others}}
