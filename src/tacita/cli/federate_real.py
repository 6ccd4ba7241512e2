"""``tacita federate serve`` and ``join``: a federation for real, with Flower as the transport."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tacita._whole_numbers import WHOLE
from tacita.cli.outputs import check_folder, say_written

STOP = (signal.SIGINT, signal.SIGTERM)
Flag = Annotated[bool, Parameter(negative=())]


def serve(
    federation: str,
    /,
    *,
    output: str,
    host: str = "127.0.0.1",
    port: Annotated[int, WHOLE] = 9092,
    insecure: Flag = False,
    certificate: str | None = None,
    key: str | None = None,
    authority: str | None = None,
    node_key: tuple[str, ...] = (),
    minimum_clients: Annotated[int, WHOLE] = 0,
    seconds: float = 600.0,
    model: str = "",
    test: str = "",
) -> int:
    """Run the server of a federation: start Flower's SuperLink, wait for clients, make all rounds, write the model.

    Run it again to continue where a server that was killed stopped. The server sees noisy messages alone.

    Example: tacita federate serve federation.toml --output runs/server --insecure

    Args:
        federation: The TOML file that all take part under; docs/federated.md has it.
        output: The folder of the server, which gets model.npz.
        host: The address to listen at.
        port: The port to listen at.
        insecure: Do not encrypt the connections: for one machine, or inside a tunnel of your own.
        certificate: PEM file of the server's TLS certificate.
        key: PEM file of that certificate's private key.
        authority: PEM file of the authority that signed the certificate.
        node_key: A public key file of a node that may take part, once for each; without one every node may.
        minimum_clients: Number of clients to wait for before a round; 0 for all.
        seconds: How long to wait for the messages of a round.
        model: package.module:callable, (features, classes) -> network, which is imported; without it the model is a
            linear classifier.
        test: An NPZ file of public rows, as clients have them: after each round the share that the model has right is
            printed. These rows are not protected.
    """
    from tacita.federated.flower_processes import Security, Serving

    security = Security(insecure=insecure, certificate=certificate, key=key, authority=authority)
    security.of_server()
    check_folder("--output", output)
    Serving(
        federation=federation,
        output=output,
        host=host,
        port=port,
        security=security,
        node_keys=node_key,
        minimum_clients=minimum_clients,
        seconds=seconds,
        model=model,
        test=test,
    ).run()
    say_written(output)
    return 0


def join(
    federation: str,
    data: str,
    /,
    *,
    client: Annotated[int, WHOLE],
    output: str,
    superlink: str | None = None,
    insecure: Flag = False,
    authority: str | None = None,
    node_key: str | None = None,
    socket: str | None = None,
    model: str = "",
) -> int:
    """Take part in a federation as one client, with data, key and ledger that stay on this machine.

    It answers until it is stopped (Ctrl-C), and then prints the privacy statement of what this client has sent. Run it
    again to go on. A SuperNode whose server has died is started again.

    Example: tacita federate join federation.toml mine.npz --client 0 --output mine --superlink host:9092 --insecure

    Args:
        federation: The TOML file that all take part under; docs/federated.md has it.
        data: An NPZ file with features (rows, d) and labels (rows,).
        client: This client's number, from 0.
        output: The folder of this client; its private folder holds key and state.
        superlink: HOST:PORT of the server's SuperLink, to start a SuperNode; without it, start one yourself with
            --node-config 'socket="..."'.
        insecure: Do not encrypt the connection.
        authority: PEM file of the authority that signed the server's certificate.
        node_key: File of this node's private key, if the server authenticates nodes.
        socket: Path of the Unix socket, in a folder of mode 0700; by default in the private folder.
        model: The model of the server's --model; its code never meets a row, but as a program.
    """
    from tacita.federated.federation import FederationSettings, joined
    from tacita.federated.flower_processes import Security, kept_running, program, supernode
    from tacita.ledger import statement

    security = Security(insecure=insecure, authority=authority)
    if superlink is not None:
        security.of_client()
        program("flower-supernode")
    check_folder("--output", output)
    settings = FederationSettings.read(federation)
    given = {"number": client, "folder": output, "model": settings.named_model(model), "tell": _say}
    taking_part = joined(settings, settings.read_rows(data), **given)
    with ExitStack() as stack:
        stopped = stack.enter_context(_signals())
        resident = stack.enter_context(taking_part)
        path = Path(socket or Path(output) / "private" / "socket").resolve()
        home, log = Path(output).resolve() / "flower", Path(output) / "supernode.log"
        look_after = None
        if superlink is not None:
            command = partial(supernode, superlink, path, security, key=node_key)
            look_after = stack.enter_context(kept_running(command, home=home, log=log, tell=_say))

        def over() -> bool:
            if look_after is not None and not stopped:
                look_after()
            return bool(stopped)

        said = f"client {client} of {settings.name!r} answers at {os.fspath(path)}"
        resident.serve(path, until=over, ready=lambda: _say(said))
        print(statement(resident.ledger, delta=settings.delta))
    return 0


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that ask to stop, in place of dying of them, so that a message is sent or lost as a whole."""
    found: list[int] = []
    before = {name: signal.signal(name, lambda number, _: found.append(number)) for name in STOP}
    try:
        yield found
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _say(words: str) -> None:
    print(f"tacita: {words}", file=sys.stderr, flush=True)


def add_to(app: Any) -> None:
    """Add the commands to ``tacita federate``."""
    app.command(serve)
    app.command(join)
