"""The folder of a run, with the files that may be shared at the top and the others in ``private/``."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tacita._files import make_folder, remove_durably
from tacita._lock import IN_FOLDER, HeldLock
from tacita.errors import ResumeError
from tacita.ledger.journal import ends_with_seal
from tacita.training.sealed_run import LEDGER


class RunFolder:
    """The folder where a run keeps its files: those that may be shared at the top, the others in ``private/``.

    Args:
        path: The folder; made if it is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.private = self.path / "private"

    @property
    def ledger(self) -> Path:
        """The file of the ledger."""
        return self.path / LEDGER

    @property
    def key(self) -> Path:
        """The file of the private key, of mode 0600, which is removed when the run is finished."""
        return self.private / "key.json"

    @property
    def checkpoint(self) -> Path:
        """The file of the last checkpoint, which is private."""
        return self.private / "checkpoint.safetensors"

    @property
    def binding(self) -> Path:
        """The file of the keyed tag of the settings and data that the run was started with."""
        return self.private / "input.json"

    @property
    def unfinished(self) -> bool:
        """Whether a run was started here and not finished."""
        return self.key.exists()

    @property
    def tidying(self) -> bool:
        """Whether everything is written and sealed, so that only the private files have to be removed."""
        return self.private.is_dir() and ends_with_seal(self.ledger)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Hold the folder while a run is started or found there, so that one of several processes makes the key.

        The ledger, which takes one writer, decides which of them goes on.
        """
        if self.path.exists() and not self.path.is_dir():  # start() refuses a file
            yield
            return
        make_folder(self.path)
        lock = HeldLock(self.path, wait=True)
        try:
            yield
        finally:
            lock.release()

    def create(self) -> None:
        """Make the folders; only the owner can enter ``private``."""
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
        """Return whether the folder holds nothing but what a run leaves that was killed before it had a key."""
        if not self.path.is_dir() or any(
            entry.name not in (self.private.name, IN_FOLDER) for entry in self.path.iterdir()
        ):
            return False
        return not self.private.exists() or all(entry.name.endswith(".tmp") for entry in self.private.iterdir())

    def finish(self) -> None:
        """Remove the private folder: checkpoint first, the key last."""
        remove_durably(self.checkpoint)
        remove_durably(self.binding)
        remove_durably(self.key)
        for leftover in self.private.glob(".*.tmp"):
            remove_durably(leftover)
        if self.private.exists():
            self.private.rmdir()
