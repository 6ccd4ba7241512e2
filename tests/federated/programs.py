"""A federation of Flower's own programs on the loopback address: SuperLink, SuperNodes, residents, ``serve``."""

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen

import msgspec
import numpy as np

import tacita
from tacita.federated.federation import FederationSettings
from tacita.federated.flower_processes import Security, running, supernode
from tacita.runs.folder import RunFolder
from tests.federated import faulty_join
from tests.federated.federations import rows_of

HUNG = 900.0  # seconds: no federation of these tests takes as long, unless it waits for what never comes
TACITA = [sys.executable, "-m", "tacita", "federate"]


@contextmanager
def held_port() -> Iterator[int]:
    """A port of the loopback address that nobody else is given: a server that asks for it by number may have it.

    A bound socket that does not listen keeps the port from everybody who asks for any free one, and Linux lets a second
    socket with SO_REUSEADDR, as servers have it, bind and listen there. Elsewhere the port is free for the moment.
    """
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        if sys.platform != "linux":
            one.close()
        yield port


class Federation:
    """A server and clients of their own processes, in one folder. Leaving the block ends all of them."""

    def __init__(self, folder: Path, settings: FederationSettings, port: int) -> None:
        self.folder, self.settings, self.address = folder, settings, f"127.0.0.1:{port}"
        given = {name: value for name, value in msgspec.to_builtins(settings).items() if value is not None}
        words = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
        (folder / "federation.toml").write_text("\n".join(words))
        for number in range(settings.clients):
            features, labels = rows_of(number)
            np.savez(folder / f"{number}.npz", features=features.numpy(), labels=labels.numpy())
            place = RunFolder(folder / str(number))
            place.create()
            tacita.Randomness.insecure(number).save(place.key)
        self._started: list[Popen[bytes]] = []

    def __enter__(self) -> "Federation":
        self._stack = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:  # all at once: each takes seconds to end
            process.terminate()
        self._stack.close()

    def start(self, command: list[str], *, home: str, log: str) -> Popen[bytes]:
        """Start a program; its output goes to the file ``log``."""
        process = self._stack.enter_context(running(command, home=self.folder / home, log=self.folder / log))
        self._started.append(process)
        return process

    def serve(self, *more: str) -> Popen[bytes]:
        """Start ``tacita federate serve``."""
        host, port = self.address.split(":")
        words = ["--output", str(self.folder / "server"), "--host", host, "--port", port, "--insecure", *more]
        return self.start(
            [*TACITA, "serve", str(self.folder / "federation.toml"), *words], home="home", log="serve.log"
        )

    def serve_again(self, needed: list[Popen[bytes]], *more: str) -> Popen[bytes]:
        """Start the server in place of one that was killed, which holds the folder until it has ended."""
        while True:
            server, before = self.serve(*more), self._runs()
            self.wait(lambda ended=server.poll, n=before: ended() is not None or self._runs() > n, *needed)
            if server.poll() is None:
                return server

    def _runs(self) -> int:
        return self.said("serve.log").count("Using SuperLink")

    def join(self, number: int, *more: str, **faults: object) -> Popen[bytes]:
        """Start ``tacita federate join`` for a client, with :class:`faulty_join.Faults`."""
        given = msgspec.json.encode({"log": str(self.messages(number)), **faults}).decode()
        words = [str(self.folder / "federation.toml"), str(self.folder / f"{number}.npz"), "--client", str(number)]
        words += ["--output", str(self.folder / str(number)), *more]
        command = [sys.executable, "-P", faulty_join.__file__, given, "federate", "join", *words]
        return self.start(command, home="home", log=f"resident {number}.log")

    def node(self, number: int) -> Popen[bytes]:
        """Start the SuperNode of a client."""
        path = self.folder / str(number) / "private" / "socket"
        command = supernode(self.address, path, Security(insecure=True))
        return self.start(command, home=f"home {number}", log=f"node {number}.log")

    def messages(self, number: int) -> Path:
        """The file of what a client was asked and replied."""
        return self.folder / f"{number}.jsonl"

    def said(self, name: str) -> str:
        """What a program has printed."""
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    def answers(self, number: int, times: int = 1) -> bool:
        """Whether the resident of a client has been ready so many times."""
        return self.said(f"resident {number}.log").count("answers at") >= times

    def activated(self) -> int:
        """How many nodes SuperLink has let in, those that were started anew counted again."""
        return self.said("server/superlink.log").count("Activated node_id")

    def wait(self, condition: Callable[[], bool], *needed: Popen[bytes]) -> None:
        """Wait for a condition, as long as the processes that it needs run."""
        end = time.monotonic() + HUNG
        while not condition():
            ended = [process.args for process in needed if process.poll() is not None]
            assert not ended, f"{ended} ended.\n{self.logs()}"
            assert time.monotonic() < end, self.logs()
            time.sleep(0.1)

    def ended(self, process: Popen[bytes]) -> int:
        """Wait for the end of a program, and return its exit status."""
        self.wait(lambda: process.poll() is not None)
        return process.returncode

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"{path}\n{path.read_text(errors='replace')[-3000:]}" for path in self.folder.rglob("*.log"))
