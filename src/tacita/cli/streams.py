"""Standard output that nobody reads any more, as after ``| head``."""

import os
import sys
from typing import TextIO


def drop_output() -> bool:
    """Send what would go to closed pipes nowhere, and return whether standard output or error was one.

    Without it Python complains when it ends, because it cannot write what is left.
    """
    return any([_drop(stream) for stream in (sys.stdout, sys.stderr) if _is_closed(stream)])


def _is_closed(stream: TextIO) -> bool:
    """Return whether nobody reads a stream; what could not be written is still in its buffer."""
    try:
        stream.write("")
        stream.flush()
    except BrokenPipeError:
        return True
    return False


def _drop(stream: TextIO) -> bool:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return True
