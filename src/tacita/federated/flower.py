"""Flower as the transport of a federation: it carries bytes between a coordinator and resident clients, no more.

Place: federated.coordinator <-> [federated.flower] <-> federated.resident. Needs the extra ``federated``.
No strategy and no mod is used: Flower's differential privacy clips weights and charges for something else. Flower
starts a new process for the client app in every round, which imports no torch and asks the resident over a socket.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tacita._counted import counted
from tacita._extras import not_installed
from tacita.errors import TacitaError
from tacita.federated.frames import LARGEST, NOTHING, ask

if TYPE_CHECKING:  # an extra, and the server's part, which needs torch
    from flwr.app import Context, Message, RecordDict  # pyright: ignore[reportMissingImports]
    from flwr.clientapp import ClientApp  # pyright: ignore[reportMissingImports]
    from flwr.serverapp import Grid, ServerApp  # pyright: ignore[reportMissingImports]

    from tacita.federated.coordinator import Coordinator, RoundReport
    from tacita.federated.federation import FederationSettings
    from tacita.federated.identity import KnownClients
    from tacita.federated.server_folder import ServerFolder

KEY = "tacita"  # name of the record and of its array
SERIALISED = "tacita.1"  # how Flower names the serialisation of our bytes, which it does not read
MESSAGE_TYPE = "query"
SECONDS = 600.0  # that a client may take for a message, by default
SECONDS_TO_INTRODUCE = 60.0  # at most, that a node may take to say which client it is
PAUSE = 0.5  # seconds between two looks at which nodes are there


def flower() -> Any:
    """Return the module ``flwr``, with its apps and messages.

    Raises:
        TacitaError: Flower is not installed.
    """
    try:
        import flwr.app  # pyright: ignore[reportMissingImports]
        import flwr.clientapp  # pyright: ignore[reportMissingImports]
        import flwr.serverapp  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise TacitaError(not_installed("Flower", "federated")) from None
    return flwr


def packed(payload: bytes) -> "RecordDict":
    """Return bytes as Flower's content, in an array that Flower sends in chunks."""
    app = flower().app
    array = app.Array(dtype="uint8", shape=(len(payload),), stype=SERIALISED, data=payload)
    return app.RecordDict({KEY: app.ArrayRecord({KEY: array})})


def unpacked(message: "Message") -> bytes:
    """Return the bytes of a message; :data:`NOTHING` if it is an error, or holds something else."""
    content: Any = message.content if message.has_content() else {}
    record = content.get(KEY)
    array = record.get(KEY) if isinstance(record, flower().app.ArrayRecord) else None
    return array.data if array is not None and array.stype == SERIALISED and len(array.data) <= LARGEST else NOTHING


def client_app() -> "ClientApp":
    """Return the client app: it hands a broadcast to the resident, and the resident's bytes to Flower.

    The node's configuration names the resident's socket, as in ``flower-supernode --node-config
    'socket="/path/to/socket"'``, and may name the ``seconds`` to wait for a message.

    Guarantee: it raises nothing, whatever happens, because Flower carries the texts of exceptions to the server word
    for word. If there is no message, the content is that of no bytes.
    """
    app = flower().clientapp.ClientApp()

    @app.query()
    def answer(message: "Message", context: "Context") -> "Message":
        reply = NOTHING
        try:
            settings = context.node_config
            reply = ask(str(settings["socket"]), unpacked(message), seconds=float(settings.get("seconds", SECONDS)))
        except Exception:  # the constant says nothing about why
            reply = NOTHING
        return flower().app.Message(packed(reply), reply_to=message)

    return app


class KnownNodes:
    """Which of Flower's nodes is which client, learnt by asking each new node once.

    A node that proves to be a client which another node was before takes that one's place, as a node that was restarted
    has a new number. Who may be a node is the transport's to decide: use Flower's authentication.

    Args:
        grid: Flower's grid.
        clients: What each client has to prove, and how.
        seconds: How long to wait for the replies.
    """

    def __init__(self, grid: "Grid", clients: "KnownClients", *, seconds: float) -> None:
        self._grid, self._clients = grid, clients
        self._seconds = min(seconds, SECONDS_TO_INTRODUCE)
        self._known: set[int] = set()  # nodes that have said who they are
        self._node_of: dict[int, int] = {}

    def live(self) -> dict[int, int]:
        """Return the node of each client that is there now, by the client's number."""
        nodes = sorted(self._grid.get_node_ids())
        asked = {node: self._clients.greeting() for node in nodes if node not in self._known}
        replies = exchange(self._grid, asked, seconds=self._seconds) if asked else {}
        for node, reply in sorted(replies.items()):  # a node that did not reply is asked again
            self._known.add(node)
            client = self._clients.introduced(asked[node], reply)
            if client is not None:
                self._node_of[client] = node
        return {client: node for client, node in sorted(self._node_of.items()) if node in nodes}


def exchange(grid: "Grid", requests: Mapping[int, bytes], *, seconds: float) -> dict[int, bytes]:
    """Send bytes to nodes, and return the bytes that came back in time, by node.

    A request lives no longer than the server waits, so that a node which comes back later answers nothing old.
    """
    message = flower().app.Message
    messages = [message(packed(data), node, MESSAGE_TYPE, ttl=seconds) for node, data in requests.items()]
    replies = grid.send_and_receive(messages, timeout=seconds)
    found = {reply.metadata.src_node_id: unpacked(reply) for reply in replies}
    return {node: reply for node, reply in found.items() if node in requests and reply}


def run_rounds(
    grid: "Grid",
    coordinator: "Coordinator",
    *,
    minimum_clients: int,
    clients: "KnownClients | None" = None,
    seconds: float = SECONDS,
    report: Callable[["RoundReport"], Any] = lambda round_report: None,
    waiting: Callable[[int], Any] = lambda there: None,
    asking: Callable[[int], Any] = lambda number: None,
) -> None:
    """Make all rounds that are left: ask the clients that are there, and add up what they send.

    Args:
        grid: Flower's grid.
        coordinator: The server of the federation.
        minimum_clients: Number of clients to wait for before a round, from 1 to all.
        clients: The keys by which clients are known; by default they are learnt anew, and kept in memory.
        seconds: How long to wait for messages; those that come later are lost.
        report: Is told about each round.
        waiting: Is told how many clients are there, whenever that number changes while there are too few.
        asking: Is told the number of a round before its clients are asked.

    Raises:
        ValueError: ``minimum_clients`` is out of range: the server would wait for ever, or make rounds of nobody.
    """
    from tacita.federated.identity import KnownClients

    if not 1 <= minimum_clients <= coordinator.num_clients:
        raise ValueError(f"minimum_clients must be from 1 to {coordinator.num_clients}, got {minimum_clients}.")
    clients = clients or KnownClients(coordinator.federation, coordinator.num_clients)
    nodes = KnownNodes(grid, clients, seconds=seconds)
    while coordinator.remaining_rounds:
        told = -1
        while (there := len(live := nodes.live())) < minimum_clients:
            if there != told:
                waiting(there)
            told = there
            time.sleep(PAUSE)
        broadcasts = coordinator.broadcasts(live)
        asking(coordinator.round)
        replies = exchange(grid, {live[client]: data for client, data in broadcasts.items()}, seconds=seconds)
        by_client = {client: replies[node] for client, node in live.items() if node in replies}
        report(coordinator.receive(by_client))


def server_app() -> "ServerApp":
    """Return the server app: a loop over Flower's messages that runs the federation of a settings file.

    The run's configuration names ``federation``, the file of :class:`FederationSettings`; ``output``, the folder of the
    server, which gets ``model.npz`` and from which a server that was killed goes on; and may name ``minimum-clients``
    (by default all), ``seconds`` to wait for messages, a ``model`` "package.module:callable" that is imported, and
    ``test``, an NPZ file of public rows, on which the model is tested after each round. The folder takes one server at
    a time.
    """
    app = flower().serverapp.ServerApp()

    @app.main()
    def main(grid: "Grid", context: "Context") -> None:
        from tacita.federated.federation import FederationSettings
        from tacita.federated.server_folder import ServerFolder

        settings = FederationSettings.read(str(context.run_config["federation"]))
        folder = ServerFolder(str(context.run_config["output"]))
        with folder.serving():
            _serve(grid, settings, folder, context.run_config)

    return app


def _serve(grid: "Grid", settings: "FederationSettings", folder: "ServerFolder", config: Mapping[str, Any]) -> None:
    """Make all rounds that are left, print each of them, and write the model after each."""
    from tacita.federated.federation import accuracy
    from tacita.federated.identity import KnownClients

    model = settings.named_model(str(config.get("model", "")))
    coordinator = settings.coordinator(folder.state, model=model)
    tested = settings.build_model() if model is None else model
    test = settings.read_rows(str(config["test"])) if config.get("test") else None

    def say(words: str) -> None:
        print(words, flush=True)

    def report(done: "RoundReport") -> None:
        folder.publish(coordinator)
        refused = f", refused {done.refused}" if done.refused else ""
        accepted = f"accepted {list(done.accepted)} of {list(done.asked)}"
        accepted += "" if done.accepted else " (NOBODY: the round has no message)"
        said = {} if test is None else {"test_accuracy": accuracy(tested, coordinator.params, *test)}
        words = "".join(f", {share:.4f} of the test rows right" for share in said.values())
        before = folder.times_asked(done.number) - 1
        if before:
            said["asked_before"] = before
            words += f", asked {counted(before, 'time')} before, whose messages are lost"
        say(f"round {done.number + 1} of {settings.rounds}: {accepted}{refused}; {done.seconds:.1f} s{words}")
        with folder.rounds.open("a") as file:
            file.write(json.dumps({**asdict(done), **said}) + "\n")

    say(settings.loudness(sum(x.numel() for x in coordinator.params.values())))
    minimum = int(config.get("minimum-clients", 0)) or settings.clients
    run_rounds(
        grid,
        coordinator,
        minimum_clients=minimum,
        clients=KnownClients(
            coordinator.federation, settings.clients, folder.clients, settings=settings.public, tell=say
        ),
        seconds=float(config.get("seconds", SECONDS)),
        report=report,
        asking=folder.begin,
        waiting=lambda there: say(f"waiting for clients: {there} of {minimum} are there (--minimum-clients)"),
    )
    folder.publish(coordinator)
