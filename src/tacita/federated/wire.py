"""What a server and its clients say to each other, as bytes: msgpack of a closed set of records, read strictly.

Place: server's rounds <-> [federated.wire] <-> resident clients. A transport carries the bytes and reads none of them.
The number of bytes of every record follows from public shapes, names and numbers.
"""

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import torch
from torch import Tensor

from tacita.gradients.engine import Shapes

_FLOAT64 = np.dtype("<f8")


class WireError(ValueError):
    """Bytes that are no record of this version, or a record that does not fit the federation."""


class WireTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A float64 tensor: its shape, and its elements in row order, little-endian."""

    shape: tuple[int, ...]
    data: bytes


class Greeting(msgspec.Struct, frozen=True, tag="greeting", forbid_unknown_fields=True):
    """The server asks a node which client it is.

    Attributes:
        federation: The id of the federation.
        challenge: Random bytes, which the reply signs.
        settings: The server's settings, for a client of another federation to say what differs.
    """

    federation: str
    challenge: bytes
    settings: dict[str, str | float | int | bool | None] = {}


class Introduction(msgspec.Struct, frozen=True, tag="introduction", forbid_unknown_fields=True):
    """A node says which client it is, and proves it (:mod:`tacita.federated.identity`).

    Attributes:
        federation: The id of the federation.
        client: The client's number.
        key: The client's public key.
        signature: That key's signature of federation, number and the greeting's challenge.
    """

    federation: str
    client: int
    key: bytes
    signature: bytes


class Broadcast(msgspec.Struct, frozen=True, tag="broadcast", forbid_unknown_fields=True):
    """The server asks a client for a message.

    Attributes:
        federation: The id of the federation.
        round: The number of the round.
        accepted: Number of this client's last message that the server has added up; ``None`` if there is none.
        refused: Why the client's last message was refused, one of :data:`REFUSALS`; empty if it was not.
        params: The model, by parameter name.
    """

    federation: str
    round: int
    accepted: int | None
    refused: str
    params: dict[str, WireTensor]


class Answer(msgspec.Struct, frozen=True, tag="answer", forbid_unknown_fields=True):
    """A client's noisy message.

    Attributes:
        federation: The id of the federation.
        client: The client's number.
        number: The number of the message; it grows with every message of the client.
        values: The noisy message, by parameter name.
    """

    federation: str
    client: int
    number: int
    values: dict[str, WireTensor]


Record = Greeting | Introduction | Broadcast | Answer
REFUSALS = ("unreadable", "not of this client", "an old number", "names or shapes", "not finite", "too long")

_decoder = msgspec.msgpack.Decoder(Record)
_encoder = msgspec.msgpack.Encoder()


def to_wire(record: Record) -> bytes:
    """Return a record as bytes."""
    return _encoder.encode(record)


def from_wire(data: bytes) -> Record:
    """Return the record that :func:`to_wire` wrote.

    Raises:
        WireError: The bytes are no record. The message quotes none of them.

    Example:
        >>> from_wire(to_wire(Greeting("clinics", b"?")))
        Greeting(federation='clinics', challenge=b'?', settings={})
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        raise WireError("the bytes are no record of this version.") from None


def wire_tensors(tensors: Mapping[str, Tensor]) -> dict[str, WireTensor]:
    """Return tensors as float64 for the wire, in the order of their names."""
    return {
        name: WireTensor(tuple(x.shape), x.detach().cpu().double().contiguous().numpy().astype(_FLOAT64).tobytes())
        for name, x in sorted(tensors.items())
    }


def tensors_of(found: Mapping[str, WireTensor], shapes: Shapes) -> dict[str, Tensor]:
    """Return the tensors of a record, float64, in memory of their own.

    Raises:
        WireError: Names, shapes or lengths are not those of ``shapes``.
    """
    if found.keys() != shapes.keys():
        raise WireError(f"the tensors must be {sorted(shapes)}.")
    tensors = {}
    for name, shape in shapes.items():
        one = found[name]
        if one.shape != tuple(shape) or len(one.data) != _FLOAT64.itemsize * math.prod(shape):
            raise WireError(f"the tensor {name!r} must be float64 of shape {tuple(shape)}.")
        array = np.frombuffer(one.data, dtype=_FLOAT64).astype(np.float64)  # a copy, which may be written to
        tensors[name] = torch.from_numpy(array).reshape(tuple(shape))
    return tensors


def largest_record(shapes: Shapes) -> int:
    """Return the most bytes that a record with tensors of these shapes may have."""
    names = sum(len(name.encode()) + 64 for name in shapes)
    return _FLOAT64.itemsize * sum(math.prod(shape) for shape in shapes.values()) + 2 * names + 2**16
