"""The bytes of a journal on disk: one writer, whole lines, and an anchor that never runs ahead of them."""

import json
import os
import weakref
from pathlib import Path

from tacita._files import BINARY, flush, flush_folder, make_folder, replace_durably
from tacita._lock import HeldLock
from tacita.errors import LedgerError
from tacita.ledger.hash_chain import Anchor, LedgerLines, canonical, read


def head_path(path: Path) -> Path:
    """Return the path of the anchor of the ledger at ``path``."""
    return path.with_name((path.stem if path.suffix == ".jsonl" else path.name) + ".head.json")


def read_anchor(path: Path) -> Anchor | None:
    """Read the anchor beside the ledger at ``path``; return ``None`` if there is no such file."""
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


def read_file(path: Path) -> LedgerLines:
    """Read the lines of the file at ``path``; raise :class:`LedgerError` if that is not possible."""
    try:
        return read(path.read_bytes())
    except OSError as error:
        raise LedgerError(f"{path.name} cannot be read: {error.strerror}.") from None
    except LedgerError as error:
        raise LedgerError(f"{path.name}: {error}") from None


class JournalFile:
    """A journal that is open for writing: an exclusive lock, whole appends, durable anchors."""

    def __init__(self, path: Path):
        self.path = path
        self.size = 0
        self.broken = ""  # why no more lines are accepted; empty while they are
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | BINARY
        try:
            make_folder(path.parent)
            self._handle = os.fdopen(os.open(path, flags, 0o644), "rb+", buffering=0)
            flush_folder(path.parent)  # else its name could be lost while the name of a later anchor survives
        except OSError as error:
            raise LedgerError(f"{path.name} cannot be opened for writing: {error.strerror}.") from None
        _OPEN.add(self)
        self._lock: HeldLock | None = None
        self._take_lock()

    def _take_lock(self) -> None:
        try:
            self._lock = HeldLock(self.path, wait=False, handle=self._handle.fileno())
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
        """Drop a torn line: everything after the first ``size`` bytes."""
        try:
            if os.fstat(self._handle.fileno()).st_size != size:
                os.ftruncate(self._handle.fileno(), size)
                flush(self._handle.fileno())
        except OSError as error:
            raise LedgerError(f"{self.path.name} cannot be repaired: {error.strerror}.") from None
        self.size = size

    def write(self, data: bytes) -> None:
        """Append all of ``data``, or leave the file as it was."""
        self._check_ours()
        try:
            written = 0
            while written < len(data):
                written += os.write(self._handle.fileno(), data[written:])
        except OSError as error:
            self._undo()
            raise LedgerError(f"{self.path.name} cannot be written: {error.strerror}. Nothing was added.") from None
        self.size += len(data)

    def has(self, data: bytes, offset: int) -> bool:
        """Return whether the file ends with ``data`` at ``offset``; take back a part of it, which an interrupt left."""
        self._handle.seek(offset)
        there = self._handle.read(len(data) + 1)
        if there != data and data.startswith(there):
            self.cut(offset)
        return there == data

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
        if not os.path.samestat(mine, there) or mine.st_size != self.size:
            raise LedgerError(f"{self.path.name} was replaced or changed by somebody else while it was being written.")

    def sync(self) -> None:
        """Put the written lines on disk. After a failure nobody knows which are there, and no more are accepted."""
        self._check_ours()
        try:
            flush(self._handle.fileno())
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
        if self._lock is not None:
            self._lock.release()

    def leave(self) -> None:
        """Close the file in a forked child without releasing the parent's lock."""
        self._handle.close()


_OPEN: "weakref.WeakSet[JournalFile]" = weakref.WeakSet()


def _close_in_child() -> None:
    """Keep a forked child (a data loader's worker) from writing the ledger and from holding its lock."""
    for file in list(_OPEN):
        file.leave()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_close_in_child)
