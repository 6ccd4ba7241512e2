"""The life of a run in a folder: it is started, bound to its inputs, resumed, checked and finished here.

The same object is made for a new run and for one that a kill stopped, so that the two cannot differ in what they check.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tacita._files import remove_durably, replace_durably
from tacita.errors import ResumeError, TacitaError
from tacita.ledger import Ledger
from tacita.random import Randomness
from tacita.training.folder import RunFolder
from tacita.training.sealed_run import SealedRun

INPUT = "input.json"  # in the private folder: the keyed tag of the inputs


class ResumableRun:
    """A run between its first key and the removal of its last private file. Made by :meth:`starting`.

    Attributes:
        folder: The run's folder.
        randomness: The run's key, which was on disk before this object was made.
        resumed: Whether an earlier process started the run.
        sealed: Whether an earlier process wrote everything, the seal included, and only private files are left.
    """

    def __init__(self, folder: RunFolder, randomness: Randomness, *, resumed: bool, sealed: bool, argument: str):
        self.folder, self.randomness = folder, randomness
        self.resumed, self.sealed = resumed, sealed
        self._argument = argument

    @classmethod
    @contextmanager
    def starting(
        cls, folder: RunFolder, randomness: Randomness | None = None, *, argument: str = "folder"
    ) -> Iterator["ResumableRun"]:
        """Start a run in ``folder``, or find the one that was stopped there; the folder is locked inside the block.

        Compare the run's settings with those of the stopped one inside the block: of two processes that start at once,
        one makes the key, and the other finds it.

        Args:
            folder: A new or empty folder, or that of a run that was stopped.
            randomness: The key of a new run; by default the system's.
            argument: The caller's name for the folder, for messages.

        Raises:
            ResumeError: The folder holds something else, a finished run for example.
            ValueError: A part of the path is a file.
        """
        try:
            with folder.starting():
                sealed, resumed = folder.tidying, folder.unfinished or folder.tidying
                if not resumed:
                    _create(folder, argument)
                    randomness = randomness or Randomness.system()
                    randomness.save(folder.key)
                elif sealed:
                    randomness = Randomness.system()  # nothing is drawn any more, and the old key may be gone
                else:
                    randomness = Randomness.load(folder.key)
                yield cls(folder, randomness, resumed=resumed, sealed=sealed, argument=argument)
        except (NotADirectoryError, FileExistsError):
            raise ValueError(
                f"{argument} must be a folder, got {str(folder.path)!r}: a part of it is a file."
            ) from None

    def bind(self, parts: Iterable[bytes], names: str) -> None:
        """Bind a new run to its inputs, or check that a resumed run has the inputs that it was started with.

        What is stored is a tag under the run's key: an open hash would let anybody test a guessed table.

        Args:
            parts: The inputs as bytes, read once.
            names: What the inputs are, for the message.

        Raises:
            ResumeError: The inputs are others.
        """
        tag = self.randomness.session_key("input").tag("input", parts=parts)
        path = self.folder.private / INPUT
        if not path.exists():
            replace_durably(path, json.dumps({"tag": tag}).encode(), mode=0o600)
        elif _stored_tag(path.name, path.read_bytes()) != tag:
            raise ResumeError(
                f"{names} are not those that the run in {self._argument} {self.folder.path.name!r} started with: "
                "restore them, or choose another folder."
            )

    def check_sealed(self) -> None:
        """Put a seal on disk that a killed process wrote, and hold the files against it.

        Raises:
            ResumeError: A file was changed since.
        """
        Ledger.load(self.folder.ledger, read_only=False).close()
        try:
            SealedRun.intact(self.folder.path)
        except TacitaError as error:
            raise ResumeError(f"the run that was finished here was changed since: {error}") from None

    def finish(self) -> None:
        """Remove what is private: working folders first, the key last. Remove half-written files, too."""
        for working in self.folder.private.glob("*/"):
            shutil.rmtree(working)
        for leftover in self.folder.path.glob(".*.tmp"):
            remove_durably(leftover)
        remove_durably(self.folder.private / INPUT)
        self.folder.finish()


def _create(folder: RunFolder, argument: str) -> None:
    try:
        folder.start()
    except ResumeError:
        raise ResumeError(
            f"{argument} must be a new or an empty folder, got {str(folder.path)!r}, which holds something and no "
            "unfinished run: choose another one, or remove it."
        ) from None


def _stored_tag(name: str, content: bytes) -> Any:
    try:
        return json.loads(content)["tag"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ResumeError(f"{name} cannot be read as one of this version.") from None
