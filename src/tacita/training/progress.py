"""Progress of a run, on the error stream: steps, epsilon spent, time left. No value that depends on the rows.

Place: accounting -> [training.progress].
"""

import math
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from tacita.accounting import Ledger

ACCOUNTING_SHARE = 0.05  # at most so much of the time goes into showing what was spent


class Progress:
    """A bar for a run. What was spent is worked out now and then, so that it takes at most 5 % of the time.

    Args:
        ledger: Says what was spent.
        delta: For the epsilon shown.
        total: Planned queries.
        console: Where it is shown; by default the error stream.

    Attributes:
        note: A word that a caller may change while the run goes on (a score on public data, say).
    """

    def __init__(self, ledger: Ledger, *, delta: float, total: int, console: Console | None = None) -> None:
        self._ledger, self._delta = ledger, delta
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[spent]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console or Console(stderr=True),
        )
        self._task = self._bar.add_task("training", total=total, spent="", note="")
        self._next = 0.0
        self.note = ""

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._show_spent()
        self._bar.stop()

    def show(self, made: int) -> None:
        """``made`` queries are made."""
        self._bar.update(self._task, completed=made, note=self.note)
        if time.monotonic() >= self._next:
            start = time.monotonic()
            self._show_spent()
            took = time.monotonic() - start
            self._next = time.monotonic() + took / ACCOUNTING_SHARE + 0.5

    def _show_spent(self) -> None:
        spent = self._ledger.epsilon_spent(self._delta)
        self._bar.update(self._task, spent=f"epsilon {spent:.3g} spent" if math.isfinite(spent) else "not private")
