"""The life of a run: started or found again in its folder, bound to its inputs, sealed, and rid of its private files.

Every kind of run takes the same steps in this order: :func:`tacita.fit`, ``tacita train``, a selection, an audit::

    start ──> new or resumed ──> ledger ──> bind ──> (the work) ──> seal ──> finish
      └─────> sealed, but not finished ──> ledger ──> sealed_run ─────────────┘

A process may be killed between any two of them, and the same call takes the run up again.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tacita._files import replace_durably
from tacita.accounting import NeighboringRelation
from tacita.errors import ResumeError, TacitaError
from tacita.ledger import Ledger
from tacita.random import Randomness
from tacita.runs.folder import RunFolder
from tacita.runs.run_facts import run_id
from tacita.runs.run_list import ListedRun, finish_sealed
from tacita.runs.sealed_run import STATEMENT, SealedRun


class RunLifecycle:
    """One run on its way from its first key to the removal of its last private file; made by :meth:`start`.

    Without a folder the run lives in memory: nothing is stored, and there is nothing to remove.

    Attributes:
        folder: Where the run keeps its files; ``None`` for a run in memory.
        randomness: The run's own: a new key, or that of the run which was found.
        resumed: Whether an earlier process started the run, and ``randomness`` is its key.
        sealed: Whether an earlier process did all but remove the private files. Its key may be gone already.

    Raises:
        ResumeError: From its methods: the folder holds something else, or the inputs are not those of the run.

    Example:
        >>> import tempfile
        >>> place = tempfile.TemporaryDirectory()
        >>> folder = RunFolder(f"{place.name}/run")
        >>> run = RunLifecycle.start(folder)
        >>> tag = run.bind([b"settings", b"data"])
        >>> again = RunLifecycle.start(folder)  # the process was killed, and the call is repeated
        >>> again.resumed, again.bind([b"settings", b"data"]) == tag
        (True, True)
        >>> again.finish(); place.cleanup()
    """

    def __init__(
        self,
        folder: RunFolder | None,
        randomness: Randomness,
        *,
        resumed: bool = False,
        sealed: bool = False,
        argument: str = "folder",
    ) -> None:
        self.folder, self.randomness = folder, randomness
        self.resumed, self.sealed = resumed, sealed
        self._argument = argument
        self._listed: ListedRun | None = None

    @classmethod
    def start(
        cls,
        folder: RunFolder | None,
        randomness: Randomness | None = None,
        *,
        argument: str = "folder",
        resumable: bool = True,
        check: Callable[["RunLifecycle"], Any] | None = None,
    ) -> "RunLifecycle":
        """Start a run in ``folder``, or find the one that was interrupted there.

        A new key is on disk before anything is drawn with it. Of two processes that start at once, one makes the key
        and the other finds it; which of them goes on is decided by the ledger, which takes one writer.

        Args:
            folder: Where the run keeps its files: a new or an empty folder, or that of an interrupted run. ``None`` for
                a run in memory.
            randomness: For a new run; only tests hand it in. A run that is found has its own.
            argument: The caller's name for the folder, for messages.
            resumable: Whether a key is stored. Without one the run ends with its process.
            check: Called with the run while the folder is locked, to compare its settings with those that are there.

        Raises:
            ResumeError: The folder holds a finished run, a run without its key, or something else.
            ValueError: A part of the path is a file.
        """
        chosen = randomness or Randomness.system()
        if folder is None:
            return cls(None, chosen)
        try:
            with folder.starting():
                run = cls._found(folder, chosen, argument) if resumable else None
                run = run or cls._new(folder, chosen, argument, resumable=resumable)
                if check is not None:
                    check(run)
                return run
        except (NotADirectoryError, FileExistsError):
            raise ValueError(
                f"{argument} must be a folder, got {str(folder.path)!r}: a part of it is a file."
            ) from None

    @classmethod
    def _found(cls, folder: RunFolder, chosen: Randomness, argument: str) -> "RunLifecycle | None":
        """Return the run that an earlier process left; ``None`` if there is none."""
        if folder.unfinished:
            key = Randomness.load(folder.key)
            return cls(folder, key, resumed=True, sealed=folder.tidying, argument=argument)
        if folder.tidying:  # killed between the removal of the key and that of its folder: nothing is drawn any more
            return cls(folder, chosen, sealed=True, argument=argument)
        return None

    @classmethod
    def _new(cls, folder: RunFolder, chosen: Randomness, argument: str, *, resumable: bool) -> "RunLifecycle":
        if not folder.empty:
            raise ResumeError(_not_empty(folder, argument, resumable=resumable))
        folder.create()
        if resumable:
            run_id(chosen)  # before any ratchet, so that every process of the run has the same name for it
            chosen.save(folder.key)
        return cls(folder, chosen, argument=argument)

    @staticmethod
    def check_folder(folder: RunFolder, argument: str = "folder") -> None:
        """Raise ``ResumeError`` if no run can be started or found in ``folder``, before anything else is looked at."""
        if not (folder.unfinished or folder.tidying or folder.empty):
            raise ResumeError(_not_empty(folder, argument, resumable=True))

    @contextmanager
    def ledger(self, *, neighboring_relation: NeighboringRelation, privacy_unit: str) -> Iterator[Ledger]:
        """Open the run's ledger for the block. One on disk is closed at its end, so that the run can be resumed.

        Raises:
            ResumeError: The ledger of a run that has a checkpoint is gone: the run would be paid for anew, and what
                it has spent would be forgotten.
        """
        folder = self.folder
        path = None if folder is None else folder.ledger
        ledger = Ledger(path, neighboring_relation=neighboring_relation, privacy_unit=privacy_unit)
        try:
            if folder is not None and folder.checkpoint.exists() and not ledger.sessions:
                raise ResumeError(f"{folder.ledger.name} of the run that was started here is missing: restore it.")
            yield ledger
        except BaseException as error:
            if folder is not None and isinstance(error, KeyboardInterrupt):
                error.add_note(f"tacita: to continue the run in {str(folder.path)!r}, repeat the same call.")
            ledger.close()
            raise
        if path is not None:
            ledger.close()

    def tag(self, parts: Iterable[bytes]) -> str:
        """Return a tag of ``parts`` under the run's own key.

        An open hash in a file would let anyone who reads it test a guessed data set.
        """
        return self.randomness.session_key("input").tag("input", parts=parts)

    def bind(self, parts: Iterable[bytes], inputs: str = "settings or data") -> str:
        """Bind a new run to its inputs, or hold the inputs of a resumed run against those that it started with.

        Args:
            parts: What stands for the inputs, as bytes, read once.
            inputs: What the inputs are, for the message.

        Returns:
            The tag of the inputs, for the run's checkpoints.

        Raises:
            ResumeError: The run was started with other inputs, or the file that holds their tag is damaged.
        """
        tag = self.tag(parts)
        if self.folder is None:
            return tag
        path = self.folder.binding
        if not path.exists():
            replace_durably(path, json.dumps({"tag": tag}).encode(), mode=0o600)
        elif _tag_in(path.read_bytes(), path.name) != tag:
            raise ResumeError(
                f"{inputs} are not those that the run in {self._argument} {self.folder.path.name!r} started with: "
                "restore them. A new run in another folder spends epsilon anew, beside what is spent."
            )
        return tag

    def record(self, listed: ListedRun) -> None:
        """Add the run to the list of the runs on its data; once it is sealed, as a finished one."""
        listed.record(self.randomness)
        self._listed = listed

    def sealed_run(self) -> SealedRun:
        """Return the files of the run that was found sealed, none of which was changed since; it is listed as finished.

        Raises:
            ResumeError: A file was changed.
        """
        assert self.folder is not None
        try:
            run = SealedRun.intact(self.folder.path)
        except TacitaError as error:
            raise ResumeError(f"the run that was finished here was changed since: {error}") from None
        finish_sealed(run.folder, run.stated)
        return run

    def finish(self) -> None:
        """Remove what is private, the key last. Call it when the ledger is closed."""
        if self._listed is not None:
            self._listed.record(self.randomness, finished=True)
        if self.folder is not None:
            self.folder.finish()


def _not_empty(folder: RunFolder, argument: str, *, resumable: bool) -> str:
    """Return why no run can be started in ``folder``, and the way out."""
    if folder.private.is_dir() and resumable:
        return (
            f"the run that was started in {argument} {folder.path.name!r} has lost its private key "
            f"{folder.key.name}: restore it. A new run in another folder spends epsilon anew, beside what is spent."
        )
    if (folder.path / STATEMENT).exists():
        return (
            f"{argument} must be a new or an empty folder, got {str(folder.path)!r}, which is not empty: it holds a "
            f"finished run, which tacita show describes. Choose another folder: a run there spends epsilon anew."
        )
    why = "holds no unfinished run" if resumable else "a run of this kind is never resumed"
    return (
        f"{argument} must be a new or an empty folder, got {str(folder.path)!r}, which is not empty, and {why}: choose "
        "another one. What a ledger in it says was spent on the same data stays spent."
    )


def _tag_in(written: bytes, name: str) -> str:
    try:
        return json.loads(written)["tag"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ResumeError(f"{name} cannot be read as one of this version.") from None
