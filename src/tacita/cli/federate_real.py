"""``tacita federate serve`` and ``join``: a federation for real, with Flower as the transport."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tacita._counted import counted
from tacita._whole_numbers import WHOLE
from tacita.cli.outputs import check_folder, say_written
from tacita.cli.train import FLAT, About
from tacita.errors import TacitaError

if TYPE_CHECKING:
    from tacita.federated.federation import FederationSettings
    from tacita.federated.resident import Resident

STOP = (signal.SIGINT, signal.SIGTERM)
NOTHING_SAID = About()
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
    trust_code: Flag = False,
    test: str = "",
) -> int:
    """Run the server of a federation: start Flower's SuperLink, wait for clients, make all rounds, write the model.

    Run it again to continue where a server that was killed stopped. The server sees noisy messages alone.

    Example: tacita federate serve federation.toml --output runs/server --insecure

    Args:
        federation: The TOML file that all take part under; docs/federated-flower.md has it.
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
        model: package.module:callable, (features, classes) -> network; without it the model is a linear classifier.
        trust_code: Import and call the code that --model names.
        test: An NPZ file of public rows, as clients have them: after each round the share that the model has right is
            printed. These rows are not protected.
    """
    from tacita.federated.flower_processes import Security, Serving

    _check_code(model, trusted=trust_code)
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
    trust_code: Flag = False,
    unchecked: Flag = False,
    finish: Flag = False,
    dataset_name: str | None = None,
    about: Annotated[About, FLAT] = NOTHING_SAID,
) -> int:
    """Take part in a federation as one client, with data, key and ledger that stay on this machine.

    It answers until it is stopped (Ctrl-C), and then prints the privacy statement of what this client has sent. Run it
    again to go on. A SuperNode whose server has died is started again. When all planned messages are sent, or with
    --finish, its folder is sealed as that of any finished run, and it answers no more.

    Example: tacita federate join federation.toml mine.npz --client 0 --output mine --superlink host:9092 --insecure

    Args:
        federation: The TOML file that all take part under; docs/federated-flower.md has it.
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
        trust_code: Import and call the code that --model names.
        unchecked: Take rows whose values look wrong, such as a label of no class. A client that has started does.
        dataset_name: Public name of the data, by default the file's, under which finished runs are listed.
        finish: Do not answer: seal the folder with the statement, remove the key, and leave the federation for good.
    """
    from tacita.federated.federation import FederationSettings, joined
    from tacita.federated.finished_client import finish_client
    from tacita.federated.flower_processes import Security, kept_running, program, supernode
    from tacita.ledger import statement
    from tacita.ledger.run_sections import check_about
    from tacita.runs.folder import RunFolder
    from tacita.runs.run_list import check_name

    said = {name: value for name, value in asdict(about).items() if value is not None}
    check_about(said)
    own, settings = RunFolder(output), FederationSettings.read(federation)
    named = dataset_name or Path(data).name
    check_name(named, output)
    seal = partial(finish_client, settings, number=client, folder=output, about=said, dataset_name=named)
    if finish or own.tidying:
        print(seal())
        say_written(output)
        return 0
    _check_code(model, trusted=trust_code)
    security = Security(insecure=insecure, authority=authority)
    if superlink is not None:
        security.of_client()
        program("flower-supernode")
    check_folder("--output", output)
    given = {"number": client, "folder": output, "model": settings.named_model(model), "tell": _say}
    taking_part = joined(settings, settings.read_rows(data, unchecked=unchecked or own.unfinished), **given)
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

        _say(_at_most(resident, settings))
        ready = f"client {client} of {settings.name!r} answers at {os.fspath(path)}"
        resident.serve(path, until=over, ready=lambda: _say(ready))
        if not resident.used_up:
            print(statement(resident.ledger, delta=settings.delta))
            _say(
                f"this client may still be asked, so that {output!r} is not sealed. The same command goes on; with "
                "--finish it seals the folder, and the client answers no more."
            )
            return 0
    print(seal())
    say_written(output)
    return 0


def _at_most(resident: "Resident", settings: "FederationSettings") -> str:
    """Return what a client may spend, and how loud a round is, in words, before it sends anything."""
    from tacita.ledger import statement
    from tacita.ledger.run_sections import epsilon_in_words, risk_in_words
    from tacita.ledger.verdict import verdict

    fields = statement(resident.ledger, settings.delta).to_json()
    weighed = verdict(fields)
    return (
        f"at most {counted(settings.messages, 'message')}: epsilon {epsilon_in_words(weighed)} at delta "
        f"{fields['delta']:g}, for {fields['privacy_unit']}. {risk_in_words(fields, weighed)}\n"
        f"{settings.loudness(resident.size)}"
    )


def _check_code(model: str, *, trusted: bool) -> None:
    """Raise ``TacitaError`` if ``model`` names code, as whoever made the federation chose it, and is not trusted."""
    if model and not trusted:
        raise TacitaError(
            f"--model names code, {model!r}, which would be imported and called with this machine's rights. If you "
            "trust that code, allow it with --trust-code."
        )


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
