"""``tacita federate join`` and ``serve``: what they refuse, and a client that answers until it is stopped."""

import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tacita.errors import TacitaError
from tacita.federated import flower_processes, frames
from tacita.federated.identity import KnownClients
from tacita.federated.server_folder import ServerFolder
from tacita.federated.wire import from_wire
from tests.federated.federations import SETTINGS, rows_of
from tests.federated.test_federation import TEXT

SERVE = ["serve", "federation.toml", "--output", "server", "--insecure"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A federation and the rows of a client, in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "federation.toml").write_text(TEXT)
    features, labels = rows_of(1)
    np.savez(tmp_path / "rows.npz", features=features.numpy(), labels=labels.numpy())
    return "federation.toml", "rows.npz"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serve", "federation.toml", "--output", "server"], "certificate and key and authority must be given"),
        (["serve", "nothing.toml", "--output", "server", "--insecure"], "federation must be a readable text file"),
        ([*SERVE, "--minimum-clients", "5"], "minimum_clients must be at most 4"),
        ([*SERVE, "--minimum-clients", "-1"], "minimum_clients must be an integer >= 0, got -1"),
        ([*SERVE, "--seconds", "nan"], "seconds must be"),
        ([*SERVE, "--port", "0"], "port must be from 1 to 65535"),
        ([*SERVE, "--model", "os:kill", "--trust-code"], "must be a callable of your own"),
        ([*SERVE, "--test", "federation.toml"], "must be an NPZ file"),
        (
            [
                "join",
                "federation.toml",
                "rows.npz",
                "--client",
                "1",
                "--output",
                "mine",
                "--trust-code",
                "--model",
                "no:net",
            ],
            "PYTHONPATH",
        ),
        (["join", "federation.toml", "rows.npz", "--client", "4", "--output", "mine"], "must be from 0 to 3"),
        ([*SERVE, "--model", "no:net"], "allow it with --trust-code"),
        (
            ["join", "federation.toml", "rows.npz", "--client", "1", "--output", "mine", "--model", "no:net"],
            "--trust-code",
        ),
        (["join", "federation.toml", "rows.npz", "--client", "1", "--output", "mine", "--finish"], "that has started"),
        (["join", "federation.toml", "no.npz", "--client", "1", "--output", "mine"], "there is no file 'no.npz'"),
        (["join", "federation.toml", "federation.toml", "--client", "1", "--output", "mine"], "must be an NPZ file"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(files, tacita_command, words, says):
    outcome = tacita_command("federate", *words)
    assert outcome.code == 2
    assert says in outcome.err
    assert not {"server", "mine"} & set(os.listdir())


@pytest.mark.parametrize("line", ["delta = 5e-324", "max_grad_norm = 1e308"])
@pytest.mark.parametrize("words", [["serve", "--output", "server", "--insecure"], ["join", "--output", "mine"]])
def test_a_federation_that_has_no_noise_leaves_no_folder(files, tacita_command, words, line):
    name = line.split(" = ")[0]
    changed = [line if old.startswith(f"{name} =") else old for old in TEXT.splitlines()]
    with open("federation.toml", "w") as file:
        file.write("\n".join(changed))
    more = ["rows.npz", "--client", "1"] if words[0] == "join" else []
    outcome = tacita_command("federate", words[0], "federation.toml", *more, *words[1:])
    assert outcome.code == 2
    assert f"{name} must be" in outcome.err
    assert not {"server", "mine"} & set(os.listdir())


def test_a_client_answers_until_it_is_stopped(files, tacita_command, tmp_path):
    path, said = tmp_path / "mine" / "private" / "socket", []
    known = KnownClients(SETTINGS.id, SETTINGS.clients)
    asked = known.greeting()

    def ask():
        while not said or not said[-1]:
            said.append(frames.ask(path, asked, seconds=60))
            time.sleep(0.01)
        broadcast = SETTINGS.coordinator().broadcasts([1])[1]
        said.append(frames.ask(path, broadcast, seconds=60))
        os.kill(os.getpid(), signal.SIGTERM)

    thread, before = threading.Thread(target=ask), signal.getsignal(signal.SIGTERM)
    thread.start()
    outcome = tacita_command("federate", "join", *files, "--client", "1", "--output", "mine")
    thread.join()
    assert outcome.code == 0
    assert "PRIVACY STATEMENT" in outcome.out
    assert "1 of 6 planned queries made" in outcome.out
    assert "at most 6 messages: epsilon at most" in outcome.err
    assert "How loud a round is: the noise in the mean of its 4 messages" in outcome.err
    assert "may still be asked, so that 'mine' is not sealed" in outcome.err
    assert "join --finish" in tacita_command("show", "mine").out
    finished = tacita_command("federate", "join", *files, "--client", "1", "--output", "mine", "--finish")
    assert finished.code == 0
    assert tacita_command("statement", "mine").code == 0
    assert "finished, verified" in tacita_command("show", "mine").out
    assert known.introduced(asked, said[-2]) == 1
    assert from_wire(said[-1]).number == 0
    assert not path.exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_client_that_has_started_is_not_refused_for_a_row(files, tacita_command, tmp_path):
    """Else that it does not come back would tell the server what is in its rows."""
    features, labels = rows_of(1)
    np.savez(tmp_path / "rows.npz", features=features.numpy(), labels=labels.numpy() + 1)
    words = ["federate", "join", *files, "--client", "1", "--output", "mine"]
    refused = tacita_command(*words)
    assert refused.code == 2
    assert "labels that are none of the classes 0 to 1" in refused.err
    assert not (tmp_path / "mine").exists()

    for more in (["--unchecked"], []):
        ended = threading.Event()

        def stop(ended=ended):
            while not ended.wait(0.01):
                if (tmp_path / "mine" / "private" / "socket").exists():
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

        thread = threading.Thread(target=stop)
        thread.start()
        outcome = tacita_command(*words, *more)
        ended.set()
        thread.join()
        assert outcome.code == 0, outcome.err


def test_a_supernode_that_has_ended_is_started_again(files, tacita_command, monkeypatch):
    """As one whose server has died; its owner is told each time, and where the reason is."""
    monkeypatch.setattr(flower_processes, "program", lambda name: "flower")
    monkeypatch.setattr(flower_processes, "supernode", lambda *_, **__: ["sh", "-c", "echo no such server"])
    monkeypatch.setattr(flower_processes, "FIRST_PAUSE", 0.1)
    log = Path("mine/supernode.log")

    def stop():
        while not log.exists() or log.read_text().count("no such server") < 3:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    words = ["--client", "1", "--output", "mine", "--superlink", "127.0.0.1:1", "--insecure"]
    outcome = tacita_command("federate", "join", *files, *words)
    thread.join()
    assert outcome.code == 0
    assert outcome.err.count("the SuperNode has ended, 'mine/supernode.log' says why: it is started again in") >= 2
    assert "0 of 6 planned queries made" in outcome.out


@pytest.fixture
def serving(files, tmp_path, monkeypatch):
    """A server without Flower's programs: its state is what a run without a message leaves."""

    class Done:
        def __init__(self, *_, **__):
            server = SETTINGS.coordinator(tmp_path / "server" / "server.safetensors")
            while server.remaining_rounds:
                server.broadcasts([0])
                server.receive({})

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def wait(self):
            return 0

    monkeypatch.setattr(flower_processes, "running", Done)
    monkeypatch.setattr(flower_processes, "program", lambda name: name)
    monkeypatch.setattr(flower_processes, "wait_for_port", lambda *_: None)
    security = flower_processes.Security(insecure=True)
    port = flower_processes.free_port()
    return flower_processes.Serving(
        federation="federation.toml", output="server", host="127.0.0.1", port=port, security=security
    )


NOBODY = "the last 4 of 4 rounds had no client's message"


def test_a_run_whose_last_round_had_nobody_is_no_success(serving):
    with pytest.raises(TacitaError, match=NOBODY):
        serving.run()


def test_a_server_waits_for_the_one_that_was_killed(serving, monkeypatch):
    """What that one has started holds folder and port for some seconds."""
    with pytest.raises(TacitaError, match=NOBODY):
        serving.run()
    Path("server/superlink.log").touch()
    held, port = ExitStack(), socket.create_server(("127.0.0.1", serving.port))
    held.enter_context(ServerFolder("server").serving())
    timers = [threading.Timer(0.5, held.close), threading.Timer(1.0, port.close)]
    for timer in timers:
        timer.start()
    with pytest.raises(TacitaError, match=NOBODY):
        serving.run()
    monkeypatch.setattr(flower_processes, "SECONDS_TO_DIE", 0.3)
    with (
        socket.create_server(("127.0.0.1", serving.port)),
        pytest.raises(TacitaError, match=r"Stop what listens there"),
    ):
        serving.run()


def test_a_server_names_the_settings_that_are_not_those_of_its_folder(serving):
    Path("server").mkdir()
    Path("server/settings.json").write_text('{"lr": 0.125}')  # with which nothing has begun
    with pytest.raises(TacitaError, match=NOBODY):
        serving.run()
    Path("federation.toml").write_text(TEXT.replace("lr = 0.5", "lr = 0.25"))
    with pytest.raises(TacitaError, match=r"holds a run with other settings: lr is 0.5 there and 0.25 here"):
        serving.run()
