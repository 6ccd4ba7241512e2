"""The folder of a run: what may be shared at the top, what must not in ``private/``.

Place: the ground of training.
"""

import os
from pathlib import Path

from tacita._files import remove_durably
from tacita.errors import ResumeError


class RunFolder:
    """Where a run keeps its files: what may be shared at the top, what must not in ``private/``.

    Args:
        path: The folder; made if it is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.private = self.path / "private"

    @property
    def ledger(self) -> Path:
        """The ledger."""
        return self.path / "ledger.jsonl"

    @property
    def key(self) -> Path:
        """The private key, mode 0600, gone when the run is finished."""
        return self.private / "key.json"

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint: private, since it stands beside the key."""
        return self.private / "checkpoint.safetensors"

    @property
    def unfinished(self) -> bool:
        """Whether a run was started here and not finished."""
        return self.key.exists()

    def create(self) -> None:
        """Make the folders; ``private`` can be entered by its owner alone."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.private.mkdir(mode=0o700, exist_ok=True)
        os.chmod(self.private, 0o700)

    def start(self) -> None:
        """Make the folders of a new run.

        Raises:
            ResumeError: The folder holds something already.
        """
        if self.path.exists() and not self._empty():
            raise ResumeError(f"{self.path.name!r} is not empty: choose another folder, or remove it.")
        self.create()

    def _empty(self) -> bool:
        """Nothing but what a run leaves that was killed before it had a key."""
        if not self.path.is_dir() or any(entry != self.private for entry in self.path.iterdir()):
            return False
        return not self.private.exists() or all(entry.name.endswith(".tmp") for entry in self.private.iterdir())

    def finish(self) -> None:
        """Remove the private folder: checkpoint first, the key last."""
        remove_durably(self.checkpoint)
        remove_durably(self.key)
        for leftover in self.private.glob(".*.tmp"):
            remove_durably(leftover)
        if self.private.exists():
            self.private.rmdir()
