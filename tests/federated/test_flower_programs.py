"""A federation over Flower's own programs on the loopback address: SuperLink, SuperNodes, residents (make audit)."""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager

import msgspec
import numpy as np
import pytest

import tacita
from tacita.federated.flower_processes import Security, Serving, environment, free_port, running, supernode
from tacita.training.folder import RunFolder
from tests.federated.federations import SETTINGS, clients_in, exchange, rows_of
from tests.federated.test_federation import QUIET, missing

pytestmark = pytest.mark.skipif(
    not os.environ.get("TACITA_AUDIT") or importlib.util.find_spec("flwr") is None,
    reason="takes minutes, and needs Flower: make audit",
)
INSECURE = Security(insecure=True)


class Federation:
    """A server and clients of their own processes, in one folder."""

    def __init__(self, folder, settings, **serving):
        self.folder, self.settings = folder, settings
        words = [f"{name} = {value!r}" for name, value in msgspec.to_builtins(settings).items() if value is not None]
        (folder / "federation.toml").write_text("\n".join(words))
        self.server = Serving(
            federation=str(folder / "federation.toml"),
            output=str(folder / "server"),
            host="127.0.0.1",
            port=free_port(),
            security=INSECURE,
            **serving,
        )
        (folder / "server").mkdir()
        for number in range(settings.clients):
            features, labels = rows_of(number)
            np.savez(folder / f"{number}.npz", features=features.numpy(), labels=labels.numpy())
            place = RunFolder(folder / str(number))
            place.create()
            tacita.Randomness.insecure(number).save(place.key)

    @contextmanager
    def resident(self, number):
        script = "import sys; from tacita.cli import main; sys.exit(main())"
        words = ["federate", "join", str(self.folder / "federation.toml"), str(self.folder / f"{number}.npz")]
        command = [sys.executable, "-c", script, *words, "--client", str(number), "--output"]
        path = self.folder / str(number) / "private" / "socket"
        log = self.folder / f"resident {number}.log"
        with running([*command, str(self.folder / str(number))], home=self.folder / "home", log=log) as process:
            while "answers at" not in log.read_text():
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            yield process
            if process.poll() is None:
                process.terminate()
                assert process.wait(60) == 0, log.read_text()
        assert not path.exists() or process.returncode == -signal.SIGKILL

    def node(self, number):
        path = self.folder / str(number) / "private" / "socket"
        command = supernode(f"127.0.0.1:{self.server.port}", path, INSECURE)
        return running(command, home=self.folder / f"home {number}", log=self.folder / f"node {number}.log")

    def wait_for_round(self, number):
        while self.settings.coordinator(self.folder / "server" / "server.safetensors").round < number:
            assert self.thread.is_alive()
            time.sleep(0.2)

    @contextmanager
    def serving(self):
        found = []

        def run():
            try:
                self.server.run()
            except BaseException as error:
                found.append(error)

        self.thread = threading.Thread(target=run)
        self.thread.start()
        yield
        self.thread.join()
        assert not found, found


def test_it_is_the_run_in_the_process_bit_for_bit(tmp_path):
    federation = Federation(tmp_path, SETTINGS)
    with ExitStack() as stack:
        for number in range(4):
            stack.enter_context(federation.resident(number))
            stack.enter_context(federation.node(number))
        with federation.serving():
            pass
    server = SETTINGS.coordinator()
    with clients_in(tmp_path / "in process") as residents:
        for _ in range(SETTINGS.rounds):
            exchange(residents, server)
    with np.load(tmp_path / "server" / "model.npz") as model:
        assert {name: model[name].tolist() for name in model} == {name: x.tolist() for name, x in server.params.items()}
    with clients_in(tmp_path) as residents:
        assert [one.ledger.sessions[0].queries_spent for one in residents.values()] == [4] * 4


def test_killed_restarted_and_late_clients_lose_nothing(tmp_path):
    settings = msgspec.structs.replace(QUIET, rounds=6)
    federation = Federation(tmp_path, settings, minimum_clients=3, seconds=45.0)
    with ExitStack() as stack:
        residents = [stack.enter_context(federation.resident(number)) for number in range(3)]
        nodes = [stack.enter_context(federation.node(number)) for number in range(3)]
        with federation.serving():
            federation.wait_for_round(1)
            os.killpg(residents[0].pid, signal.SIGKILL)  # in the middle of a round, or between two
            residents[0].wait()
            stack.enter_context(federation.resident(0))
            os.killpg(nodes[1].pid, signal.SIGTERM)
            stack.enter_context(federation.node(1))
            stack.enter_context(federation.resident(3))
            stack.enter_context(federation.node(3))
    server = settings.coordinator(tmp_path / "server" / "server.safetensors")
    assert server.remaining_rounds == 0
    assert server._accepted.keys() == {0, 1, 2, 3}
    with clients_in(tmp_path, settings) as clients:
        sessions = [one.ledger.sessions[0] for one in clients.values()]
        assert all(one.queries_spent == one.queries_made <= 6 for one in sessions)
        for number, client in clients.items():
            client._client._settle(server._accepted[number])
        server.rounds += 1
        assert missing(server, clients) < 1e-4


def test_what_flower_is_told(tmp_path):
    """No installation at run time, no telemetry."""
    assert environment(tmp_path)["FLWR_TELEMETRY_ENABLED"] == "0"
    asked = subprocess.run(
        ["flower-superlink", "--help"], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert "--disable-runtime-dependency-installation" in asked.stdout
