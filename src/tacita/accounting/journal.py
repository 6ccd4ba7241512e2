"""The journal: the append-only file in which the chain of lines is kept.

Place: chain -> [accounting.journal] -> accounting.ledger. It knows lines, not what they mean. Beside ``NAME.jsonl``
stands ``NAME.head.json``, the *anchor*: how many lines there were, and the hash of the last one, when it was written.

Guarantees, when the process is killed at any instant:

* A line is on disk before a call that syncs returns; a line that was not synced survives the death of the process,
  though perhaps not of the machine.
* At most the last line is torn. A torn line was never acknowledged; it is dropped when the journal is next opened.
* The anchor never runs ahead of the lines, so that fewer lines than it counts means that some were taken away.

One process writes at a time (``flock``). Nothing is claimed against somebody who rewrites the lines *and* every copy
of the anchor.
"""

import fcntl
import json
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacita._files import flush_folder, make_folder, replace_durably
from tacita.accounting.chain import (
    GENESIS,
    VERSION,
    Anchor,
    Entry,
    Reading,
    Verification,
    canonical,
    check_anchor,
    find_fault,
    read,
    sha256,
)
from tacita.errors import LedgerError


def head_path(path: Path) -> Path:
    """Where the anchor of the ledger at ``path`` is kept."""
    return path.with_name((path.stem if path.suffix == ".jsonl" else path.name) + ".head.json")


def read_anchor(path: Path) -> Anchor | None:
    """The anchor beside the ledger at ``path``; ``None`` if there is no such file."""
    head = head_path(path)
    try:
        value = json.loads(head.read_bytes())
        count, digest = value["count"], value["head"]
        if type(count) is not int or count < 0 or not isinstance(digest, str):
            raise ValueError
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(f"{head.name} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise LedgerError(f"{head.name} is not an anchor that tacita wrote.") from None
    return Anchor(count, digest, head.name)


def read_file(path: Path) -> Reading:
    """:func:`read` the file at ``path``; an unreadable one is a :class:`LedgerError`."""
    try:
        return read(path.read_bytes())
    except OSError as error:
        raise LedgerError(f"{path.name} cannot be read: {error.strerror}.") from None
    except LedgerError as error:
        raise LedgerError(f"{path.name}: {error}") from None


def verify_file(path: str | os.PathLike[str], anchor: Anchor | None = None) -> Verification:
    """Check the ledger at ``path`` against ``anchor``, by default ``NAME.head.json``; its content never raises."""
    path = Path(path)
    name = head_path(path).name if anchor is None else anchor.name
    try:
        anchor = read_anchor(path) if anchor is None else anchor  # first: a writer may be adding lines
        reason = _contradiction(read_file(path), anchor, name)
    except LedgerError as error:
        reason = str(error).rstrip(".")
    return Verification(name, not reason, reason)


def _contradiction(reading: Reading, anchor: Anchor | None, name: str) -> str:
    """What is wrong with the lines that were read, or an empty string."""
    if reading.fault:
        return reading.fault
    if anchor is not None:
        return check_anchor(reading.lines, anchor)
    missing = any(entry.get("kind") == "reserve" for entry in reading.entries)
    return f"{name} is missing: nothing shows whether lines were removed at the end" if missing else ""


class Journal:
    """Lines in memory (``path=None``), or in a file that only this process appends to.

    Opening a file drops a torn last line, and refuses a file whose chain or anchor does not hold.

    Args:
        path: The file, created if absent; ``None`` keeps the lines in memory.
        anchor: Held against the file in place of ``NAME.head.json``, which is then written anew.
        read_only: Only read what is there, without a lock, even if the chain or the anchor does not hold.

    Raises:
        LedgerError: Unreadable, locked by another writer, changed, or shortened.
    """

    def __init__(self, path: Path | None, *, anchor: Anchor | None = None, read_only: bool = False):
        self.path = path
        self.count, self.head = 0, GENESIS
        self.lines: list[bytes] = []  # in memory only
        self.entries: list[Entry] = []  # what the file held when it was opened; emptied by its reader
        self._read_only = read_only
        self._file = _File(path) if path is not None and not read_only else None
        if path is not None and read_only:
            self._remember(read_file(path))
        if self._file is not None:
            try:
                self._take_over(self._file, anchor)
            except BaseException:
                self._file.close()
                raise

    def _take_over(self, file: "_File", anchor: Anchor | None) -> None:
        reading = read_file(file.path)
        kept = read_anchor(file.path) if anchor is None else anchor
        reason = _contradiction(reading, kept, head_path(file.path).name)
        if reason:
            raise LedgerError(f"{file.path.name}: {reason}. Load it read-only to look at it.")
        file.cut(reading.size)
        self._remember(reading)
        if reading.lines:
            file.sync()  # what a killed process wrote may not be on disk yet, and the anchor must not run ahead
            file.write_anchor(self.anchor())

    def _remember(self, reading: Reading) -> None:
        self.count, self.head, self.entries = len(reading.lines), reading.head, reading.entries

    def append(self, kind: str, session: str, fields: Mapping[str, Any]) -> None:
        """Add one line: it outlives the process; only :meth:`sync` makes it outlive the machine.

        Raises:
            LedgerError: The line could not be written; then it is not there.
        """
        if self._read_only:
            raise LedgerError("this ledger was loaded read-only: load it with read_only=False to add to it.")
        entry = {**fields, "v": VERSION, "seq": self.count, "prev": self.head, "kind": kind, "session": session}
        line = canonical(entry)
        if self._file is not None:
            self._file.write(line + b"\n")
        else:
            self.lines.append(line)
        self.count, self.head = self.count + 1, sha256(line)

    def sync(self) -> None:
        """Put every line, then the anchor, on disk.

        Raises:
            LedgerError: Not done. If the lines are not on disk, no more are taken.
        """
        if self._file is not None:
            self._file.sync()
            self._file.write_anchor(self.anchor())

    def anchor(self, name: str | None = None) -> Anchor:
        """How far this journal has come."""
        if name is None:
            name = "memory" if self.path is None else head_path(self.path).name
        return Anchor(self.count, self.head, name)

    def verify(self, anchor: Anchor | None) -> Verification:
        """Check the lines, read again, against ``anchor``; by default against ``NAME.head.json``."""
        if self.path is None:
            anchor = anchor or self.anchor()
            reason = find_fault(self.lines, [json.loads(line) for line in self.lines]) or check_anchor(
                self.lines, anchor
            )
            return Verification(anchor.name, not reason, reason)
        verification = verify_file(self.path, anchor)
        if verification.ok and self._file is not None:
            reason = check_anchor(read_file(self.path).lines, self.anchor("the writer"))
            return Verification(verification.anchor, not reason, reason)
        return verification

    def close(self) -> None:
        """Flush, and give the lock back. Nothing can be appended afterwards."""
        if self._file is not None and not self._file.closed:
            try:
                if not self._file.broken:
                    self.sync()
            finally:
                self._file.close()


class _File:
    """The bytes of a journal: an exclusive lock, whole appends, durable anchors."""

    def __init__(self, path: Path):
        self.path = path
        self.size = 0
        self.broken = ""  # why no more lines are taken
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            make_folder(path.parent)
            self._handle = os.fdopen(os.open(path, flags, 0o644), "rb+", buffering=0)
            flush_folder(path.parent)  # or its name could be lost where that of a later anchor survives
        except OSError as error:
            raise LedgerError(f"{path.name} cannot be opened for writing: {error.strerror}.") from None
        _OPEN.add(self)
        self._lock()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise LedgerError(
                f"{self.path.name} is open in another writer (another process, or another Ledger in this one). "
                "Close that one first, or load this ledger read-only."
            ) from None
        except OSError as error:
            self.close()
            raise LedgerError(f"{self.path.name} cannot be locked: {error.strerror}.") from None

    def cut(self, size: int) -> None:
        """Drop what follows the first ``size`` bytes: a torn line."""
        try:
            if os.fstat(self._handle.fileno()).st_size != size:
                os.ftruncate(self._handle.fileno(), size)
                os.fsync(self._handle.fileno())
        except OSError as error:
            raise LedgerError(f"{self.path.name} cannot be repaired: {error.strerror}.") from None
        self.size = size

    def write(self, data: bytes) -> None:
        """Append ``data`` whole, or leave the file as it was."""
        self._check_ours()
        try:
            written = 0
            while written < len(data):
                written += os.write(self._handle.fileno(), data[written:])
        except OSError as error:
            self._undo()
            raise LedgerError(f"{self.path.name} cannot be written: {error.strerror}. Nothing was added.") from None
        self.size += len(data)

    def _undo(self) -> None:
        try:
            os.ftruncate(self._handle.fileno(), self.size)
        except OSError:
            self.broken = "a line was left half written"

    def _check_ours(self) -> None:
        """Refuse to append to a file that was closed, replaced or changed by somebody else."""
        if self._handle.closed:
            raise LedgerError(f"{self.path.name} is closed, or belongs to the process that this one was forked from.")
        if self.broken:
            raise LedgerError(f"{self.path.name} takes no more lines: {self.broken}. Load it again.")
        mine = os.fstat(self._handle.fileno())
        try:
            there = os.stat(self.path)
        except OSError:
            raise LedgerError(f"{self.path.name} was removed while it was being written.") from None
        if (mine.st_ino, mine.st_dev) != (there.st_ino, there.st_dev) or mine.st_size != self.size:
            raise LedgerError(f"{self.path.name} was replaced or changed by somebody else while it was being written.")

    def sync(self) -> None:
        """Make what was written durable. After a failure nobody knows what is: no more lines are taken."""
        self._check_ours()
        try:
            os.fsync(self._handle.fileno())
        except OSError as error:
            self.broken = "it could not be flushed to disk"
            raise LedgerError(f"{self.path.name} cannot be flushed to disk: {error.strerror}.") from None

    def write_anchor(self, anchor: Anchor) -> None:
        """Replace ``NAME.head.json`` atomically."""
        try:
            replace_durably(head_path(self.path), canonical({"count": anchor.count, "head": anchor.head}) + b"\n")
        except OSError as error:
            raise LedgerError(f"{anchor.name} cannot be written: {error.strerror}.") from None

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def close(self) -> None:
        self._handle.close()


_OPEN: "weakref.WeakSet[_File]" = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child (a data loader's worker) neither writes the ledger nor keeps it locked after its parent."""
    for file in list(_OPEN):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)
