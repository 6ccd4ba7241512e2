"""The system calls by which a run changes its folder: counted, made to fail, or written down."""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CREATES = os.O_CREAT | os.O_WRONLY | os.O_RDWR
_BY_HANDLE = ("write", "fsync", "ftruncate")
_BY_PATH = ("replace", "rename", "link", "unlink", "remove", "rmdir", "mkdir", "truncate", "symlink")
REAL = {name: getattr(os, name) for name in ("open", *_BY_HANDLE, *_BY_PATH)}
GROWS = ("open", "write", "fsync", "replace", "rename", "link", "mkdir", "symlink")  # what a full disk may refuse


@dataclass(frozen=True)
class Call:
    """One call on something under the watched folder.

    Attributes:
        name: "write", "fsync", ...
        path: What it acts on.
        arguments: As the caller gave them.
        do: Carries it out; returns what the system does.
    """

    name: str
    path: Path
    arguments: tuple[Any, ...]
    do: Callable[[], Any]


@contextmanager
def watched(root: Path, handle: Callable[[Call], Any]) -> Iterator[None]:
    """Within the block, ``handle`` answers every call that changes something under ``root``."""

    def answer(name: str, *arguments: Any, **more: Any) -> Any:
        def do() -> Any:
            return REAL[name](*arguments, **more)

        path = _path(name, arguments)
        ours = path is not None and path.is_relative_to(root) and not (name == "open" and not arguments[1] & _CREATES)
        return handle(Call(name, path, arguments, do)) if ours and path is not None else do()

    before = {name: getattr(os, name) for name in REAL}
    for name in REAL:
        setattr(os, name, lambda *arguments, _name=name, **more: answer(_name, *arguments, **more))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(os, name, function)


def _path(name: str, arguments: tuple[Any, ...]) -> Path | None:
    if name in _BY_HANDLE:
        try:
            return Path(os.readlink(f"/proc/self/fd/{arguments[0]}"))
        except OSError:
            return None
    return Path(os.path.abspath(os.fsdecode(arguments[0])))


class Counting:
    """Lets everything through, and counts."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, call: Call) -> Any:
        self.names.append(call.name)
        return call.do()


class Failing:
    """From call number ``first`` on, calls of these names fail, as on a disk that is full, broken or read-only.

    A write on a full disk stores the first half of its bytes before it fails.

    Attributes:
        times: How many calls failed.
    """

    def __init__(self, first: int, number: int, *, names: tuple[str, ...] = tuple(REAL), once: bool = False) -> None:
        self.first, self.number, self.names, self.once = first, number, names, once
        self.times = self._seen = 0

    def __call__(self, call: Call) -> Any:
        if call.name not in self.names:
            return call.do()
        self._seen += 1
        if self._seen <= self.first or (self.once and self.times):
            return call.do()
        if call.name == "write" and self.number == errno.ENOSPC and not self.times:
            REAL["write"](call.arguments[0], call.arguments[1][: len(call.arguments[1]) // 2])
        self.times += 1
        named = () if call.name in _BY_HANDLE else (str(call.path),)  # as the system does
        raise OSError(self.number, os.strerror(self.number), *named)


class Killing:
    """Kills this process before call number ``number``; with ``half``, a write in the middle of it."""

    def __init__(self, number: int, *, half: bool = False) -> None:
        self.number, self.half = number, half
        self.seen = 0

    def __call__(self, call: Call) -> Any:
        if self.seen == self.number:
            if self.half and call.name == "write":
                REAL["write"](call.arguments[0], call.arguments[1][: len(call.arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen += 1
        return call.do()


class Stopped(BaseException):
    """Not an Exception: nothing tidies up after it."""


class Stopping:
    """As :class:`Killing` for the disk, without a process of its own: from call ``number`` on, none is made."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen = 0

    def __call__(self, call: Call) -> Any:
        if self.seen >= self.number:
            raise Stopped
        self.seen += 1
        return call.do()
