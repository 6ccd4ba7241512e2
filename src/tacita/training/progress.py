"""Progress of a run on the error stream: steps, their epsilon, time left. No value shown depends on the rows.

In a log or a pipe there is a plain line for every tenth of the queries instead of the bar.
"""

import math
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from tacita.ledger import Ledger

ACCOUNTING_SHARE = 0.05  # the largest share of the time that goes into computing the epsilon shown


class Progress:
    """A progress bar for a run. It computes epsilon only so often that this takes at most 5 % of the time.

    Where the console is no terminal, no bar can be drawn: a line says how many queries are made whenever another tenth
    of them is, and nothing else but the note.

    The epsilon shown is that of the queries made, and grows with them. The epsilon *spent* by the ledger may be larger,
    because it counts the queries that a killed process had reserved. The guarantee is that of the plan.

    Args:
        ledger: Counts the queries made.
        delta: The delta at which epsilon is shown.
        total: Number of planned queries.
        console: Where the bar is shown; by default the error stream.

    Attributes:
        note: A few words that a caller may change while the run goes on, such as a score on public data.
    """

    def __init__(self, ledger: Ledger, *, delta: float, total: int, console: Console | None = None) -> None:
        self._ledger, self._delta, self._total = ledger, delta, total
        self._console = console or Console(stderr=True)
        self._plain = not (self._console.is_terminal or self._console.is_jupyter)
        self._tenths = 0  # of the queries that the last plain line told
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[made]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            disable=self._plain,
        )
        self._task = self._bar.add_task("training", total=total, made="", note="")
        self._next = 0.0
        self.note = ""

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._plain:
            self._show_made()
        self._bar.stop()

    def show(self, made: int) -> None:
        """Show that ``made`` queries are made."""
        if self._plain:
            self._write_line(made)
            return
        self._bar.update(self._task, completed=made, note=self.note)
        if time.monotonic() >= self._next:
            start = time.monotonic()
            self._show_made()
            took = time.monotonic() - start
            self._next = time.monotonic() + took / ACCOUNTING_SHARE + 0.5

    def _write_line(self, made: int) -> None:
        tenths = 10 * made // self._total
        if tenths > self._tenths:
            self._tenths = tenths
            words = f"training: {made} of {self._total} queries made"
            print(f"{words}; {self.note}" if self.note else words, file=self._console.file, flush=True)

    def _show_made(self) -> None:
        made = self._ledger.made_epsilon(self._delta)
        self._bar.update(self._task, made=f"epsilon {made:.3g} so far" if math.isfinite(made) else "not private")
