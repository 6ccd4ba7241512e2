"""What an experiment is, and the one runner: a table, the checks it must pass, a figure, three files.

Place: every other room -> [experiments.runner] -> cli.reproduce. An experiment is data: a name, a title, a source and a
function. It makes its own data from a seed, so nothing it shows is private.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from tacita import _validate

Row = Mapping[str, Any]
Progress = Callable[[float, str], None]  # share done in [0, 1], and what is being done

DPI = 200
SEED = 0  # of every experiment, unless asked otherwise: public data, so reproducing beats surprising


def silent(share: float, what: str) -> None:
    """A progress that shows nothing."""


@dataclass(frozen=True)
class Check:
    """One sentence that the figures must bear out.

    Attributes:
        says: The sentence.
        held: Whether they did.
    """

    says: str
    held: bool


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an experiment found.

    Attributes:
        rows: One mapping a line of the table, column name -> number, word or None; all with the same columns.
        checks: What the figures must bear out.
        notes: What a reader of the table must know: the setting, the units, what is a median.
        draw: Draws the figure (a ``matplotlib`` figure), or None. Only this needs the extra ``[report]``.
    """

    rows: Sequence[Row]
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()
    draw: Callable[[], Any] | None = None

    @property
    def holds(self) -> bool:
        """Whether every check held."""
        return all(check.held for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment of a paper, as data.

    Attributes:
        name: For ``tacita reproduce NAME``: the paper and the experiment, lower case, with hyphens.
        title: What it shows, in one line.
        source: Paper and place, or where it was measured first.
        run: ``run(full, seed, progress) -> Result``. ``full`` is the published size; without it the same experiment at
            a size that takes seconds, with its own tolerances. The same seed gives the same figures.
    """

    name: str
    title: str
    source: str
    run: Callable[[bool, int, Progress], Result]

    def __call__(self, *, full: bool = False, seed: int = SEED, progress: Progress = silent) -> Result:
        """Run it."""
        return self.run(full, _validate.count("seed", seed, at_least=0), progress)


def as_record(experiment: Experiment, result: Result, *, full: bool, seed: int) -> dict[str, Any]:
    """Everything but the figure, ready for JSON: no NaN, no infinity (they become words)."""
    return {
        "name": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "full": full,
        "seed": seed,
        "rows": [{name: _plain(value) for name, value in row.items()} for row in result.rows],
        "checks": [{"says": check.says, "held": bool(check.held)} for check in result.checks],
        "notes": list(result.notes),
    }


def as_json(record: Mapping[str, Any]) -> str:
    """One JSON document, readable, with a newline at its end."""
    return json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def as_table(result: Result) -> Table:
    """The rows as a table for a terminal, plain lines and numbers to four digits."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = list(result.rows[0]) if result.rows else []
    for name in columns:
        numbers = all(isinstance(row[name], int | float) or row[name] is None for row in result.rows)
        shown.add_column(name, justify="right" if numbers else "left")
    for row in result.rows:
        shown.add_row(*(in_words(row[name]) for name in columns))
    return shown


def in_words(value: Any) -> str:
    """A cell as a reader wants it: four digits, no float noise, a dash for nothing."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "yes" if value is True else "no" if value is False else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def write(folder: Path, experiment: Experiment, result: Result, record: Mapping[str, Any], text: str) -> list[Path]:
    """Write ``NAME.json``, ``NAME.txt`` and, if there is a figure, ``NAME.png``; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{experiment.name}.json", folder / f"{experiment.name}.txt"]
    paths[0].write_text(as_json(record))
    paths[1].write_text(text)
    if result.draw is not None:
        paths.append(folder / f"{experiment.name}.png")
        result.draw().savefig(paths[-1], dpi=DPI)
    return paths


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else str(number)
