"""Frames over a Unix socket: a message with its length in front, of a bounded size. Nothing is pickled.

Place: the transport's client app -> [federated.frames] -> the resident client, both on one machine and of one user. It
imports neither torch nor a transport, because the client app is a new process in every round.
"""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MAGIC = b"tacita1\n"
LARGEST = 2**31  # bytes of a frame
NOTHING = b""  # the only reply of a client that has no message, whatever the reason is
SECONDS_TO_READ = 30.0  # for a frame that is on its way on one machine
_PIECE = 2**20


def write_frame(connection: socket.socket, payload: bytes) -> None:
    """Send one frame: eight bytes that name the format, eight bytes with the length, the payload."""
    connection.sendall(MAGIC + len(payload).to_bytes(8, "little"))
    connection.sendall(payload)


def read_frame(connection: socket.socket, *, largest: int = LARGEST) -> bytes:
    """Return the payload of the next frame.

    Args:
        connection: A connected socket.
        largest: The most bytes that a payload may have. A longer one is refused before it is read.

    Raises:
        ValueError: The frame is of another format, is longer than ``largest``, or ends early.
    """
    head = _exactly(connection, len(MAGIC) + 8)
    length = int.from_bytes(head[len(MAGIC) :], "little")
    if head[: len(MAGIC)] != MAGIC or length > largest:
        raise ValueError(f"a frame must begin with {MAGIC!r} and hold at most {largest} bytes.")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = connection.recv(min(_PIECE, count - len(found)))
        if not piece:
            raise ValueError("a frame ended early.")
        found += piece
    return bytes(found)


def ask(path: str | os.PathLike[str], payload: bytes, *, seconds: float) -> bytes:
    """Return the reply of the resident that listens at ``path``; :data:`NOTHING` if there is none, whatever happened.

    No exception leaves this function: a transport might carry its text to the server.

    Args:
        path: The resident's socket.
        payload: The request.
        seconds: How long to wait for the reply.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(seconds)
            connection.connect(os.fspath(path))
            write_frame(connection, payload)
            return read_frame(connection)
    except Exception:
        return NOTHING


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Listen at ``path`` for the block, so that only the owner of the folder can connect; remove the socket after it.

    A socket that a killed process left is replaced. The caller makes sure that no other process listens there.

    Raises:
        ValueError: The folder may be entered by other users, ``path`` is too long for a socket, or it is a file.
    """
    _check_place(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        before = os.umask(0o177)  # so that the socket has the mode 0600 from the start
        try:
            listener.bind(os.fspath(path))
        except OSError as error:
            if "too long" in str(error):
                raise ValueError(
                    f"the socket must have a path of at most about 100 bytes, got {os.fspath(path)!r}: choose a "
                    "shorter one."
                ) from None
            raise
        finally:
            os.umask(before)
        listener.listen()
        try:
            yield listener
        finally:
            with suppress(OSError):
                path.unlink()


def _check_place(path: Path) -> None:
    """Raise unless only the owner may enter the folder of ``path``; remove a socket that was left there."""
    if stat.S_IMODE(path.parent.stat().st_mode) & 0o077:
        raise ValueError(f"the socket must be in a folder of mode 0700, got {os.fspath(path)!r}.")
    if path.is_socket():
        path.unlink()
    elif path.exists():
        raise ValueError(f"the socket must be a new path, got the file {os.fspath(path)!r}.")
