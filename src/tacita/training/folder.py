"""The folder of a run: what may be shared at the top, what must not in ``private/``.

Place: the ground of training.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tacita._files import make_folder, remove_durably
from tacita.errors import ResumeError

STATEMENT = "statement.json"  # the last file that a run writes


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

    @property
    def tidying(self) -> bool:
        """Whether all is written, and only what is private has to go."""
        return self.private.is_dir() and (self.path / STATEMENT).exists()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Hold the folder while a run is started or found there: of two processes at once, one makes the key.

        Which of them goes on is the ledger's to say: it takes one writer.
        """
        if self.path.exists() and not self.path.is_dir():  # a file, which start() refuses
            yield
            return
        make_folder(self.path)
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def create(self) -> None:
        """Make the folders; ``private`` can be entered by its owner alone."""
        make_folder(self.path)
        make_folder(self.private, mode=0o700)
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
