"""Results of single runs, kept in a file, so that an experiment that was interrupted goes on where it stopped."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tacita.training.run_facts import tacita_version


class KeptRuns:
    """The results of runs by their settings, one JSON line each; without a file nothing is kept.

    A result is used again only under the same settings and version of the library. A last line that is cut off, by an
    interruption, is left out.

    Args:
        path: The file; it is made with the first result.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known: dict[str, dict[str, float]] = {}
        if path is None or not path.exists():
            return
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found = json.loads(line)
                self._known[found["settings"]] = found["result"]
            except (ValueError, KeyError, TypeError):
                continue

    def __call__(self, settings: Mapping[str, Any], compute: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Return the result that is known for these settings, or compute and keep it."""
        key = json.dumps({**settings, "version": tacita_version()}, sort_keys=True)
        if key not in self._known:
            self._known[key] = result = compute()
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8", newline="\n") as file:
                    file.write("\n" * self._cut() + json.dumps({"settings": key, "result": result}) + "\n")
        return self._known[key]

    def _cut(self) -> bool:
        """Return whether the file ends within a line."""
        assert self.path is not None
        whole = self.path.read_bytes() if self.path.exists() else b""
        return bool(whole) and not whole.endswith(b"\n")
