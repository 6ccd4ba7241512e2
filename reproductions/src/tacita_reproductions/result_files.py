"""The files of an experiment's result: a record as JSON, a table as text, the figure and the page."""

import json
import math
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tacita_reproductions.result_page import ResultOnPage, result_page
from tacita_reproductions.runner import Experiment, Paper, Result, sentence

DPI = 200
PACKAGES = ("tacita", "torch", "numpy")
FOLDER, STAND_IN, OWN = "public data from a folder", "synthetic, in place of public data", "made by the experiment"


def as_record(
    experiment: Experiment,
    result: Result,
    *,
    full: bool,
    seed: int,
    data: bool = False,
    paper: Paper | None = None,
) -> dict[str, Any]:
    """Return everything but the figure as plain data for JSON; NaN and infinity become strings.

    Args:
        experiment: The experiment.
        result: Its result.
        full, seed: With which it was run.
        data: Whether it was given a folder of public data.
        paper: The paper that it belongs to.
    """
    return {
        "name": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "paper": None if paper is None else {"name": paper.name, "title": paper.title},
        "not_reproduced": [] if paper is None else list(paper.not_reproduced),
        "full": full,
        "seed": seed,
        "data": FOLDER if data else STAND_IN if experiment.reads_data else OWN,
        "versions": {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "rows": [{name: _plain(value) for name, value in row.items()} for row in result.rows],
        "checks": [
            {"says": sentence(check.says), "found": check.found, "held": bool(check.held), "verdict": check.verdict}
            for check in result.checks
        ],
        "notes": [sentence(note) for note in result.notes],
    }


def as_json(record: Mapping[str, Any]) -> str:
    """Return an indented JSON document that ends with a newline."""
    return json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def write(folder: Path, record: Mapping[str, Any], text: str, draw: Callable[[], Any] | None) -> list[Path]:
    """Write ``NAME.json``, ``NAME.txt``, the figure ``NAME.png`` if there is one, and the page ``NAME.html``.

    Returns:
        Their paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = record["name"]
    paths = [folder / f"{name}.json", folder / f"{name}.txt"]
    paths[0].write_text(as_json(record), encoding="utf-8", newline="\n")
    paths[1].write_text(text, encoding="utf-8", newline="\n")
    figure = folder / f"{name}.png"
    if draw is not None:
        paths.append(figure)
        draw().savefig(figure, dpi=DPI)
    paths.append(folder / f"{name}.html")
    paths[-1].write_text(result_page([read(folder, name)]), encoding="utf-8", newline="\n")
    return paths


def read(folder: Path, name: str) -> ResultOnPage:
    """Return the result of an experiment, and its figure if there is one, from a folder that it was written to.

    Raises:
        ValueError: The file is there, but is no result of the experiment.
        FileNotFoundError: It is not there.
    """
    file, figure = folder / f"{name}.json", folder / f"{name}.png"
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        record = None
    if record is None or not _is_record(record, name):
        raise ValueError(
            f"output has a file {str(file)!r} that is no result of {name}: run tacita reproduce {name} again."
        )
    return ResultOnPage(record, figure.read_bytes() if figure.exists() else None)


def _is_record(record: Any, name: str) -> bool:
    """Return whether a file's content has the fields of :func:`as_record`, each of its kind."""
    kinds = {"title": str, "source": str, "rows": list, "checks": list, "notes": list, "not_reproduced": list}
    if not isinstance(record, dict) or record.get("name") != name:
        return False
    if not all(isinstance(record.get(field), kind) for field, kind in kinds.items()):
        return False
    rows, checks = record["rows"], record["checks"]
    if not all(isinstance(entry, dict) for entry in [*rows, *checks, record.get("versions")]):
        return False
    return all(list(row) == list(rows[0]) for row in rows) and all(
        isinstance(check.get(field), str) for check in checks for field in ("says", "found", "verdict")
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # the source is used without having been installed
        return "unknown"


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else str(number)
