"""The folder of a run, with the files that may be shared at the top and the others in ``private/``."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tacita._files import make_folder, remove_durably
from tacita._lock import IN_FOLDER, HeldLock
from tacita.ledger.journal import ends_with_seal
from tacita.runs.edits import LEDGER


class RunFolder:
    """The folder where a run keeps its files: those that may be shared at the top, the others in ``private/``.

    Everything in ``private/`` is the run's own, and is removed with it.

    Attributes:
        path: The folder; made if it is missing.
        private: Where the private files are: ``private/`` in the folder. A run that publishes nothing writes all its
            files there.
        ledger: The file of the ledger: in the folder, unless the caller keeps the ledger.

    Raises:
        FileExistsError, NotADirectoryError: From a method that makes folders, if a part of ``path`` is a file.

    Example:
        >>> import tempfile
        >>> place = tempfile.TemporaryDirectory()
        >>> folder = RunFolder(f"{place.name}/run")
        >>> folder.create()
        >>> folder.private.name, folder.empty, folder.unfinished
        ('private', True, False)
        >>> folder.finish(); folder.path.exists()
        False
        >>> place.cleanup()
    """

    def __init__(self, path: str | Path, *, private: Path | None = None, ledger: Path | None = None) -> None:
        self.path = Path(path)
        self.private = private or self.path / "private"
        self.ledger = ledger or self.path / LEDGER

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
        """Whether a run was started here and not finished, or has its key still."""
        return self.key.exists()

    @property
    def tidying(self) -> bool:
        """Whether everything is written and sealed, so that only the private files have to be removed."""
        return self.private.is_dir() and ends_with_seal(self.ledger)

    @property
    def holds_secrets(self) -> bool:
        """Whether a sealed run has private files still."""
        return self.tidying and any(self.private.iterdir())

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Hold the folder while a run is started or found there, so that one of several processes makes the key.

        The ledger, which takes one writer, decides which of them goes on.
        """
        if self.path.exists() and not self.path.is_dir():  # a file is not empty, and is refused
            yield
            return
        make_folder(self.path)
        lock = HeldLock(self.path, wait=True)
        try:
            yield
        finally:
            lock.release()

    @property
    def empty(self) -> bool:
        """Whether the folder holds nothing but what a run leaves that was killed before it had a key."""
        if not self.path.exists():
            return True
        if not self.path.is_dir() or any(
            entry.name not in (self.private.name, IN_FOLDER) for entry in self.path.iterdir()
        ):
            return False
        return not self.private.exists() or all(entry.name.endswith(".tmp") for entry in self.private.iterdir())

    def create(self) -> None:
        """Make the folders; only the owner can enter ``private``."""
        make_folder(self.path)
        make_folder(self.private, mode=0o700)
        os.chmod(self.private, 0o700)

    def finish(self) -> None:
        """Remove the private folder, the key last, and files that a killed process left half written.

        A folder in which nothing was published goes, too. It is not claimed that the bytes are gone from the disk.
        """
        for leftover in self.path.glob(".*.tmp"):
            remove_durably(leftover)
        if self.private.exists():
            for one in sorted(self.private.iterdir()):
                if one.is_dir() and not one.is_symlink():
                    shutil.rmtree(one)
                elif one != self.key:
                    remove_durably(one)
            remove_durably(self.key)
            self.private.rmdir()
        if not any(self.path.iterdir()):
            self.path.rmdir()
