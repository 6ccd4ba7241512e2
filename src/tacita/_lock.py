"""Locks between processes: one holder at a time, on every system, and no lock that outlives its holder.

Where the system can lock open files (``flock``), the file itself is locked. Elsewhere a lock file ``.NAME.lock`` beside
it is used and removed on release; on Windows too, where locking the file itself would also keep others from *reading*
it. The locks are those of `filelock <https://py-filelock.readthedocs.io>`_. Without any lock of the system (a Python
without ``fcntl``) the lock file names its process, and the lock of a process that is gone is taken over.
"""

import os
import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # filelock warns that only lock files are available, which is handled here
    from filelock import BaseFileLock, FileLock, Timeout, has_fcntl, lock_descriptor

IN_FOLDER = ".tacita.lock"  # name of a folder's lock file, where one is needed


class HeldLock:
    """The lock on a file or folder, held until :meth:`release` or the end of the process.

    A forked child does not hold it. The child must call :meth:`forget`, so that the lock does not outlive the parent.

    Args:
        path: The existing file or folder to lock.
        wait: Whether to wait for another holder; otherwise :class:`BlockingIOError` is raised.
        handle: An open descriptor of ``path``, which the caller closes. Without it, one is opened here.

    Raises:
        BlockingIOError: Another process or object holds the lock.
        OSError: The system cannot lock ``path``.
    """

    def __init__(self, path: Path, *, wait: bool, handle: int | None = None) -> None:
        self._own: int | None = None  # a descriptor that was opened here
        self._beside: BaseFileLock | None = None
        if has_fcntl:
            self._own = os.open(path, os.O_RDONLY) if handle is None else None
            self._lock_descriptor(path, wait, handle)
        else:
            self._lock_beside(path, wait)

    def _lock_descriptor(self, path: Path, wait: bool, handle: int | None) -> None:
        try:
            descriptor = self._own if handle is None else handle
            assert descriptor is not None
            if not lock_descriptor(descriptor, blocking=wait):
                raise BlockingIOError(f"{path.name} is locked.")
        except BaseException:
            self.forget()
            raise

    def _lock_beside(self, path: Path, wait: bool) -> None:
        name = path / IN_FOLDER if path.is_dir() else path.with_name(f".{path.name}.lock")
        lock = FileLock(os.path.realpath(name), thread_local=False)
        try:
            lock.acquire(timeout=-1 if wait else _STALE)
        except Timeout:
            raise BlockingIOError(f"{path.name} is locked.") from None
        self._beside = lock

    def release(self) -> None:
        """Release the lock; a lock on the caller's descriptor ends when the caller closes it."""
        if self._beside is not None:
            self._beside.release()
            self._beside = None
        self.forget()

    def forget(self) -> None:
        """Close the descriptor that was opened here, without releasing a lock file."""
        if self._own is not None:
            os.close(self._own)
            self._own = None


_STALE = 0.5  # seconds, enough to notice that the process named in a lock file is gone
