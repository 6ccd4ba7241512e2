"""Files that are written whole or not at all.

Place: the ground; imports nothing of tacita. A process that is killed at any instant, and a machine that loses its
power, leave the old file or the new one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def replace_durably(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` so that, whatever happens, it holds either the old bytes or all of the new ones.

    A temporary file beside it, created with ``mode``, is written, flushed to disk and renamed; then the folder is
    flushed.

    Raises:
        OSError: The disk is full or the folder cannot be written; the old file is untouched. The error names ``path``.
    """
    with _named(path):
        _replace(path, data, mode)
        flush_folder(path.parent)


def _replace(path: Path, data: bytes, mode: int) -> None:
    temporary = temporary_beside(path)
    temporary.unlink(missing_ok=True)  # of a process that was killed; its mode may be another
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb", 0) as file:
            written = 0
            while written < len(data):
                written += os.write(file.fileno(), data[written:])
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):  # the disk may refuse this too; the next write removes it
            temporary.unlink(missing_ok=True)
        raise


def make_folder(path: Path, *, mode: int = 0o777) -> None:
    """Make ``path`` and what is missing above it; its name is on disk when this returns.

    Without that a loss of power could take a ledger with its folder, although each of its lines had been flushed.

    Raises:
        OSError: A folder cannot be made, or a part of the path is a file.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in (*reversed(missing), path):
        with _named(folder):
            folder.mkdir(mode if folder == path else 0o777, exist_ok=True)
            with suppress(PermissionError):  # a folder above that may be passed, and not read
                flush_folder(folder.parent)


def remove_durably(path: Path) -> None:
    """Unlink ``path`` and what an interrupted write left beside it, if they are there.

    That the bytes are gone is not claimed: an SSD, a snapshot or a backup may keep them.
    """
    with _named(path):
        path.unlink(missing_ok=True)
        temporary_beside(path).unlink(missing_ok=True)
        if path.parent.is_dir():
            flush_folder(path.parent)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What the system refuses names ``path``: most calls on an open file do not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def temporary_beside(path: Path) -> Path:
    """Where the new bytes of ``path`` are until they are whole."""
    return path.with_name(f".{path.name}.tmp")


def flush_folder(folder: Path) -> None:
    """Put on disk which names ``folder`` holds."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
