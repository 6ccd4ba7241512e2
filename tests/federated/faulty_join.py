"""``tacita federate join`` that writes down what it is asked and replies, and fails in the rounds that it is told.

``python faulty_join.py FAULTS federate join ...``; faults are :class:`Faults` in JSON.
"""

import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import torch

from tacita.cli import main
from tacita.federated.resident import Resident
from tacita.federated.wire import Answer, Broadcast, from_wire, to_wire, wire_tensors


class Exchange(msgspec.Struct, frozen=True):
    """A broadcast that a resident was given, and the message that it had for it, whether that was sent or not."""

    round: int
    request: bytes
    reply: bytes


class Faults(msgspec.Struct, frozen=True):
    """What goes wrong, by the number of the round.

    Attributes:
        log: The file that every exchange is added to, before the reply is sent.
        killed: Dies of SIGKILL once its message is on disk and not yet sent.
        waits: Has its message, and waits until the file ``go`` is there before sending it.
        spoils: Sends a message that is far too long.
        go: The file that is waited for.
    """

    log: str
    killed: int | None = None
    waits: int | None = None
    spoils: int | None = None
    go: str = ""


def exchanges(log: Path) -> list[Exchange]:
    """Return what a resident wrote down."""
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    return [msgspec.json.decode(line, type=Exchange) for line in lines]


def spoilt(reply: bytes) -> bytes:
    """Return a message with elements of 1e9 in place of a client's."""
    record = from_wire(reply)
    assert isinstance(record, Answer)
    values = wire_tensors({name: torch.full(x.shape, 1e9, dtype=torch.float64) for name, x in record.values.items()})
    return to_wire(msgspec.structs.replace(record, values=values))


def fail(faults: Faults) -> None:
    """Plant the faults."""
    whole = Resident.answer

    def answer(self: Resident, request: bytes) -> bytes:
        reply, record = whole(self, request), from_wire(request)
        if not isinstance(record, Broadcast):
            return reply
        with open(faults.log, "ab") as file:
            file.write(msgspec.json.encode(Exchange(record.round, request, reply)) + b"\n")
        if record.round == faults.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        while record.round == faults.waits and not os.path.exists(faults.go):
            time.sleep(0.1)
        return spoilt(reply) if record.round == faults.spoils else reply

    Resident.answer = answer


if __name__ == "__main__":
    fail(msgspec.json.decode(sys.argv[1], type=Faults))
    sys.argv[:2] = ["tacita"]
    sys.exit(main())
