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
from tacita.runs.run_lifecycle import RunLifecycle
from tacita.runs.sealed_run import STATEMENT, TEXT
from tacita.tables.plan import TablePlan
from tacita.tables.run_list import record
from tacita.tables.settings import CONFIG, TableSettings, bound_settings, read_text
from tacita.tables.source import TableSource, private_rows, unit_in_words
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
            record(settings, run.randomness, unit)
            work(TableTask(settings, source, plan, folder, ledger, run.randomness, say, progress))
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
