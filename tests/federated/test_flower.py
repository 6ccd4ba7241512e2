"""Flower as the transport: on a fake grid whose nodes come, go and lose messages; and its own programs, on request."""

import json
import os
import random
import socket
import threading
import tomllib
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tacita.errors import ResumeError, TacitaError
from tacita.federated import flower_processes, frames
from tacita.federated.app_folder import APP
from tacita.federated.flower_processes import Security, Serving, environment
from tacita.federated.server_folder import ServerFolder
from tests.federated.federations import SETTINGS, clients_in, exchange
from tests.federated.test_federation import TEXT

AUDIT = bool(os.environ.get("TACITA_AUDIT"))


@contextmanager
def serving(residents, folder):
    """The residents' sockets by number, each answered by a thread."""
    stop, paths = threading.Event(), {}
    threads = []
    for number, resident in residents.items():
        ready = threading.Event()
        place = folder / f"s{number}"
        place.mkdir(mode=0o700, exist_ok=True)
        paths[number] = place / "socket"
        given = {"until": stop.is_set, "ready": ready.set}
        threads.append(threading.Thread(target=resident.serve, args=(paths[number],), kwargs=given, daemon=True))
        threads[-1].start()
        ready.wait()
    try:
        yield paths
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def in_process(folder, rounds=SETTINGS.rounds):
    """The model of a federation without a transport."""
    server = SETTINGS.coordinator()
    with clients_in(folder) as residents:
        for _ in range(rounds):
            exchange(residents, server)
    return server.params


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_over_sockets_it_is_the_run_in_the_process(tmp_path):
    server = SETTINGS.coordinator()
    with clients_in(tmp_path / "a") as residents, serving(residents, tmp_path) as paths:
        for _ in range(SETTINGS.rounds):
            broadcasts = server.broadcasts(residents)
            server.receive({number: frames.ask(paths[number], broadcasts[number], seconds=60) for number in paths})
        assert frames.ask(paths[0], b"x" * 100_000, seconds=60) == b""  # longer than any record of this federation
        assert frames.ask(paths[0], b"nonsense", seconds=60) == b""
    assert same(server.params, in_process(tmp_path / "b"))


@pytest.fixture
def flwr_app(monkeypatch):
    """Flower's messages, with the identity that its programs set before an app runs; skips without Flower."""
    messages = pytest.importorskip("flwr.app")
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    return messages


def fake_grid(apps, *, lost=lambda exchange, node: False):
    """A grid of nodes, each with its configuration; ``lost`` says which replies do not arrive."""
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.serverapp import Grid

    from tacita.federated.flower import client_app

    class FakeGrid(Grid):
        def __init__(self):
            self.nodes = dict(apps)  # node -> its configuration, or an exception of its client app
            self.exchanges = 0
            self.asked = []

        run = property(lambda self: None)

        def set_run(self, run_id):
            pass

        def create_message(self, *args, **kwargs):
            raise NotImplementedError

        def get_node_ids(self):
            return list(self.nodes)

        def push_messages(self, messages):
            raise NotImplementedError

        def pull_messages(self, message_ids):
            raise NotImplementedError

        def send_and_receive(self, messages, *, timeout=None):
            replies = []
            for message in messages:
                node = message.metadata.dst_node_id
                message.metadata.__dict__["_message_id"] = f"{self.exchanges} {node}"
                message.metadata.__dict__["_src_node_id"] = 1
                self.asked.append((self.exchanges, node))
                found = self.nodes.get(node)
                if found is None or lost(self.exchanges, node):
                    if found is not None and not isinstance(found, Exception):
                        client_app()(message, Context(1, node, found, RecordDict(), {}))  # made, and lost on its way
                    continue
                if isinstance(found, Exception):
                    replies.append(Message(Error(code=1, reason=str(found)), reply_to=message))
                else:
                    replies.append(client_app()(message, Context(1, node, found, RecordDict(), {})))
            random.shuffle(replies)
            self.exchanges += 1
            return replies

    return FakeGrid()


def configuration(path):
    return {"socket": str(path), "seconds": 60.0}


def test_on_a_grid_it_is_the_run_in_the_process(tmp_path, flwr_app):
    with clients_in(tmp_path / "a") as residents, serving(residents, tmp_path) as paths:
        grid = fake_grid({100 - number: configuration(path) for number, path in paths.items()})
        from tacita.federated.flower import run_rounds

        server, reports = SETTINGS.coordinator(), []
        run_rounds(grid, server, minimum_clients=4, report=reports.append)
    assert same(server.params, in_process(tmp_path / "b"))
    assert [(one.number, one.accepted) for one in reports] == [(t, (0, 1, 2, 3)) for t in range(4)]
    assert grid.exchanges == 5  # the introductions, and four rounds


def test_nodes_that_come_go_and_lie(tmp_path, flwr_app):
    """A late joiner, a restarted node, a lost reply, a failing app, a node without a resident, one of nobody."""
    with clients_in(tmp_path / "a") as residents, serving(residents, tmp_path) as paths:
        first = {10 + number: configuration(paths[number]) for number in range(3)}
        strangers = {50: RuntimeError("a patient named"), 51: configuration(tmp_path / "nothing"), 52: {}}
        grid = fake_grid({**first, **strangers}, lost=lambda exchange, node: (exchange, node) == (1, 11))
        from tacita.federated.flower import run_rounds

        server, reports = SETTINGS.coordinator(), []

        def report(done):
            reports.append(done)
            if done.number == 0:  # client 2's node is started anew, and client 3 joins
                del grid.nodes[12]
                grid.nodes |= {22: configuration(paths[2]), 13: configuration(paths[3])}
            if done.number == 1:
                grid.nodes[10] = RuntimeError("99 rows")

        run_rounds(grid, server, minimum_clients=3, report=report)
        charged = [resident.ledger.sessions[0].queries_spent for resident in residents.values()]
    assert [one.asked for one in reports] == [(0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)]
    assert [one.accepted for one in reports] == [(0, 2), (0, 1, 2, 3), (1, 2, 3), (1, 2, 3)]
    assert charged == [2, 4, 4, 3]
    assert all(one.refused == {} for one in reports)


def test_the_server_app_runs_a_folder_and_takes_it_alone(tmp_path, flwr_app, capsys):
    from tacita.federated.flower import server_app

    (tmp_path / "federation.toml").write_text(TEXT)
    folder = ServerFolder(tmp_path / "server")
    given = {"federation": str(tmp_path / "federation.toml"), "output": str(folder.path), "seconds": 60.0}
    context = flwr_app.Context(1, 1, {}, flwr_app.RecordDict(), given)
    with clients_in(tmp_path / "a") as residents, serving(residents, tmp_path) as paths:
        grid = fake_grid({10 + number: configuration(path) for number, path in paths.items()})
        with folder.serving(), pytest.raises(ResumeError, match="another server of a federation"):
            server_app()(grid, context)
        assert grid.exchanges == 0
        server_app()(grid, context)
    model = SETTINGS.load_model(folder.model)
    assert same(dict(model.named_parameters()), in_process(tmp_path / "b"))
    assert set(json.loads(folder.clients.read_text())["keys"]) == {"0", "1", "2", "3"}
    assert "round 4 of 4: accepted [0, 1, 2, 3] of [0, 1, 2, 3]" in capsys.readouterr().out


def test_a_node_that_says_that_it_is_another_client_takes_no_place(tmp_path, flwr_app):
    """A resident with client 1's number and rows, but another folder, is not client 1; a restarted node of 1 is."""
    with (
        clients_in(tmp_path / "a") as residents,
        clients_in(tmp_path / "impostor", numbers=[1]) as impostor,
        serving(residents, tmp_path) as paths,
    ):
        place = tmp_path / "i"
        place.mkdir()
        with serving(impostor, place) as taken:
            grid = fake_grid({10 + number: configuration(path) for number, path in paths.items()})
            from tacita.federated.flower import run_rounds
            from tacita.federated.identity import KnownClients

            server, reports, told = SETTINGS.coordinator(), [], []

            def report(done):
                reports.append(done)
                if done.number == 0:
                    grid.nodes[66] = configuration(taken[1])
                if done.number == 1:
                    grid.nodes[21] = grid.nodes.pop(11)  # started anew

            known = KnownClients(SETTINGS.id, SETTINGS.clients, tell=told.append)
            run_rounds(grid, server, minimum_clients=4, clients=known, report=report)
        assert impostor[1].ledger.sessions[0].queries_made == 0
    assert same(server.params, in_process(tmp_path / "b"))
    assert [one.accepted for one in reports] == [(0, 1, 2, 3)] * 4
    assert len(told) == 1
    assert "client 1, with another key" in told[0]
    assert [node for exchange, node in grid.asked if node == 66] == [66]  # asked who it is, and no more


@pytest.mark.parametrize("settings", [{}, {"socket": 3}, {"socket": "x", "seconds": "long"}, {"socket": "\0"}], ids=str)
def test_the_client_app_raises_nothing(settings, flwr_app):
    from tacita.federated.flower import client_app, packed, unpacked

    message = flwr_app.Message(packed(b"request"), 7, "query")
    message.metadata.__dict__["_message_id"] = "1"
    reply = client_app()(message, flwr_app.Context(1, 7, settings, flwr_app.RecordDict(), {}))
    assert reply.has_content()
    assert unpacked(reply) == b""
    assert unpacked(message) == b"request"
    message.content = flwr_app.RecordDict({"tacita": flwr_app.ConfigRecord({"tacita": b"x"})})
    assert unpacked(message) == b""


def test_the_connection_is_encrypted_or_said_not_to_be():
    files = {"certificate": "c.pem", "key": "k.pem", "authority": "a.pem"}
    assert Security(insecure=True).of_server() == Security(insecure=True).of_client() == ["--insecure"]
    assert [word[:5] for word in Security(**files).of_server()][::2] == ["--ssl"] * 3
    assert Security(authority="a.pem").of_client()[0] == "--root-certificates"
    for wrong in ({}, {"certificate": "c.pem"}, {"insecure": True, **files}):
        with pytest.raises(ValueError, match="insecure"):
            Security(**wrong).of_server()
    with pytest.raises(ValueError, match="authority must be given, or insecure"):
        Security().of_client()


def test_the_app_has_no_data(tmp_path):
    server = Serving(
        federation="f.toml", output=str(tmp_path), host="127.0.0.1", port=1, security=Security(insecure=True)
    )
    app, example = server.write_app(), Path(__file__).parents[2] / "examples" / "federation"
    assert {str(path.relative_to(app)) for path in app.rglob("*") if path.is_file()} == set(APP)
    kept = {name: (example / name).read_text() for name in APP}
    for name, text in APP.items():  # the example has comments and docstrings besides
        assert [line for line in text.splitlines() if line not in kept[name].splitlines()] == []
    assert "insecure = true" in (tmp_path / "flower" / "config.toml").read_text()


@pytest.mark.parametrize("name", ["plain", "two words", "back\\slash", "don't", "a=b,c", "\u00e9"])
def test_a_path_reaches_flower_as_it_is(name, tmp_path):
    """Flower takes apart the words of its configuration itself."""
    pytest.importorskip("flwr")
    from flwr.common.config import parse_config_args

    folder = tmp_path / name
    server = Serving(
        federation=str(folder / "f.toml"), output=str(folder), host="::1", port=1, security=Security(authority="a.pem")
    )
    found = parse_config_args([server.run_config()])
    assert (found["federation"], found["output"]) == (str(folder / "f.toml"), str(folder))
    folder.mkdir()
    server.write_app()
    assert tomllib.loads((folder / "flower" / "config.toml").read_text())["superlink"]["here"]["address"] == "::1:1"


@pytest.mark.parametrize("name", ['a" output="/etc', "line\n", "\udcff"])
def test_a_path_that_flower_would_take_for_something_else_is_refused(name):
    with pytest.raises(ValueError, match="output must have no quotation mark"):
        Serving(federation="f.toml", output=name, host="h", port=1, security=Security(insecure=True)).run_config()


def test_numbers_that_a_server_would_wait_for_ever_with_are_refused(flwr_app):
    from tacita.federated.flower import run_rounds

    for number in (0, -1, 5):
        with pytest.raises(ValueError, match="minimum_clients must be from 1 to 4"):
            run_rounds(fake_grid({}), SETTINGS.coordinator(), minimum_clients=number)


def test_it_is_told_how_many_clients_are_waited_for(tmp_path, flwr_app):
    from tacita.federated.flower import run_rounds

    told = []
    with clients_in(tmp_path) as residents, serving(residents, tmp_path) as paths:
        grid = fake_grid({10: configuration(paths[0])})

        def waiting(there):
            told.append(there)
            grid.nodes |= {10 + number: configuration(paths[number]) for number in range(min(there + 2, 4))}

        run_rounds(grid, SETTINGS.coordinator(), minimum_clients=4, waiting=waiting)
    assert told == [1, 3]


def test_a_round_that_is_asked_again_and_one_of_nobody_are_written_down(tmp_path, flwr_app, capsys):
    """The first server is stopped in round 0, and every reply to the second one's round 3 is lost."""
    from tacita.federated.flower import server_app

    (tmp_path / "federation.toml").write_text(TEXT)
    folder = ServerFolder(tmp_path / "server")
    given = {"federation": str(tmp_path / "federation.toml"), "output": str(folder.path), "seconds": 60.0}
    context = flwr_app.Context(1, 1, {}, flwr_app.RecordDict(), given)

    def stop(exchange, node):
        if exchange == 1:  # the exchange before asks who is there
            raise KeyboardInterrupt
        return False

    with clients_in(tmp_path / "a") as residents, serving(residents, tmp_path) as paths:
        nodes = {10 + number: configuration(path) for number, path in paths.items()}
        with pytest.raises(KeyboardInterrupt):
            server_app()(fake_grid(nodes, lost=stop), context)
        server_app()(fake_grid(nodes, lost=lambda exchange, node: exchange == 4), context)
    rounds = [json.loads(line) for line in folder.rounds.read_text().splitlines()]
    assert [one.get("asked_before", 0) for one in rounds] == [1, 0, 0, 0]
    assert [len(one["accepted"]) for one in rounds] == [4, 4, 4, 0]
    said = capsys.readouterr().out
    assert "asked 1 time before" in said
    assert said.count("NOBODY") == 1
    assert SETTINGS.coordinator(folder.state).rounds_of_nobody == 1


def test_a_port_that_is_taken_is_named_before_flower_starts():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(TacitaError, match=rf"no server can listen at 127\.0\.0\.1:{port}: Address already in use"):
            flower_processes.check_port("127.0.0.1", port)
    flower_processes.check_port("127.0.0.1", port)


def test_flower_is_told_to_install_nothing_and_to_report_nothing(tmp_path):
    told = environment(tmp_path)
    assert told["FLWR_TELEMETRY_ENABLED"] == "0"
    assert told["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


def test_without_flower_it_says_so(monkeypatch, tmp_path):
    from tacita.federated import flower, flower_processes

    monkeypatch.setattr(flower_processes.shutil, "which", lambda name: None)
    monkeypatch.setattr(flower_processes.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(TacitaError, match=r"pip install '\.\[federated\]'"):
        flower_processes.program("flower-superlink")
    monkeypatch.setitem(__import__("sys").modules, "flwr.app", None)
    with pytest.raises(TacitaError, match=r"pip install '\.\[federated\]'"):
        flower.client_app()
