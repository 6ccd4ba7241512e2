"""Papers, their experiments, and an experiment's result: a table, checks and a figure.

An experiment is a name, a title, a source and a function. Its data are public: it makes them from a seed, or reads them
from a folder. So its results are not private.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tacita import _validate

Row = Mapping[str, Any]
Progress = Callable[[float, str], None]  # the share that is done, in [0, 1], and the current task

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


def span(values: Iterable[float]) -> str:
    """Return the least and the most of some values, to three digits.

    Example:
        >>> span([0.4321, 0.1, 0.2]), span([0.5])
        ('0.1 to 0.432', '0.5')
    """
    found = list(values)
    low, high = f"{min(found):.3g}", f"{max(found):.3g}"
    return low if low == high else f"{low} to {high}"


def silent(share: float, what: str) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Check:
    """A claim about an experiment's results.

    Attributes:
        says: The claim, one sentence.
        held: Whether the results support it.
        undecided: Whether the results neither support nor contradict it; then it is not held.
        found: The numbers that decided it, with their spread where there are several runs; empty if ``says`` has them.
    """

    says: str
    held: bool
    undecided: bool = False
    found: str = ""

    @property
    def verdict(self) -> str:
        """The verdict as a word: ``holds``, ``depends`` if it is undecided, or ``FAILS``."""
        return "holds" if self.held else "depends" if self.undecided else "FAILS"

    @property
    def words(self) -> str:
        """The claim, and the numbers that decided it, in one sentence."""
        return sentence(f"{self.says}: {self.found}" if self.found else self.says)


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
            takes seconds, with tolerances of its own. The same seed gives the same results. A string
            ``"module:function"`` names a function in a module of this package, which is imported when it is run.
        reads_data: Whether ``run`` takes a folder of public data as a fourth argument, ``None`` for a small built-in
            stand-in.
        resumes: Whether ``run`` takes a :class:`Kept` as its last argument, and keeps the result of each single run.
    """

    name: str
    title: str
    source: str
    run: Callable[..., Result] | str
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
        if self.resumes:
            from tacita_reproductions.kept import Kept  # needs torch, which the list of experiments does not

            more.append(Kept(kept))
        return self._function()(full, seed, progress, *more)

    def _function(self) -> Callable[..., Result]:
        """Return the function behind ``run``."""
        if not isinstance(self.run, str):
            return self.run
        module, _, name = self.run.partition(":")
        return getattr(import_module(f"tacita_reproductions.{module}"), name)


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper, its experiments, and what of it is not reproduced.

    Attributes:
        name: The name for ``tacita reproduce NAME --report``, in lower case, with hyphens.
        title: The paper's title.
        experiments: Its experiments, in the order in which they are listed.
        not_reproduced: What the experiments do not show of the paper, and why: a sentence or two each.
    """

    name: str
    title: str
    experiments: tuple[Experiment, ...]
    not_reproduced: tuple[str, ...] = ()
