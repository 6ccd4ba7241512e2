"""The journal: the append-only file in which the chain of lines is kept.

It knows lines, not their meaning. Beside ``NAME.jsonl`` stands
``NAME.head.json``, the *anchor*: the number of lines and the hash of the last one at the time when it was written.

Guarantees, when the process is killed at any instant:

* A line is on disk before a call that syncs returns. A line that was not synced survives the death of the process,
  though perhaps not of the machine.
* At most the last line is torn. A torn line was never acknowledged; it is dropped when the journal is next opened.
* The anchor never runs ahead of the lines. If there are fewer lines than it counts, some were removed.

One process writes at a time (:mod:`tacita._lock`). Nothing is claimed against somebody who rewrites the lines *and*
every copy of the anchor.
"""

import json
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tacita._files import BINARY, flush, flush_folder, make_folder, replace_durably
from tacita._lock import HeldLock
from tacita.errors import LedgerError
from tacita.ledger.hash_chain import (
    GENESIS,
    SEAL,
    VERSION,
    Anchor,
    Entry,
    LedgerLines,
    Verification,
    canonical,
    check_anchor,
    read,
    sha256,
)

# --- bytes on disk -------------------------------------------------------------------------------------------------


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


def read_file(path: Path, *, first: bool = False) -> LedgerLines:
    """Read the lines of the file at ``path``, or the first one; raise :class:`LedgerError` if that is not possible."""
    try:
        with path.open("rb") as file:
            return read(file.readline() if first else file.read())
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


# --- lines ---------------------------------------------------------------------------------------------------------


_SEALED = (
    "this ledger is sealed: its run is finished, and nothing may be added. Use a new ledger; what the two ledgers "
    "spend adds up."
)


def ends_with_seal(path: Path) -> bool:
    """Return whether the last whole line of the file at ``path`` is a seal; false if it is missing or damaged."""
    try:
        lines = path.read_bytes().rsplit(b"\n", 2)
        return len(lines) > 1 and json.loads(lines[-2])["kind"] == SEAL
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False


def verify_file(
    path: str | os.PathLike[str], anchor: Anchor | None = None, writer: Anchor | None = None
) -> Verification:
    """Check the ledger at ``path`` against ``anchor``, by default ``NAME.head.json``. No content makes it raise.

    Args:
        path: The file.
        anchor: What is known of its lines.
        writer: What the process that writes it knows of its lines, if it is this one.
    """
    path = Path(path)
    name = head_path(path).name if anchor is None else anchor.name
    own = anchor is None
    try:
        anchor = read_anchor(path) if anchor is None else anchor  # first: a writer may be adding lines
        reading = read_file(path)
    except LedgerError as error:
        return Verification(name, False, str(error).rstrip("."))
    reason = _contradiction(reading, anchor, name) or (_put_back(reading, anchor) if own else "")
    if not reason and writer is not None:
        reason = check_anchor(reading.lines, writer)
    return Verification(name, not reason, reason, reading.sealed)


def _contradiction(reading: LedgerLines, anchor: Anchor | None, name: str) -> str:
    """Describe what is wrong with the lines that were read; return an empty string if nothing is."""
    if reading.fault:
        return reading.fault
    if reading.sealed and reading.torn:
        return "something was added after the seal"  # no writer does that, so it is not a torn line
    if anchor is not None:
        return check_anchor(reading.lines, anchor)
    missing = any(entry.get("kind") in ("reserve", SEAL) for entry in reading.entries)
    return f"{name} is missing: nothing shows whether lines were removed at the end" if missing else ""


def _put_back(reading: LedgerLines, own: Anchor | None) -> str:
    """Describe what is wrong with the anchor beside a sealed ledger; return an empty string if nothing is.

    Before the seal is written, all other lines are on disk and counted by the anchor.
    """
    if own is None or not reading.sealed or own.count >= len(reading.lines) - 1:
        return ""
    return f"{own.name} counts {own.count} lines of a ledger that had more when sealed: an older anchor was put back"


class _Begun(NamedTuple):
    """A line whose writing has begun, with all that finishing it takes. To finish it twice is to finish it once."""

    offset: int  # where it begins in the file
    line: bytes
    after: tuple[int, str, bool]  # count, head and sealed, once it is there
    apply: Callable[[], None]
    synced: bool


class Journal:
    """Lines in memory (``path=None``), or in a file that only this process appends to.

    Opening a file drops a torn last line, and refuses a file whose chain or anchor does not hold. An interrupt (Ctrl-C)
    may come between any two steps of :meth:`append`: whoever uses the journal next finishes what was begun, if the file
    has the whole line, or takes back what it has (:meth:`settle`).

    Args:
        path: The file, created if absent; ``None`` keeps the lines in memory.
        anchor: The anchor to check the file against in place of ``NAME.head.json``, which is then written anew.
        read_only: Only read the file, without a lock, even if the chain or the anchor does not hold.

    Raises:
        LedgerError: The file is unreadable, locked by another writer, changed, or shortened.
    """

    def __init__(self, path: Path | None, *, anchor: Anchor | None = None, read_only: bool = False):
        self.path = path
        self.count, self.head = 0, GENESIS
        self.lines: list[bytes] = []  # in memory only
        self.entries: list[Entry] = []  # the content of the file when it was opened; its reader empties this
        self.sealed = False  # whether the last line is a seal
        self._begun: _Begun | None = None
        self._read_only = read_only
        self._file = JournalFile(path) if path is not None and not read_only else None
        if path is not None and read_only:
            self._remember(read_file(path))
        if self._file is not None:
            try:
                self._take_over(self._file, anchor)
            except BaseException:
                self._file.close()
                raise

    def _take_over(self, file: JournalFile, anchor: Anchor | None) -> None:
        reading = read_file(file.path)
        kept = read_anchor(file.path) if anchor is None else anchor
        reason = _contradiction(reading, kept, head_path(file.path).name)
        if reason:
            raise LedgerError(f"{file.path.name}: {reason}. Load it read-only to look at it.")
        file.cut(reading.size)
        self._remember(reading)
        if reading.lines:
            self._sync()  # a killed process may not have flushed its lines

    def _remember(self, reading: LedgerLines) -> None:
        self.count, self.head, self.entries = len(reading.lines), reading.head, reading.entries
        self.sealed = reading.sealed

    def append(
        self,
        fields: Mapping[str, Any],
        apply: Callable[[], None] = lambda: None,
        *,
        sync: bool = False,
    ) -> None:
        """Add one line, which outlives the process; only :meth:`sync` makes it outlive the machine.

        Args:
            fields: What it says, its ``kind`` and ``session`` included.
            apply: Takes over what the line says, once it is there. May be called again after an interrupt.
            sync: Put the line on disk before that.

        Raises:
            LedgerError: The last line is a seal, or the line could not be written; the file is then as before. Or
                :meth:`sync` failed; the line is then applied.
        """
        self.settle()
        if self.sealed:
            raise LedgerError(_SEALED)
        if self._read_only:
            raise LedgerError("this ledger was loaded read-only: load it with read_only=False to add to it.")
        entry = {**fields, "v": VERSION, "seq": self.count, "prev": self.head}
        line = canonical(entry)
        after = (self.count + 1, sha256(line), fields["kind"] == SEAL)
        self._begun = _Begun(0 if self._file is None else self._file.size, line, after, apply, sync)
        if self._file is not None:
            try:
                self._file.write(line + b"\n")
            except LedgerError:
                self._begun = None
                raise
        self._finish(self._begun)

    def settle(self) -> None:
        """Finish a line that an interrupt left half done, if the file has all of it; else take it back."""
        begun, file = self._begun, self._file
        if begun is None or (file is not None and (file.closed or file.broken)):
            return
        if file is None or file.has(begun.line + b"\n", begun.offset):
            self._finish(begun)
        else:
            self._begun = None

    def _finish(self, begun: _Begun) -> None:
        if self._file is None:
            self.lines[begun.after[0] - 1 :] = [begun.line]
        else:
            self._file.size = begun.offset + len(begun.line) + 1
        self.count, self.head, self.sealed = begun.after
        failed: LedgerError | None = None
        if begun.synced:
            try:
                self._sync()
            except LedgerError as error:  # the line is there all the same
                failed = error
        begun.apply()
        self._begun = None
        if failed is not None:
            raise failed

    def check_not_sealed(self) -> None:
        """Raise :class:`LedgerError` if the last line is a seal, after which nothing may be added."""
        self.settle()
        if self.sealed:
            raise LedgerError(_SEALED)

    def sync(self) -> None:
        """Put every line on disk, then the anchor.

        Raises:
            LedgerError: That failed. If it failed for the lines, no more lines are accepted.
        """
        self.settle()
        self._sync()

    def _sync(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.write_anchor(self._anchor())

    def anchor(self, name: str | None = None) -> Anchor:
        """Return how far this journal has come."""
        self.settle()
        return self._anchor(name)

    def _anchor(self, name: str | None = None) -> Anchor:
        if name is None:
            name = "memory" if self.path is None else head_path(self.path).name
        return Anchor(self.count, self.head, name)

    def verify(self, anchor: Anchor | None) -> Verification:
        """Read the lines again and check them against ``anchor``, by default ``NAME.head.json``."""
        self.settle()
        if self.path is None:
            anchor = anchor or self.anchor()
            reading = read(b"".join(line + b"\n" for line in self.lines))
            reason = reading.fault or check_anchor(self.lines, anchor)
            return Verification(anchor.name, not reason, reason, reading.sealed)
        return verify_file(self.path, anchor, None if self._file is None else self._anchor("the writer"))

    @property
    def writes(self) -> bool:
        """Whether lines can be appended to a file now."""
        return self._file is not None and not self._file.closed and not self._file.broken

    def close(self) -> None:
        """Flush, and release the lock. Nothing can be appended afterwards."""
        if self._file is not None and not self._file.closed:
            try:
                if not self._file.broken:
                    self.sync()
            finally:
                self._file.close()
