"""A federation over Flower's own programs on the loopback address, with every fault once; long variants: make audit."""

import importlib.util
import json
import os
import re
import signal
import time

import msgspec
import numpy as np
import pytest

from tacita.accounting import gaussian_epsilon
from tacita.federated.federation import accuracy
from tests.federated.faulty_join import exchanges, spoilt
from tests.federated.federations import clients_in, rows_of
from tests.federated.programs import Federation, held_port
from tests.federated.test_federation import QUIET, missing

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="needs Flower: pip install '.[federated]'"
)
audit = pytest.mark.skipif(not os.environ.get("TACITA_AUDIT"), reason="takes minutes: make audit")
FAULTY = msgspec.structs.replace(QUIET, rounds=4)


@pytest.fixture
def port():
    with held_port() as port:
        yield port


def rounds_of(federation):
    """Which clients were asked and accepted in each round, and why others were refused, as ``serve`` printed it."""
    found = re.findall(
        r"round \d+ of \d+: accepted \[(.*?)\] of \[(.*?)\](?:, refused (.*?))?; ", federation.said("serve.log")
    )
    numbers = [
        [int(one) for one in text.split(", ") if one] for accepted, asked, _ in found for text in (accepted, asked)
    ]
    return [*zip(numbers[1::2], numbers[::2], [refused for *_, refused in found], strict=True)]


def replay(federation, folder, model=None):
    """Make the run again in one process, with what was asked and accepted; return its server and clients."""
    logs = {number: exchanges(federation.messages(number)) for number in range(federation.settings.clients)}
    server = federation.settings.coordinator(model=model)
    with clients_in(folder, federation.settings, model=model) as clients:
        for number, (asked, accepted, refused) in enumerate(rounds_of(federation)):
            broadcasts, replies = server.broadcasts(asked), {}
            for client in asked:
                for one in [one for one in logs[client] if one.round == number]:
                    assert one.request == broadcasts[client]
                    assert one.reply == clients[client].answer(one.request)
                    replies[client] = one.reply if client in accepted else spoilt(one.reply) if refused else b""
            done = server.receive(replies)
            assert [*done.accepted] == accepted
        server.rounds += 1
        assert missing(server, clients) < 1e-4
    return server, {number: len(log) for number, log in logs.items()}


@audit
def test_every_fault_once_and_it_is_the_run_in_the_process_bit_for_bit(tmp_path, port):
    """A client is killed with a message that was not sent, a SuperNode is restarted, a client joins late, one lies."""
    go = tmp_path / "go"
    with Federation(tmp_path, FAULTY, port) as federation:
        server = federation.serve("--minimum-clients", "3")
        killed = federation.join(0, killed=0)
        waiting = federation.join(1, waits=1, go=str(go))
        lying = federation.join(2, spoils=2)
        federation.wait(lambda: all(federation.answers(n) for n in range(3)), server, killed, waiting, lying)
        nodes = [federation.node(number) for number in range(3)]
        federation.wait(lambda: killed.poll() is not None, server, *nodes)
        assert killed.returncode == 128 + signal.SIGKILL
        back = federation.join(0)
        federation.wait(lambda: len(exchanges(federation.messages(1))) == 2, server, *nodes)  # and now round 1 waits
        nodes[2].terminate()
        federation.ended(nodes[2])
        again = federation.node(2)
        late = federation.join(3, "--superlink", federation.address, "--insecure")
        federation.wait(lambda: federation.activated() == 5, server, again, late)
        federation.wait(lambda: federation.answers(0, 2), server, back)
        go.touch()
        assert federation.ended(server) == 0, federation.logs()
        rounds = rounds_of(federation)
        logs = federation.logs()
    assert len(rounds) == 4, logs
    assert rounds[0] == ([0, 1, 2], [1, 2], ""), logs
    assert rounds[2:] == [([0, 1, 2, 3], [0, 1, 3], "{2: 'too long'}"), ([0, 1, 2, 3], [0, 1, 2, 3], "")], logs
    replayed, answered = replay(federation, tmp_path / "in process")
    with np.load(tmp_path / "server" / "model.npz") as model:
        assert {name: model[name].tolist() for name in model} == {n: x.tolist() for n, x in replayed.params.items()}
    assert (answered[1], answered[3]) == (4, 2)
    with clients_in(tmp_path, FAULTY) as residents:
        for number, resident in residents.items():
            (session,) = resident.ledger.sessions
            assert session.queries_spent == session.queries_made == answered[number]
            multiplier = FAULTY.noise()[0].noise_multiplier
            expected = gaussian_epsilon(answered[number] ** 0.5 / multiplier, FAULTY.delta)
            assert resident.ledger.epsilon_spent(FAULTY.delta) == pytest.approx(expected)


NETS = """
from torch import nn

def wide(features, classes):
    return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, classes))
"""


def test_the_server_is_killed_and_no_client_is_started_again(tmp_path, port, monkeypatch):
    """Both clients have messages of round 1 that are lost: what ``join`` has started goes on with the next server.

    They train a network, and the server tests it on public rows after each round.
    """
    (tmp_path / "nets_of_a_test.py").write_text(NETS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(tmp_path)
    go, settings = tmp_path / "go", msgspec.structs.replace(QUIET, clients=2, rounds=3, spare_messages=1)
    own = ["--model", "nets_of_a_test:wide", "--trust-code"]
    with Federation(tmp_path, settings, port) as federation:
        tested = [*own, "--test", str(tmp_path / "0.npz")]
        server = federation.serve(*tested)
        mine = ["--superlink", federation.address, "--insecure", *own]
        clients = [federation.join(0, *mine, waits=1, go=str(go)), federation.join(1, *mine)]
        federation.wait(lambda: all(len(exchanges(federation.messages(n))) == 2 for n in range(2)), server, *clients)
        os.killpg(server.pid, signal.SIGKILL)
        server = federation.serve_again(clients, *tested)
        go.touch()
        federation.wait(lambda: server.poll() is not None, *clients)
        assert server.returncode == 0, federation.logs()
        assert "it is started again" in federation.said("resident 1.log")
        network = settings.named_model("nets_of_a_test:wide")
        replayed, answered = replay(federation, tmp_path / "in process", network)
    assert answered == {0: 4, 1: 4}
    rounds = [json.loads(line) for line in (tmp_path / "server" / "rounds.jsonl").read_text().splitlines()]
    assert [one["accepted"] for one in rounds] == [[0, 1]] * 3
    assert all(one["seconds"] > 0 for one in rounds)
    assert rounds[-1]["test_accuracy"] == accuracy(network, replayed.params, *rows_of(0))
    with np.load(tmp_path / "server" / "model.npz") as model:
        assert {name: model[name].tolist() for name in model} == {n: x.tolist() for n, x in replayed.params.items()}


@audit
@pytest.mark.parametrize("seconds", [0.0, 1.5, 4.0])
def test_a_client_that_is_killed_at_any_moment_loses_nothing(tmp_path, port, seconds):
    """A resident and then a SuperNode are killed in the middle of a round, or between two, while others go on."""
    settings = msgspec.structs.replace(QUIET, rounds=6)
    with Federation(tmp_path, settings, port) as federation:
        server = federation.serve("--minimum-clients", "3", "--seconds", "45")
        residents = [federation.join(number) for number in range(4)]
        nodes = [federation.node(number) for number in range(4)]
        federation.wait(lambda: rounds_of(federation) != [], server)
        time.sleep(seconds)
        os.killpg(residents[0].pid, signal.SIGKILL)
        residents[0].wait()
        back = federation.join(0)
        os.killpg(nodes[1].pid, signal.SIGKILL)
        nodes[1].wait()
        again = federation.node(1)
        federation.wait(lambda: len(rounds_of(federation)) == 6, server, back, again)
        assert federation.ended(server) == 0, federation.logs()
    server = settings.coordinator(tmp_path / "server" / "server.safetensors")
    assert server.remaining_rounds == 0
    with clients_in(tmp_path, settings) as clients:
        sessions = [one.ledger.sessions[0] for one in clients.values()]
        assert all(one.queries_spent == one.queries_made <= 6 for one in sessions)
        server.rounds += 1
        assert missing(server, clients) < 1e-4
