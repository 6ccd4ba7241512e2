"""Run a command that ends, with all that it has started, when the process that asked for it is gone, however it went.

Place: federated.flower_processes starts it: ``python tied_process.py COMMAND ...``, in a session of its own, with a
pipe as its standard input that only the asking process holds open. A SIGKILL of that process closes the pipe, too. It
imports nothing of tacita, because it runs beside every program of a federation.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

SECONDS_TO_END = 10.0  # between SIGTERM and SIGKILL
SECONDS_BETWEEN_LOOKS = 0.2


def main(command: Sequence[str]) -> int:
    """Run ``command`` to its end, and return its exit status, or 128 and the number of the signal that ended it.

    A SIGTERM is passed on to the command.
    """
    asked = list[int]()  # to end
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while (status := child.poll()) is None:
        while asked:
            child.send_signal(asked.pop())
        readable, _, _ = select.select([sys.stdin], [], [], SECONDS_BETWEEN_LOOKS)
        if readable and not os.read(sys.stdin.fileno(), 1):
            end(child)
    return status if status >= 0 else 128 - status


def end(child: "subprocess.Popen[bytes]") -> None:
    """End all processes of this session: the command by SIGTERM, then all by SIGKILL, this one, too."""
    child.terminate()
    try:
        child.wait(SECONDS_TO_END)
    finally:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
