"""Records as bytes: read strictly, bounded, of a size that public shapes decide; frames over a Unix socket."""

import socket
import stat
import subprocess
import sys
import threading
from contextlib import suppress

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacita.federated import frames
from tacita.federated.wire import (
    Answer,
    Broadcast,
    Greeting,
    Introduction,
    WireError,
    WireTensor,
    from_wire,
    largest_record,
    tensors_of,
    to_wire,
    wire_tensors,
)

SHAPES = {"weight": torch.Size([2, 3]), "bias": torch.Size([2])}
TENSORS = {"weight": torch.arange(6.0, dtype=torch.float64).view(2, 3), "bias": torch.tensor([1e-300, -0.0]).double()}


def answer(**change):
    return Answer(**{"federation": "clinics", "client": 1, "number": 7, "values": wire_tensors(TENSORS), **change})


def test_a_record_comes_back_bit_for_bit():
    record = from_wire(to_wire(answer()))
    assert isinstance(record, Answer)
    found = tensors_of(record.values, SHAPES)
    assert all(torch.equal(found[name], x) and found[name].dtype == x.dtype for name, x in TENSORS.items())
    assert torch.signbit(found["bias"][1])
    found["bias"] += 1  # memory of its own


@pytest.mark.parametrize(
    "change",
    [
        {"weight": WireTensor((2, 3), b"\0" * 40)},  # too few bytes
        {"weight": WireTensor((3, 2), b"\0" * 48)},
        {"weight": WireTensor((-2, -3), b"\0" * 48)},
        {"more": WireTensor((), b"\0" * 8)},
    ],
)
def test_tensors_of_other_names_or_shapes_are_refused(change):
    with pytest.raises(WireError, match="tensor"):
        tensors_of({**wire_tensors(TENSORS), **change}, SHAPES)
    with pytest.raises(WireError, match="tensors must be"):
        tensors_of({"weight": wire_tensors(TENSORS)["weight"]}, SHAPES)


@given(st.binary(max_size=300) | st.binary(max_size=40).map(lambda tail: to_wire(answer())[:-20] + tail))
def test_any_bytes_are_a_record_or_refused(data):
    with suppress(WireError):
        assert from_wire(to_wire(from_wire(data))) == from_wire(data)


@pytest.mark.parametrize(
    "record",
    [
        Greeting("clinics", b"?"),
        Introduction("clinics", 1, b"k", b"s"),
        Broadcast("clinics", 0, None, "", {}),
        answer(),
    ],
    ids=lambda record: type(record).__name__,
)
def test_an_unknown_field_is_refused(record):
    assert from_wire(to_wire(record)) == record
    more = {**msgspec.msgpack.decode(to_wire(record)), "rows": 99}
    with pytest.raises(WireError):
        from_wire(msgspec.msgpack.encode(more))


def test_an_unknown_field_of_a_tensor_is_refused():
    record = msgspec.msgpack.decode(to_wire(answer()))
    record["values"]["bias"]["rows"] = 99
    with pytest.raises(WireError):
        from_wire(msgspec.msgpack.encode(record))


def test_records_fit_into_the_largest():
    large = Broadcast("f" * 100, 2**40, 2**40, "too long", wire_tensors(TENSORS))
    assert len(to_wire(large)) < largest_record(SHAPES)


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(10)
        other.settimeout(10)
        yield one, other


@pytest.mark.parametrize("payload", [b"", b"x", b"y" * 3_000_000])
def test_a_frame_is_read_whole(pair, payload):
    writer = threading.Thread(target=frames.write_frame, args=(pair[0], payload))
    writer.start()
    assert frames.read_frame(pair[1]) == payload
    writer.join()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frames.MAGIC + (2**62).to_bytes(8, "little"),
        frames.MAGIC + b"\5" + b"\0" * 7 + b"abc",
    ],
    ids=["another format", "too long", "ends early"],
)
def test_what_is_no_frame_is_refused(pair, data):
    pair[0].sendall(data)
    pair[0].close()
    with pytest.raises(ValueError, match="frame"):
        frames.read_frame(pair[1], largest=100)


@pytest.fixture
def private(tmp_path):
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder


def test_only_the_owner_can_connect(private, tmp_path):
    with frames.listening(private / "socket"):
        assert stat.S_IMODE((private / "socket").stat().st_mode) == 0o600
    assert not (private / "socket").exists()
    private.chmod(0o750)
    with pytest.raises(ValueError, match="mode 0700"), frames.listening(private / "socket"):
        pass


def test_a_socket_that_was_left_is_replaced_and_a_file_is_not(private):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(private / "socket"))
    with frames.listening(private / "socket"):
        pass
    (private / "file").write_text("mine")
    with pytest.raises(ValueError, match="must be a new path"), frames.listening(private / "file"):
        pass
    with pytest.raises(ValueError, match="shorter"), frames.listening(private / ("long" * 60)):
        pass


@pytest.mark.parametrize("reply", [b"", b"no frame at all", frames.MAGIC + (2**62).to_bytes(8, "little")])
def test_asking_never_raises(private, reply):
    path = private / "socket"
    assert frames.ask(path, b"x", seconds=5) == frames.NOTHING  # nobody listens
    assert frames.ask("\0" * 300, b"x", seconds=5) == frames.NOTHING  # no path
    with frames.listening(path) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                frames.read_frame(connection)
                connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        assert frames.ask(path, b"x", seconds=5) == frames.NOTHING
        thread.join()


def test_the_client_app_needs_no_torch():
    """It is a new process in every round: importing torch would take longer than the round."""
    script = "import sys; from tacita.federated import frames; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "flwr"} & set(ran.stdout.split())


def test_tensors_have_the_same_bytes_on_every_machine():
    one = wire_tensors({"x": torch.tensor([[1.0], [-2.0]], dtype=torch.float32)})["x"]
    assert one.shape == (2, 1)
    assert one.data == bytes.fromhex("000000000000f03f00000000000000c0")


def test_what_is_read_may_be_written_to():
    """In memory of its own: the bytes of a record do not change."""
    record = wire_tensors({"x": torch.zeros(2)})
    tensors_of(record, {"x": torch.Size([2])})["x"].add_(1)
    assert record["x"].data == bytes(16)
