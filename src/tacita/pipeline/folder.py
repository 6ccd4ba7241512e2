"""The folder of a run: begun, gone on with, finished; and held to the settings and data that it was begun with.

Place: settings, source -> [pipeline.folder] -> train. What binds a run to its data is a keyed tag in ``private/``: an
open hash would let anybody test a guessed table.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from tacita._files import remove_durably, replace_durably
from tacita.errors import ResumeError
from tacita.pipeline.settings import TableSettings, read_text
from tacita.pipeline.source import Source, private_rows
from tacita.random import Randomness
from tacita.training.folder import STATEMENT, RunFolder

__all__ = ["CONFIG", "STATEMENT", "bind", "bound_settings", "finish", "start", "tidying"]

CONFIG = "config.toml"
_INPUT = "input.json"


def start(folder: RunFolder, settings: TableSettings, randomness: Randomness | None) -> Randomness:
    """Begin a run with ``randomness`` (default: the system's), or go on with the one that was stopped here.

    Raises:
        ResumeError: The folder holds a finished run, or one with other settings.
    """
    try:
        with folder.starting():
            return _started(folder, settings, randomness)
    except (NotADirectoryError, FileExistsError):
        raise ValueError(f"output must be a folder, got {str(folder.path)!r}: a part of it is a file.") from None


def _started(folder: RunFolder, settings: TableSettings, randomness: Randomness | None) -> Randomness:
    config = folder.path / CONFIG
    was = None
    if folder.unfinished or folder.tidying:
        if config.exists():
            was = TableSettings.from_toml(read_text("config", config))
        if was is not None and _comparable(was) != _comparable(settings):
            raise ResumeError(
                f"output {folder.path.name!r} holds an unfinished run with other settings: repeat those, or choose "
                "another folder."
            )
        found = Randomness.system() if folder.tidying else Randomness.load(folder.key)
    else:
        _begin(folder)
        found = randomness or Randomness.system()
        found.save(folder.key)
    if was is None or (was.lr != settings.lr and not folder.tidying):
        replace_durably(config, settings.to_toml().encode())
    return found


def tidying(folder: RunFolder) -> bool:
    """Whether all is written, and only what is private has to go: the statement's JSON is the last to be written."""
    return folder.tidying


def bind(folder: RunFolder, settings: TableSettings, source: Source, randomness: Randomness) -> None:
    """Hold the file and the schema against those that the run started with.

    Raises:
        ResumeError: They are others.
    """
    path = folder.private / _INPUT
    declared = json.dumps(source.schema.to_dict(), sort_keys=True, default=str).encode()
    with private_rows("reading the table"):
        parts = [declared, Path(settings.data).read_bytes()]
        if settings.sweep is not None and settings.test_file is not None:  # it ranks the runs
            parts.append(Path(settings.test_file).read_bytes())
        tag = randomness.session_key("input").tag("input", parts=parts)
    if not path.exists():
        replace_durably(path, json.dumps({"tag": tag}).encode(), mode=0o600)
    elif _tag(path) != tag:
        raise ResumeError(
            f"data or schema{_and_test(settings)} are not those that the run in output {folder.path.name!r} "
            "started with: restore them, or choose another folder."
        )


def _and_test(settings: TableSettings) -> str:
    return "" if settings.sweep is None or settings.test_file is None else " or test_file"


def _tag(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())["tag"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ResumeError(f"{path.name} cannot be read as one of this version.") from None


def finish(folder: RunFolder) -> None:
    """Remove what is private, the key last; the working folder of a selection first. And half-written files."""
    for working in folder.private.glob("*/"):
        shutil.rmtree(working)
    for leftover in folder.path.glob(".*.tmp"):
        remove_durably(leftover)
    remove_durably(folder.private / _INPUT)
    folder.finish()


def _begin(folder: RunFolder) -> None:
    try:
        folder.start()
    except ResumeError:
        raise ResumeError(
            f"output must be a new or an empty folder, got {str(folder.path)!r}, which holds something and no "
            "unfinished run: choose another one, or remove it."
        ) from None


def _comparable(settings: TableSettings) -> dict[str, Any]:
    return {name: value for name, value in bound_settings(settings).items() if name != "output"}


def bound_settings(settings: TableSettings) -> dict[str, Any]:
    """What may not change when a run goes on: all but the step size, with another of which no query is redone.

    With a sweep the step size as well: it is part of what the runs are compared by.
    """
    return {name: value for name, value in settings.to_dict().items() if name != "lr" or settings.sweep is not None}
