"""The life of a run: started or found again in its folder, paid from its ledger, bound to its data, sealed, finished.

Every kind of run with a folder takes the same steps, in this order::

    start ──> new or unfinished ──> ledger ──> bind ──> (the work) ──> seal ──> finish
      └─────> sealed (killed before finish) ──> ledger ──> sealed_run ────────────┘

A process may be killed between any two of them, and the same call takes the run up again.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from torch import Tensor

from tacita._files import replace_durably
from tacita.accounting import NeighboringRelation
from tacita.errors import ResumeError, TacitaError
from tacita.ledger import Ledger, Statement
from tacita.random import Randomness
from tacita.training.folder import RunFolder
from tacita.training.sealed_run import MODEL, SealedRun, file_sha256, save_weights, seal_run

OTHER_INPUTS = "this run was started with other settings or other data: rerun with those, or choose another folder."


class RunLifecycle:
    """One run on its way from its start to the removal of its private files; made by :meth:`start`.

    Without a folder the run lives in memory: nothing is bound or sealed, and there is nothing to remove.

    A kind of run that keeps more in its folder derives a class from :class:`RunFolder`: ``starting`` holds settings
    against those that are there, and ``finish`` removes what else is private.

    Attributes:
        folder: Where the run keeps its files; ``None`` for a run in memory.
        randomness: The run's own: a new key, or that of the run which was found.
        found: What was in the folder: ``"nothing"``, an ``"unfinished"`` run, or a ``"sealed"`` one whose private
            files were not removed yet.
    """

    def __init__(
        self,
        folder: RunFolder | None,
        randomness: Randomness,
        found: Literal["nothing", "unfinished", "sealed"] = "nothing",
    ) -> None:
        self.folder, self.randomness, self.found = folder, randomness, found

    @classmethod
    def start(cls, folder: RunFolder | None, randomness: Randomness | None = None) -> "RunLifecycle":
        """Start a run in ``folder``, or find the one that was interrupted there.

        A new key is on disk before anything is drawn with it. Of two processes that start at once, one makes the key;
        which of them goes on is decided by the ledger, which takes one writer.

        Args:
            folder: Where the run keeps its files; ``None`` for a run in memory.
            randomness: For a new run; only tests hand it in. A run that is found has its own.

        Raises:
            ResumeError: The folder holds a finished run, or something else.
        """
        chosen = randomness or Randomness.system()
        if folder is None:
            return cls(None, chosen)
        with folder.starting():
            if folder.tidying:
                return cls(folder, chosen, "sealed")
            if folder.unfinished:
                return cls(folder, Randomness.load(folder.key), "unfinished")
            folder.start()
            chosen.save(folder.key)
            return cls(folder, chosen)

    @property
    def sealed(self) -> bool:
        """Whether an earlier process did all but remove the private files."""
        return self.found == "sealed"

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
        except BaseException:
            ledger.close()
            raise
        if path is not None:
            ledger.close()

    def bind(self, tag: str, *, refusal: str = OTHER_INPUTS) -> str:
        """Hold ``tag`` against the one that the run was started with; a new run writes it down.

        Args:
            tag: Stands for settings and data. It must be keyed with the run's own key: an open hash in a file would
                let anyone who reads it test a guessed data set.
            refusal: What the error says.

        Returns:
            ``tag``, for the run's checkpoints.

        Raises:
            ResumeError: The run was started with another tag, or the file that holds it is damaged.
        """
        if self.folder is None:
            return tag
        path = self.folder.binding
        if not path.exists():
            replace_durably(path, json.dumps({"tag": tag}).encode(), mode=0o600)
        elif _tag_in(path.read_bytes(), path.name) != tag:
            raise ResumeError(refusal)
        return tag

    def seal(
        self,
        ledger: Ledger,
        make_statement: Callable[[dict[str, str]], Statement],
        *,
        weights: Mapping[str, Tensor] | None = None,
        files: Iterable[str] = (),
    ) -> Statement:
        """Write the weights and the statement about them, and end the ledger with their hashes.

        If the process is killed before the seal is on disk, the next one does it again.

        Args:
            ledger: All its sessions are closed. One in memory is not sealed, and nothing is written beside it.
            make_statement: ``{file name: SHA-256} -> Statement``.
            weights: What is published, by name.
            files: Names of more files beside the ledger that belong to the run.

        Returns:
            The statement.
        """
        if ledger.path is None:
            return make_statement({})
        ledger.flush()  # no weights leave the process before the lines of their queries
        folder = ledger.path.parent
        hashes = {name: file_sha256(folder / name) for name in files}
        if weights is not None:
            hashes[MODEL] = save_weights(folder, weights)
        words = make_statement(hashes)
        seal_run(ledger, words, files=hashes)
        return words

    def sealed_run(self) -> SealedRun:
        """Return the files of the run that was found sealed, none of which was changed since.

        Raises:
            ResumeError: A file was changed.
        """
        assert self.folder is not None
        try:
            return SealedRun.intact(self.folder.path)
        except TacitaError as error:
            raise ResumeError(f"the run that was finished here was changed since: {error}") from None

    def finish(self) -> None:
        """Remove what is private, the key last. Call it when the ledger is closed."""
        if self.folder is not None:
            self.folder.finish()


def _tag_in(written: bytes, name: str) -> str:
    try:
        return json.loads(written)["tag"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ResumeError(f"{name} cannot be read as one of this version.") from None
