"""Flower's own programs, started with flags for machines without a network: SuperLink, SuperNode, ``flwr run``.

Nothing is installed at run time, and Flower's telemetry is off. Whether the connection is encrypted has no default.
"""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tacita import _validate
from tacita._counted import counted
from tacita._extras import not_installed
from tacita._files import make_folder, replace_durably
from tacita.errors import TacitaError
from tacita.federated import tied_process
from tacita.federated.algorithm_settings import hold_to
from tacita.federated.app_folder import APP
from tacita.federated.federation import FederationSettings
from tacita.federated.server_folder import PAUSE, SECONDS_TO_DIE, ServerFolder

SECONDS_TO_START = 120.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a SuperNode that has ended is started again
LAST_PORT = 65535
QUIETLY = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


@dataclass(frozen=True, kw_only=True)
class Security:
    """How a connection is protected, as Flower's flags have it.

    Attributes:
        insecure: No encryption: for one machine, or inside a tunnel of your own.
        certificate, key, authority: PEM files of the server's TLS certificate, its key, and of the authority that
            signed it. A client needs the authority's alone.
    """

    insecure: bool = False
    certificate: str | None = None
    key: str | None = None
    authority: str | None = None

    def of_server(self) -> list[str]:
        """Return SuperLink's flags."""
        self._check(("certificate", "key", "authority"))
        if self.insecure:
            return ["--insecure"]
        files = {"ssl-certfile": self.certificate, "ssl-keyfile": self.key, "ssl-ca-certfile": self.authority}
        return [word for flag, path in files.items() for word in (f"--{flag}", str(Path(path or "").resolve()))]

    def of_client(self) -> list[str]:
        """Return SuperNode's flags."""
        self._check(("authority",))
        return ["--insecure"] if self.insecure else ["--root-certificates", str(Path(self.authority or "").resolve())]

    def _check(self, needed: Sequence[str]) -> None:
        given = [name for name in needed if getattr(self, name) is not None]
        if self.insecure and given:
            raise ValueError(f"insecure must be left out with {', '.join(given)}: the connection is encrypted.")
        if not self.insecure and len(given) < len(needed):
            raise ValueError(
                f"{' and '.join(needed)} must be given, or insecure: whether the connection is encrypted is never "
                "chosen for you."
            )


def program(name: str) -> str:
    """Return the path of one of Flower's programs.

    Raises:
        TacitaError: Flower is not installed.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise TacitaError(not_installed(f"{name}, a program of Flower,", "federated"))
    return found


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs; ``home`` is where they keep their files."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **QUIETLY, "FLWR_HOME": str(home), "PATH": path}


@contextmanager
def running(command: Sequence[str], *, home: Path, log: Path | None = None) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program for the block, and end it and what it started, also if this process is killed.

    Args:
        command: The program and its arguments.
        home: Where Flower's programs keep their files.
        log: The file that its output is added to; by default it goes where this process's does.
    """
    tied = [sys.executable, "-I", "-S", tied_process.__file__, *command]
    with ExitStack() as stack:
        file = None if log is None else stack.enter_context(log.open("ab"))
        process = subprocess.Popen(  # the pipe closes when this process ends, however it does
            tied, env=environment(home), stdout=file, stderr=file, stdin=subprocess.PIPE, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its own session: these are its children alone
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def kept_running(
    command: Callable[[], Sequence[str]], *, home: Path, log: Path, tell: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Run a SuperNode for the block, and start it again when it has ended, as it does when its server was replaced.

    The pause before a new start doubles up to a minute, unless it ran for a minute. ``command`` returns the command of
    a start, and ``tell`` is told of an end; the rest is as in :func:`running`.

    Yields:
        A function that starts it if it is not running and the pause is over: call it often.
    """
    pause, due, process = FIRST_PAUSE, 0.0, None
    with ExitStack() as stack:

        def look() -> None:
            nonlocal pause, due, process
            now = time.monotonic()
            if process is None and now >= due:
                process, due = stack.enter_context(running(command(), home=home, log=log)), now + LONGEST_PAUSE
            elif process is not None and process.poll() is not None:
                stack.close()  # ends what it has started
                pause = FIRST_PAUSE if now > due else min(2 * pause, LONGEST_PAUSE)
                tell(f"the SuperNode has ended, {os.fspath(log)!r} says why: it is started again in {pause:.0f} s.")
                process, due = None, now + pause

        yield look


def free_port() -> int:
    """Return a port that is free on the loopback address now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def check_port(host: str, port: int, *, wait: float = 0.0) -> None:
    """Raise ``TacitaError`` unless a server can listen at the address: another one would be taken for it.

    Args:
        host, port: The address.
        wait: How many seconds to wait while the address is in use.
    """
    end = time.monotonic() + wait
    while True:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, protocol) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                return one.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= end:
                raise TacitaError(
                    f"no server can listen at {host}:{port}: {error.strerror or error}. Stop what listens there, or "
                    "give another --port or --host."
                ) from None
        time.sleep(PAUSE)


def wait_for_port(host: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until something listens at the address.

    Raises:
        TacitaError: The process ended, or nothing listened in time.
    """
    end = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise TacitaError(f"Flower did not start at {host}:{port}: {str(log)!r} says why.")


def quoted(name: str, value: str) -> str:
    """Return a string as Flower's configuration has it, between quotation marks.

    Raises:
        ValueError: It holds a quotation mark, which Flower takes for the end, or what cannot be printed.
    """
    if '"' in value or not value.isprintable():
        raise ValueError(f"{name} must have no quotation mark and no control character, got {value!r}: rename it.")
    return json.dumps(value, ensure_ascii=False)


def supernode(address: str, path: Path, security: Security, *, key: str | None = None) -> list[str]:
    """Return the command of a SuperNode that hands broadcasts to the resident at the socket ``path``.

    Args:
        address: SuperLink's HOST:PORT.
        path: The resident's socket.
        security: How the connection is protected.
        key: The file of the node's private key, if the server authenticates nodes.
    """
    mine = [] if key is None else ["--auth-supernode-private-key", str(Path(key).resolve())]
    return [
        *(program("flower-supernode"), "--superlink", address, *security.of_client(), *mine),
        *("--host", "127.0.0.1", "--port", str(free_port()), "--node-config"),
        f"socket={quoted('socket', str(path.resolve()))}",
    ]


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A federation's server on this machine: SuperLink and one run of the app.

    Attributes:
        federation: The file of settings.
        output: The folder of the server.
        host, port: Where SuperLink listens.
        security: How connections are protected.
        node_keys: Files of the public keys of the nodes that may take part; empty to let every node in.
        minimum_clients: Number of clients to wait for before a round; 0 for all.
        seconds: How long to wait for messages.
        model, test: The name of the network's callable, and a file of public rows; empty for none.
    """

    federation: str
    output: str
    host: str
    port: int
    security: Security
    node_keys: tuple[str, ...] = ()
    minimum_clients: int = 0
    seconds: float = 600.0
    model: str = ""
    test: str = ""

    @property
    def _home(self) -> Path:
        return Path(self.output).resolve() / "flower"

    def write_app(self) -> Path:
        """Write the Flower app and the connection of ``flwr run`` into the folder, and return the app's."""
        folder = Path(self.output).resolve() / "app"
        for name, text in APP.items():
            make_folder((folder / name).parent)
            replace_durably(folder / name, text.encode())
        make_folder(self._home)
        words = "[superlink]\ndefault = 'here'\n[superlink.here]\n"
        words += f"address = {quoted('host', f'{self.host}:{self.port}')}\n"
        authority = str(Path(self.security.authority or "").resolve())
        secure = f"root-certificates = {quoted('authority', authority)}\n"
        words += "insecure = true\n" if self.security.insecure else secure
        replace_durably(self._home / "config.toml", words.encode())
        return folder

    def run(self) -> None:
        """Start SuperLink, run all rounds that are left, and end it. Rounds are printed as they are made.

        Raises:
            ResumeError: Another server is running in the folder, or it is that of another federation.
            ValueError: A number is out of range, or a path cannot be told to Flower.
            TacitaError: Flower did not start, or the run ended before its last round.
        """
        settings = FederationSettings.read(self.federation)
        self._check(settings)
        folder = ServerFolder(self.output)
        with folder.commanded():
            hold_to(folder.settings, settings.public, begun=folder.state.exists() or folder.clients.exists())
            self._run(settings, self.run_config())

    def _check(self, settings: FederationSettings) -> None:
        """Raise if a number is out of range, or model or test rows are none: before anything is started."""
        if _validate.count("minimum_clients", self.minimum_clients, at_least=0) > settings.clients:
            raise ValueError(
                f"minimum_clients must be at most {settings.clients}, the clients of the federation, got "
                f"{self.minimum_clients}."
            )
        _validate.positive("seconds", self.seconds)
        settings.coordinator(model=settings.named_model(self.model))
        if self.test:
            settings.read_rows(self.test)
        if not 1 <= self.port <= LAST_PORT:
            raise ValueError(f"port must be from 1 to {LAST_PORT}, got {self.port}.")

    def run_config(self) -> str:
        """Return what ``flwr run`` tells the app."""
        config: Mapping[str, object] = {
            "federation": quoted("federation", str(Path(self.federation).resolve())),
            "output": quoted("output", str(Path(self.output).resolve())),
            "minimum-clients": self.minimum_clients,
            "seconds": float(self.seconds),
            "model": quoted("model", self.model),
            "test": quoted("test", str(Path(self.test).resolve()) if self.test else ""),
        }
        return " ".join(f"{name}={value}" for name, value in config.items())

    def _run(self, settings: FederationSettings, words: str) -> None:
        superlink = program("flower-superlink")
        flags = [*self.security.of_server(), "--disable-runtime-dependency-installation"]
        flags += ["--enable-supernode-auth"] * bool(self.node_keys)
        app, log = self.write_app(), Path(self.output) / "superlink.log"
        command = [superlink, *flags, "--host", self.host, "--port", str(self.port)]
        check_port(self.host, self.port, wait=SECONDS_TO_DIE * log.exists())  # a SuperLink of this folder may be dying
        with running(command, home=self._home, log=log) as process:
            wait_for_port(self.host, self.port, process, log)
            for key in self.node_keys:
                self._flwr("supernode", "register", str(Path(key).resolve()), "here")
            self._flwr("run", str(app), "here", "--stream", "--run-config", words)
        state, model = ServerFolder(self.output).state, settings.named_model(self.model)
        server = settings.coordinator(state, model=model)
        left, nobody = server.remaining_rounds, server.rounds_of_nobody
        if left:
            raise TacitaError(
                f"the run ended with {counted(left, 'round')} left; {str(log)!r} says why. The same command goes on "
                "with them."
            )
        if nobody:
            raise TacitaError(
                f"the last {nobody} of {settings.rounds} rounds had no client's message, so that model.npz is not the "
                "model of a whole run. A client says on its terminal why it does not answer: another folder of the "
                "server, or messages that are used up (then the federation needs more spare_messages)."
            )

    def _flwr(self, *arguments: str) -> None:
        with running([program("flwr"), *arguments], home=self._home) as process:
            failed = process.wait()
        if failed:
            raise TacitaError(f"flwr {' '.join(arguments[:2])} failed: its words are above.")
