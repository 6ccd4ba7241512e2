"""A finished run: files beside a ledger that was sealed over them, so that a change to any of them shows.

The seal is written last: a run without it is not finished. Nothing is claimed against somebody who rewrites the files,
the ledger and its anchor.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from tacita._files import replace_durably
from tacita._lock import IN_FOLDER
from tacita.errors import LedgerError, TacitaError, UnfinishedRunError
from tacita.ledger import Ledger, Statement
from tacita.ledger.journal import head_path
from tacita.ledger.records import Seal, statement_sha256
from tacita.ledger.statement import statement_bytes
from tacita.runs.edits import EDITS, LEDGER, PARENT, Edit, edited_fields, read_edits
from tacita.runs.folder import RunFolder

MODEL, TEXT, STATEMENT = "model.safetensors", "statement.txt", "statement.json"
UNSEALED = "it has no seal, so that nothing ties these files to it; a run that was stopped is finished by its command"


def seal_run(
    ledger: Ledger,
    words: Statement,
    *,
    weights: Mapping[str, Tensor] | None = None,
    files: Iterable[str] = (),
) -> None:
    """Write the weights and the statement of a run beside its ledger, and end the ledger with their hashes.

    ``tacita statement FOLDER`` then shows whether anything was changed: the model, a file named in ``files``, the
    statement, a line of the ledger. Nothing can be added to the ledger afterwards. :func:`tacita.fit` and ``tacita
    train`` do this themselves; a training loop of your own, or a selection, calls it when all sessions are closed. If
    the process is killed before the seal is written, call it again. Remove ``private/`` afterwards.

    Args:
        ledger: With a path, best called ``ledger.jsonl``, in a folder of its own; all its sessions closed.
        words: The statement, made after the last session was closed.
        weights: The tensors to publish, by name; written to ``model.safetensors``.
        files: Names of more files that belong to the run: beside the ledger, or with slashes in folders below it.

    Raises:
        ValueError: The ledger is in memory; or the statement is of another ledger, of an earlier state of it, or of
            other files.
        LedgerError: A session is open, or the ledger is sealed already.
        OSError: A file is missing, or cannot be written.

    Example:
        >>> import tempfile, torch, tacita
        >>> folder = tempfile.TemporaryDirectory()
        >>> ledger = tacita.Ledger(folder.name + "/ledger.jsonl", neighboring_relation="add_or_remove_one",
        ...                        privacy_unit="one row = one patient")
        >>> event = tacita.accounting.GaussianSumEvent(
        ...     relation="add_or_remove_one", sampling=tacita.accounting.PoissonLaw(0.02), max_contribution=(1.0,),
        ...     noise_std=(1.1,))
        >>> session = ledger.register(event, planned_queries=10)
        >>> seal_run(ledger, tacita.statement(ledger, delta=1e-5), weights={"weight": torch.zeros(2)})
        >>> ledger.verify().sealed, sorted(ledger.sealed.files)
        (True, ['model.safetensors', 'statement.txt'])
        >>> ledger.close(); folder.cleanup()
    """
    if ledger.path is None:
        raise ValueError("ledger must have a path to be sealed with the files beside it: this one is in memory.")
    ledger.check_sealable()  # before a file of a finished run is replaced
    if words.anchor[:2] != ledger.anchor[:2]:
        raise ValueError("words must be the statement of this ledger as it stands now: make it again.")
    ledger.flush()
    folder = ledger.path.parent
    hashes = {name: file_sha256(folder / name) for name in files}
    if weights is not None:
        hashes[MODEL] = save_weights(folder, weights)
    stated = words.to_json().get("files", {})
    if any(hashes.get(name) != digest for name, digest in stated.items()):
        raise ValueError("words must name in their field 'files' no file but those that are sealed, with their hashes.")
    text = words.text.encode()
    replace_durably(folder / TEXT, text)
    replace_durably(folder / STATEMENT, words.to_bytes())
    ledger.seal(words.to_json(), {**hashes, TEXT: _sha256(text)})


def publish(
    ledger: Ledger,
    make_statement: Callable[[dict[str, str]], Statement],
    *,
    weights: Mapping[str, Tensor] | None = None,
    files: Iterable[str] = (),
) -> Statement:
    """Write the weights and the statement about them, and end the ledger with their hashes.

    If the process is killed before the seal is on disk, the next one does it again; afterwards, the next one holds the
    files against the seal and makes the statement again.

    Args:
        ledger: All its sessions are closed. One in memory is not sealed, and nothing is written beside it.
        make_statement: ``{file name: SHA-256} -> Statement``.
        weights: What is published, by name.
        files: Names of more files beside the ledger that belong to the run.

    Returns:
        The statement.

    Raises:
        TacitaError: The ledger is sealed, and a file was changed since.
    """
    if ledger.path is None:
        return make_statement({})
    folder = ledger.path.parent
    if ledger.sealed is not None:
        return make_statement(SealedRun.intact(folder).stated["files"])
    ledger.flush()  # no weights leave the process before the lines of their queries
    hashes = {name: file_sha256(folder / name) for name in files}
    if weights is not None:
        hashes[MODEL] = save_weights(folder, weights)
    words = make_statement(hashes)
    seal_run(ledger, words, files=hashes)
    return words


def save_weights(folder: Path, weights: Mapping[str, Tensor]) -> str:
    """Write ``weights`` to ``model.safetensors`` and return its SHA-256, for the statement."""
    data = safetensors.torch.save(owned(weights))
    replace_durably(folder / MODEL, data)
    return _sha256(data)


def owned(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of the tensors, since safetensors refuses tensors that share memory."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class SealedRun:
    """The files of a finished run, compared with the seal of its ledger.

    Args:
        folder: The folder of the run.

    Attributes:
        folder: The folder of the run.
        sealed: Where its sealed files lie: ``folder``, or ``parent/`` in that of an edited run.
        stated: The fields of the sealed statement.
        edits: What was edited since; empty for a run that was not.
        fields: The fields of the statement, with the edits, if there are any, and without a score of the model before.
        faults: What was changed, in words; empty if nothing was.
        uncovered: Files and folders beside these that no seal covers, but for private files and signatures.
        links: Files of the run that lie elsewhere, behind a link: it can be pointed to others after every check.

    Raises:
        TacitaError: The folder holds no finished run.
        UnfinishedRunError: A run was started in it, and its command, repeated, goes on.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        edited = (self.folder / EDITS).exists()
        self.sealed = self.folder / PARENT if edited else self.folder
        self.stated = self._stated()
        self.edits: tuple[Edit, ...] = ()
        self.faults = (*self._faults(), *(self._read_edits() if edited else ()))
        self.fields = edited_fields(self.stated, self.edits) if edited else self.stated
        own = {*self.names(), "signatures.jsonl", IN_FOLDER, RunFolder(folder).private.name}
        self.uncovered = _beside(self.sealed, own)
        names = [*(str(self.sealed.relative_to(folder) / name) for name in self.names()), *[EDITS] * edited]
        whole = os.path.realpath(folder)
        self.links = tuple(name for name in names if os.path.realpath(self.folder / name) != os.path.join(whole, name))
        if edited:
            self.uncovered = (*_beside(self.folder, {EDITS, "signatures.jsonl", PARENT}), *self.uncovered)

    @classmethod
    def intact(cls, folder: str | Path) -> "SealedRun":
        """Return the run in ``folder``, in which nothing was changed.

        Raises:
            TacitaError: The folder holds no finished run, or something was changed.
        """
        run = cls(folder)
        if run.faults:
            raise TacitaError(
                f"{str(folder)!r}: {run.faults[0]}. The files do not belong together: tacita statement lists all that "
                "was changed."
            )
        return run

    def read(self, name: str) -> bytes:
        """Return the bytes of a file, which must be those that were sealed.

        Raises:
            TacitaError: The bytes were changed, or the file was not sealed.
        """
        data = self._bytes(name)
        if data is None or self._files.get(name) != _sha256(data):
            raise TacitaError(f"{str(self.folder)!r}: {name} is not a file that its ledger was sealed with.")
        return data

    def holds(self, name: str) -> bool:
        """Return whether a file of that name was sealed."""
        return name in self._files

    def names(self) -> list[str]:
        """Return the names of all files that are sealed, or that seal them; signatures are not among them."""
        return [*self._files, STATEMENT, LEDGER, head_path(self.sealed / LEDGER).name]

    def _read_edits(self) -> list[str]:
        """Read the edits, and return what is wrong with them."""
        beside = [name for name in (LEDGER, MODEL, TEXT, STATEMENT) if (self.folder / name).exists()]
        found = [f"{name} stands beside {EDITS}, and only {PARENT} may hold one" for name in beside]
        try:
            self.edits = read_edits(self.folder)
        except LedgerError as error:
            found.append(str(error).rstrip("."))
        return found

    def _stated(self) -> dict[str, Any]:
        if not self.folder.is_dir():
            raise TacitaError(f"there is no folder {str(self.folder)!r}: give that of a finished run.")
        kept = RunFolder(self.folder)
        if kept.unfinished and not kept.tidying:
            raise UnfinishedRunError(f"{str(self.folder)!r} holds no finished run, it is {unfinished_in_words(kept)}.")
        try:
            stated = json.loads((self.sealed / STATEMENT).read_bytes())
            if not isinstance(stated, dict):
                raise ValueError
        except OSError as error:
            raise TacitaError(
                f"{str(self.folder)!r} holds no finished run: {STATEMENT} cannot be read ({error.strerror}). If a run "
                "was stopped there, repeat its command to finish it; a loop of your own ends with tacita.seal_run, and "
                "a federation's client with tacita federate join --finish."
            ) from None
        except (ValueError, RecursionError):
            raise TacitaError(
                f"{str(self.folder)!r} holds no run that can be verified: {STATEMENT} is not what tacita wrote, so "
                "that it was changed or damaged. Restore it from a copy."
            ) from None
        return stated

    def _faults(self) -> tuple[str, ...]:
        self._files: dict[str, str] = {}
        try:
            ledger = Ledger.load(self.sealed / LEDGER)
        except LedgerError as error:
            return (str(error).rstrip("."),)
        held, seal = ledger.verify(), ledger.sealed
        broken = () if held.ok and seal is not None else (f"{LEDGER} against {held.anchor}: {held.reason or UNSEALED}",)
        if seal is None:
            return broken
        self._files = dict(seal.files)
        found = [fault for name in seal.files if (fault := self._fault(name))]
        found += [f"{name} was not there when the ledger was sealed" for name in self._added()]
        found += [
            f"{STATEMENT} names another {name} than the one that the ledger was sealed with"
            for name, digest in self._named().items()
            if seal.files.get(name, digest) != digest
        ]
        if not self._same_statement(seal):
            found.append(f"{STATEMENT} is not the statement that the ledger was sealed with")
        elif (self.stated.get("ledger_lines"), self.stated.get("ledger_sha256")) != (seal.after.count, seal.after.head):
            found.append(f"{STATEMENT} is that of another ledger")
        return (*broken, *found)

    def _added(self) -> list[str]:
        """Return the files that stand beside sealed ones in a folder within the run's: a library may read them, too."""
        folders = {name.rpartition("/")[0] for name in self._files if "/" in name}
        there = [f"{one}/{path.name}" for one in folders for path in (self.sealed / one).glob("*")]
        return [name for name in sorted(there) if not any(f"{one}/".startswith(f"{name}/") for one in self._files)]

    def _named(self) -> dict[str, Any]:
        """Return the hashes of files that the statement itself names."""
        files = self.stated.get("files", {})
        return files if isinstance(files, dict) else {}

    def _same_statement(self, seal: Seal) -> bool:
        """Return whether the file is the statement that was sealed, byte by byte.

        Equal fields are not enough: of a name that stands twice, one reader of JSON takes the first value and another
        the last.
        """
        try:
            written = statement_bytes(self.stated)
            return statement_sha256(self.stated) == seal.statement and self._bytes(STATEMENT) == written
        except (TypeError, ValueError, RecursionError):
            return False

    def _fault(self, name: str) -> str:
        """Return what is wrong with a sealed file; nothing if it is as it was."""
        data = self._bytes(name)
        if data is None:
            return f"{name}, which the ledger was sealed with, is missing or cannot be read"
        return "" if _sha256(data) == self._files[name] else f"{name} is not the file that the ledger was sealed with"

    def _bytes(self, name: str) -> bytes | None:
        try:
            return (self.sealed / name).read_bytes()
        except OSError:
            return None


def unfinished_in_words(folder: RunFolder) -> str:
    """Say what to do with an unfinished run, and what it has spent by now."""
    try:
        sessions = [one for one in Ledger.load(folder.ledger).sessions if one.queries_spent]
    except LedgerError:
        sessions = []
    spent = "; ".join(f"{one.id}, {one.queries_spent} of {one.planned_queries} planned queries" for one in sessions)
    return (
        "unfinished: repeat its command (or your loop) to go on, or to read why it cannot, which costs no more than "
        "its plan (a federation's client is sealed by join --finish). "
        + (f"Counted as spent, and stays so: {spent}; " if spent else "Nothing is spent yet; ")
        + "a run in another folder spends its whole epsilon in addition"
    )


def _beside(folder: Path, known: set[str]) -> tuple[str, ...]:
    """Return what is in ``folder`` that is not among ``known`` names of files; a folder within it ends with a slash."""
    top = {name.partition("/")[0] for name in known}
    there = sorted(folder.iterdir())
    return tuple(f"{one.name}/" if one.is_dir() else one.name for one in there if one.name not in top)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
