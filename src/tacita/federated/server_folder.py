"""The folder of a federation's server: its state, its clients' public keys, its model. Nothing in it is private."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

import numpy as np

from tacita._files import make_folder, replace_durably
from tacita._lock import HeldLock
from tacita.errors import ResumeError
from tacita.federated import tied_process
from tacita.federated.coordinator import Coordinator
from tacita.runs.folder import RunFolder

PAUSE = 0.2  # seconds between two tries
SECONDS_TO_DIE = tied_process.SECONDS_TO_END + 5  # of all that a killed command has started


class ServerFolder:
    """The files of a server, and the locks that keep a second server out.

    Two servers of one federation would each ask the clients for every round, so that the clients' messages would be
    used up, and overwrite each other's state.

    Attributes:
        path: The folder.
        state: The server's state, from which one that was killed goes on.
        clients: The public keys of the clients.
        model: The released model.
        rounds: What is public of each round, a JSON object a line.
        settings: The settings of the federation.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.state = self.path / "server.safetensors"
        self.clients = self.path / "clients.json"
        self.model = self.path / "model.npz"
        self.rounds = self.path / "rounds.jsonl"
        self.settings = self.path / "settings.json"
        self._asked = self.path / "asked.json"  # the number of the round that is under way, and how often it was asked
        self._lock = self.path / "server.lock"
        self._serving: os.stat_result | None = None  # of the lock file, while it is held

    @contextmanager
    def commanded(self) -> Iterator[None]:
        """Hold the folder for the command that starts the server, for the block.

        If the last command was killed, this waits until what it has started has ended.

        Raises:
            ResumeError: Another command holds it, a server is running in it, or it is a client's.
        """
        self._check_own()
        make_folder(self.path)
        with self._held(self.path):
            with self.serving(wait=SECONDS_TO_DIE):  # let go again: the server that is started takes it
                pass
            yield

    @contextmanager
    def serving(self, *, wait: float = 0.0) -> Iterator[None]:
        """Hold the folder for the server itself, for the block, whoever has started it.

        Args:
            wait: How many seconds to wait for another server to end.

        Raises:
            ResumeError: Another server holds it, or it is a client's.
        """
        self._check_own()
        make_folder(self.path)
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            with self._held(self._lock, handle, wait=wait):
                self._serving = os.fstat(handle)
                self._check_state()
                try:
                    yield
                finally:
                    self._serving = None
        finally:
            os.close(handle)

    @contextmanager
    def _held(self, path: Path, handle: int | None = None, *, wait: float = 0.0) -> Iterator[None]:
        end, lock = time.monotonic() + wait, None
        while lock is None:
            try:
                lock = HeldLock(path, wait=False, handle=handle)
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise ResumeError(
                        f"another server of a federation is running in {str(self.path)!r}: wait until it ends, or stop "
                        "it. Another federation needs a folder of its own."
                    ) from None
                time.sleep(PAUSE)
        try:
            yield
        finally:
            lock.release()

    def _check_own(self) -> None:
        """Raise ``ResumeError`` if the folder is that of a client or of another run."""
        run = RunFolder(self.path)
        if run.private.exists() or run.ledger.exists():
            raise ResumeError(
                f"{str(self.path)!r} is the folder of a client or of another run: a server needs a folder of its own."
            )

    def _check_state(self) -> None:
        """Raise ``ResumeError`` if the server had made a round here, and its state is gone."""
        if self.model.exists() and not self.state.exists():
            raise ResumeError(
                f"{self.state.name} of {os.fspath(self.path)!r} is missing, and a round was made there: restore it. "
                "Clients that remember a message would not answer a server that has forgotten it. A new federation "
                "needs a folder and a name of its own."
            )

    def _check_held(self) -> None:
        """Raise ``ResumeError`` if the lock that this server holds is no longer the one in the folder."""
        if self._serving is None:
            return
        try:
            there = os.path.samestat(self._lock.stat(), self._serving)
        except OSError:
            there = False
        if not there:
            raise ResumeError(
                f"{self._lock.name} of {str(self.path)!r} was removed or replaced while the server was running, so "
                "that another server can have started there: this one ends. Start one of them again."
            )

    def begin(self, number: int) -> None:
        """Write down that round ``number`` is asked, once more if the server was stopped in it before."""
        replace_durably(self._asked, json.dumps([number, self.times_asked(number) + 1]).encode())

    def times_asked(self, number: int) -> int:
        """Return how often round ``number``, the last one that was begun or the next, was asked."""
        with suppress(OSError, ValueError):  # it is a note, and no run ends for want of it
            last, times = json.loads(self._asked.read_bytes())
            return times if last == number else 0
        return 0

    def publish(self, coordinator: Coordinator) -> None:
        """Write the server's model, which is released, with an array for each parameter.

        Raises:
            ResumeError: The lock that :meth:`serving` holds was removed, so that another server may be running here.
        """
        self._check_held()
        buffer = BytesIO()
        np.savez(buffer, allow_pickle=False, **{name: x.numpy() for name, x in coordinator.params.items()})
        replace_durably(self.model, buffer.getvalue())
