"""Standard output that nobody reads any more, as after ``| head``."""

import os
import select
import sys
from typing import TextIO


def drop_output() -> bool:
    """Send what would go to closed pipes nowhere, and return whether standard output or error was one.

    Without it Python complains when it ends, because it cannot write what is left.
    """
    return any([_drop(stream) for stream in (sys.stdout, sys.stderr) if _is_closed(stream)])


def _is_closed(stream: TextIO) -> bool:
    """Return whether a stream is a pipe that nobody reads."""
    try:
        stream.flush()  # what could not be written may still be in its buffer
        if not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # an error is reported, whatever is asked for
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except BrokenPipeError:
        return True
    except (OSError, ValueError):  # it has no file, or was closed
        return False


def _drop(stream: TextIO) -> bool:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return True
