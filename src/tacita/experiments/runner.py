"""Experiments, their results (a table, checks and a figure), and the files that are written for them.

An experiment is a name, a title, a source and a function. Its data are public: it makes them from a seed, or reads them
from a folder. So its results are not private.
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
from tacita.experiments.kept import Kept

Row = Mapping[str, Any]
Progress = Callable[[float, str], None]  # the share that is done, in [0, 1], and the current task

DPI = 200
SEED = 0  # the default; the data are public, so the same results in every run are better than new ones


def needed_files(folder: Path, names: Sequence[str]) -> None:
    """Raise ``ValueError`` unless the folder of ``--data`` has all files of these names."""
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"data must be a folder with {' and '.join(names)}, and {str(folder)!r} lacks {missing[0]}.")


def sentence(text: str) -> str:
    """Return the text with a full stop at its end, unless it ends a sentence already.

    Example:
        >>> sentence("it holds"), sentence("Does it hold?")
        ('it holds.', 'Does it hold?')
    """
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def silent(share: float, what: str) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Check:
    """A claim about an experiment's results.

    Attributes:
        says: The claim, one sentence.
        held: Whether the results support it.
        undecided: Whether the results neither support nor contradict it; then it is not held.
    """

    says: str
    held: bool
    undecided: bool = False

    @property
    def verdict(self) -> str:
        """The verdict as a word: ``holds``, ``depends`` if it is undecided, or ``FAILS``."""
        return "holds" if self.held else "depends" if self.undecided else "FAILS"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The results of an experiment.

    Attributes:
        rows: The lines of the table: mappings from column name to number, word or ``None``, all with the same columns.
        checks: The claims that the results must support.
        notes: Facts that a reader of the table needs: the setting, the units, which numbers are medians.
        draw: Returns the ``matplotlib`` figure; ``None`` if there is none. Only this needs the extra ``[report]``.
    """

    rows: Sequence[Row]
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()
    draw: Callable[[], Any] | None = None

    @property
    def holds(self) -> bool:
        """Whether all checks held."""
        return all(check.held for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment of a paper.

    Attributes:
        name: The name for ``tacita reproduce NAME``: paper and experiment, in lower case, with hyphens.
        title: The experiment's finding, in one line.
        source: The paper and the place in it, or where the experiment was measured first.
        run: ``run(full, seed, progress) -> Result``. With ``full`` it has the published size; without, a size that
            takes seconds, with tolerances of its own. The same seed gives the same results.
        reads_data: Whether ``run`` takes a folder of public data as a fourth argument, ``None`` for a small built-in
            stand-in.
        resumes: Whether ``run`` takes a :class:`Kept` as its last argument, and keeps the result of each single run.
    """

    name: str
    title: str
    source: str
    run: Callable[..., Result]
    reads_data: bool = False
    resumes: bool = False

    def __call__(
        self,
        *,
        full: bool = False,
        seed: int = SEED,
        progress: Progress = silent,
        data: Path | None = None,
        kept: Path | None = None,
    ) -> Result:
        """Run the experiment and return its result; one that resumes takes single runs from the file ``kept``.

        Raises:
            ValueError: ``data`` is given to an experiment that makes its own data, or is no folder.
        """
        _validate.count("seed", seed, at_least=0)
        if data is not None and not self.reads_data:
            raise ValueError(f"data must be left out: {self.name} makes its own data.")
        if data is not None and not Path(data).is_dir():
            raise ValueError(f"data must be a folder, got {str(data)!r}.")
        more: list[Any] = [None if data is None else Path(data)] if self.reads_data else []
        return self.run(full, seed, progress, *more, *([Kept(kept)] if self.resumes else []))


def as_record(experiment: Experiment, result: Result, *, full: bool, seed: int) -> dict[str, Any]:
    """Return everything but the figure as plain data for JSON; NaN and infinity become strings."""
    return {
        "name": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "full": full,
        "seed": seed,
        "rows": [{name: _plain(value) for name, value in row.items()} for row in result.rows],
        "checks": [
            {"says": sentence(check.says), "held": bool(check.held), "verdict": check.verdict}
            for check in result.checks
        ],
        "notes": [sentence(note) for note in result.notes],
    }


def as_json(record: Mapping[str, Any]) -> str:
    """Return an indented JSON document that ends with a newline."""
    return json.dumps(record, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def as_table(result: Result) -> Table:
    """Return the rows as a table for a terminal, with numbers to four digits."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = list(result.rows[0]) if result.rows else []
    for name in columns:
        numbers = all(isinstance(row[name], int | float) or row[name] is None for row in result.rows)
        shown.add_column(name, justify="right" if numbers else "left")
    for row in result.rows:
        shown.add_row(*(in_words(row[name]) for name in columns))
    return shown


def in_words(value: Any) -> str:
    """Return a cell's text: numbers to four digits, yes or no, a dash for ``None``."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "yes" if value is True else "no" if value is False else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def write(folder: Path, experiment: Experiment, result: Result, record: Mapping[str, Any], text: str) -> list[Path]:
    """Write ``NAME.json``, ``NAME.txt`` and, if there is a figure, ``NAME.png``; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{experiment.name}.json", folder / f"{experiment.name}.txt"]
    paths[0].write_text(as_json(record), encoding="utf-8", newline="\n")
    paths[1].write_text(text, encoding="utf-8", newline="\n")
    if result.draw is not None:
        paths.append(folder / f"{experiment.name}.png")
        result.draw().savefig(paths[-1], dpi=DPI)
    return paths


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else str(number)
