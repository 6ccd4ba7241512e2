"""A run on a table in its folder: begun or resumed, held to its settings and data, left without private files."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tacita._files import replace_durably
from tacita.errors import ResumeError
from tacita.random import Randomness
from tacita.runs.folder import RunFolder
from tacita.runs.run_facts import data_fingerprint, run_id
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.sealed_run import STATEMENT, TEXT
from tacita.tables.models import check_model
from tacita.tables.plan import TablePlan
from tacita.tables.settings import CONFIG, TableSettings, bound_settings, read_text
from tacita.tables.source import (
    TableSource,
    check_additive,
    declared_schema,
    open_source,
    private_rows,
    read_test,
    unit_in_words,
)
from tacita.tables.table_task import Say, TableTask


@dataclass(frozen=True)
class TableRun:
    """A finished run.

    Attributes:
        folder: The run's folder.
        statement: The privacy statement, in words.
        fields: The privacy statement, as JSON values.
    """

    folder: Path
    statement: str
    fields: dict[str, Any]


def run_in_folder(
    settings: TableSettings,
    source: TableSource,
    plan: TablePlan,
    work: Callable[[TableTask], None],
    *,
    say: Say,
    progress: bool,
    randomness: Randomness | None,
) -> TableRun:
    """Begin the run of ``settings`` in its folder, or resume it; do ``work``; leave nothing private behind.

    Raises:
        ResumeError: The folder holds a finished run, or one with other settings or data.
    """
    if randomness is None and settings.seed is not None:
        randomness = Randomness.insecure(settings.seed)
    run = RunLifecycle.start(
        RunFolder(settings.output), randomness, argument="output", check=lambda run: _check_settings(run, settings)
    )
    folder = run.folder
    assert folder is not None
    relation, unit = settings.neighboring_relation, unit_in_words(source.schema)
    with run.ledger(neighboring_relation=relation, privacy_unit=unit) as ledger:
        if run.sealed:  # a killed process had written everything, and only its private files are left
            run.sealed_run()
        else:
            bind_to_input(run, settings, source)
            run.record(settings.listed(unit))
            key, name = settings.fingerprint_key, run_id(run.randomness)
            fingerprint = None if key is None else data_fingerprint(key, name, settings.data)
            task = TableTask(settings, source, plan, folder, ledger, run.randomness, say, progress, fingerprint)
            work(task)
    run.finish()
    words = (folder.path / TEXT).read_bytes().decode()
    return TableRun(folder.path, words, json.loads((folder.path / STATEMENT).read_bytes()))


def _check_settings(run: RunLifecycle, settings: TableSettings) -> None:
    """Hold the settings against those of a resumed run, and write them down."""
    assert run.folder is not None
    config = run.folder.path / CONFIG
    before = None
    if config.exists():  # a kill between the key and this file leaves none
        before = TableSettings.from_toml(read_text("config", config))
        if _comparable(before) != _comparable(settings):
            raise ResumeError(
                f"output {run.folder.path.name!r} holds an unfinished run with other settings: repeat those, or "
                "choose another folder."
            )
    if before is None or (before.lr != settings.lr and not run.sealed):
        replace_durably(config, settings.to_toml().encode())


def bind_to_input(run: RunLifecycle, settings: TableSettings, source: TableSource) -> None:
    """Hold the data and the schema against those that the run started with.

    Raises:
        ResumeError: The data or the schema are others.
    """
    schema = json.dumps(source.schema.to_dict(), sort_keys=True, default=str).encode()
    files, names = [settings.data], "data or schema"
    if settings.sweep is not None and settings.test_file is not None:  # the test file ranks the runs of a sweep
        files.append(settings.test_file)
        names += " or test_file"
    with private_rows("reading the table"):
        run.bind(chain([schema], *map(_pieces, files)), names)


def _pieces(path: str) -> Iterator[bytes]:
    """Yield the bytes of a file, then an empty piece, which marks where the next file begins."""
    with open(path, "rb") as file:
        while piece := file.read(2**20):
            yield piece
    yield b""


def _comparable(settings: TableSettings) -> dict[str, Any]:
    return {name: value for name, value in bound_settings(settings).items() if name != "output"}


def train_table(
    settings: TableSettings,
    *,
    say: Say = lambda words: None,
    progress: bool = False,
    randomness: Randomness | None = None,
) -> TableRun:
    """Train on a table so that everything together is (epsilon, delta)-differentially private.

    The sessions are registered together; then what is bought is written down; then the training starts. A run that was
    killed at any instant goes on when this is called again with the same settings and data.

    Args:
        settings: The settings of the run; all of them are public.
        say: Called with a line of public words at every stage.
        progress: Whether to show a progress bar on the error stream.
        randomness: Only tests hand it in; the statement then says that the run is not private.

    Raises:
        ValueError: A setting is wrong; the message names it and the way out.
        DataStructureError: The file's structure is not the declared one. What rows hold never raises.
        TacitaError: What was bought (with noise) about the rows shows that there is nothing to train on.
        ResumeError: The folder holds a finished run, or one with other settings or data.
    """
    if settings.sweep is not None:
        raise ValueError("sweep is for tacita.tables.sweep_table, which chooses among runs: leave it out here.")
    check_model(settings.model)
    source = open_source(settings, declared_schema(settings))
    check_additive(settings, source)
    plan = TablePlan.of(settings, source)
    test = None if settings.test_file is None else read_test(settings.test_file, source)
    return run_in_folder(
        settings, source, plan, lambda task: task.go(test), say=say, progress=progress, randomness=randomness
    )
