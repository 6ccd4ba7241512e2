"""Show on standard error that a command is at work, so that no command is silent for long.

On a terminal it is a bar with a clock. Elsewhere (a log file, a pipe) it is a plain line after five seconds, and then
ever more seldom.
"""

import sys
import threading
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

FIRST, LONGEST = 5.0, 60.0  # seconds before the first plain line, and the longest ones between two


class Working:
    """A context in which a command shows what it does.

    Args:
        what: What is being done, in a few words.
        quiet: Show nothing.
    """

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        console = Console(file=sys.stderr)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24))
        times = (TextColumn("{task.fields[done]}"), TimeElapsedColumn(), TimeRemainingColumn())
        self._bar = Progress(
            *columns, *times, console=console, transient=True, disable=not console.is_terminal or quiet
        )
        self._task = self._bar.add_task(what, total=None, done="")
        self._plain = not console.is_terminal and not quiet
        self._what, self._done, self._stop = what, "", threading.Event()
        self._lines = threading.Thread(target=self._write_lines, daemon=True)

    def show(self, what: str, share: float) -> None:
        """Show what is being done now, and which share of it is done, in [0, 1]."""
        self._what, self._done = what, f"{share:.0%}"
        self._bar.update(self._task, description=what, total=1.0, completed=share, done=self._done)

    def _write_lines(self) -> None:
        start, pause = time.monotonic(), FIRST
        while not self._stop.wait(pause):
            clock = f"{time.monotonic() - start:.0f} s"
            print(f"tacita: {self._what}: {', '.join(filter(None, (self._done, clock)))}", file=sys.stderr, flush=True)
            pause = min(2 * pause, LONGEST)

    def __enter__(self) -> "Working":
        self._bar.start()
        if self._plain:
            self._lines.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._lines.is_alive():
            self._lines.join()
        self._bar.stop()
