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
_REAL = {name: getattr(os, name) for name in ("open", *_BY_HANDLE, *_BY_PATH)}
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
            return _REAL[name](*arguments, **more)

        path = _path(name, arguments)
        ours = path is not None and path.is_relative_to(root) and not (name == "open" and not arguments[1] & _CREATES)
        return handle(Call(name, path, arguments, do)) if ours and path is not None else do()

    for name in _REAL:
        setattr(os, name, lambda *arguments, _name=name, **more: answer(_name, *arguments, **more))
    try:
        yield
    finally:
        for name, function in _REAL.items():
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

    A write stores the first half of its bytes before it fails.
    """

    def __init__(self, first: int, number: int, names: tuple[str, ...] = tuple(_REAL)) -> None:
        self.first, self.number, self.names = first, number, names
        self.seen = 0

    def __call__(self, call: Call) -> Any:
        if call.name not in self.names:
            return call.do()
        self.seen += 1
        if self.seen <= self.first:
            return call.do()
        if call.name == "write" and self.number == errno.ENOSPC and self.seen == self.first + 1:
            _REAL["write"](call.arguments[0], call.arguments[1][: len(call.arguments[1]) // 2])
        raise OSError(self.number, os.strerror(self.number))


class Killing:
    """Kills this process before call number ``number``; with ``half``, a write in the middle of it."""

    def __init__(self, number: int, *, half: bool = False) -> None:
        self.number, self.half = number, half
        self.seen = 0

    def __call__(self, call: Call) -> Any:
        if self.seen == self.number:
            if self.half and call.name == "write":
                _REAL["write"](call.arguments[0], call.arguments[1][: len(call.arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen += 1
        return None if call.name == "fsync" else call.do()  # a kill loses nothing that was written
