"""Durable files: each is written as a whole or not at all.

If the process is killed or the machine loses power at any instant, either the old file or the new one is there. On
Windows, folders cannot be flushed (NTFS keeps a journal of names itself) and modes have no effect: there, the folder of
a private file decides who may read it.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

BINARY = getattr(os, "O_BINARY", 0)  # without it Windows would change line ends, and so hashes
ON_WINDOWS = os.name == "nt"
_TRIES = 20  # attempts to replace a file; Windows refuses while the file is being read
_PAUSE = 0.05  # seconds between attempts


def replace_durably(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` so that it always holds either the old bytes or all of the new ones.

    A temporary file beside it, created with ``mode``, is written, flushed to disk and renamed. Then the folder is
    flushed.

    Raises:
        OSError: The disk is full or the folder is not writable; the old file is unchanged. The error names ``path``.
    """
    replace_in_pieces(path, (data,), mode=mode)


def _rename(temporary: Path, path: Path) -> None:
    for _ in range(_TRIES if ON_WINDOWS else 0):
        with suppress(PermissionError):  # another process has the old file open, such as a virus scanner
            return os.replace(temporary, path)
        time.sleep(_PAUSE)
    return os.replace(temporary, path)


def flush(handle: int) -> None:
    """Flush everything written to ``handle`` to disk.

    On macOS ``fsync`` leaves the data in the cache of the drive, so the drive is told to flush it too if possible.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with suppress(OSError):  # not supported by this file system
            fcntl.fcntl(handle, full)
            return
    os.fsync(handle)


def replace_in_pieces(path: Path, pieces: Iterable[bytes], *, mode: int = 0o644) -> None:
    """Write ``pieces`` to ``path`` like :func:`replace_durably`, without holding all of them in memory.

    Raises:
        OSError: As in :func:`replace_durably`. An error from ``pieces`` propagates, and the old file is unchanged.
    """
    with _named(path):
        temporary = temporary_beside(path)
        temporary.unlink(missing_ok=True)  # left by a process that was killed; its mode may differ
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode)
        try:
            with os.fdopen(handle, "wb", 0) as file:
                for piece in pieces:
                    written = 0
                    while written < len(piece):
                        written += os.write(file.fileno(), piece[written:])
                flush(file.fileno())
            _rename(temporary, path)
        except (Exception, KeyboardInterrupt):
            with suppress(OSError):  # if this fails too, the next write removes the file
                temporary.unlink(missing_ok=True)
            raise
        flush_folder(path.parent)


def make_folder(path: Path, *, mode: int = 0o777) -> None:
    """Create the folder ``path`` and its missing parents, and flush their names to disk.

    Otherwise a loss of power could remove a ledger with its folder, although each of its lines had been flushed.

    Raises:
        OSError: A folder cannot be created, or a part of the path is a file.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in (*reversed(missing), path):
        with _named(folder):
            folder.mkdir(mode if folder == path else 0o777, exist_ok=True)
            with suppress(PermissionError):  # a parent folder that may be traversed but not opened
                flush_folder(folder.parent)


def remove_durably(path: Path) -> None:
    """Remove ``path`` and the temporary file of an interrupted write, if they exist.

    It is not claimed that the bytes are gone: an SSD, a snapshot or a backup may keep them.
    """
    with _named(path):
        path.unlink(missing_ok=True)
        temporary_beside(path).unlink(missing_ok=True)
        if path.parent.is_dir():
            flush_folder(path.parent)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Make system errors name ``path``; most errors of calls on an open file do not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def temporary_beside(path: Path) -> Path:
    """Return the path of the temporary file for ``path``."""
    return path.with_name(f".{path.name}.tmp")


def flush_folder(folder: Path) -> None:
    """Flush the names in ``folder`` to disk, if the system can."""
    if ON_WINDOWS:
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        flush(handle)
    finally:
        os.close(handle)
