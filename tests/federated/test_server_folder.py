"""One server in a folder: a second one is refused, whoever has started the first, and a killed one leaves no lock."""

import os
import signal
import subprocess
import sys

import pytest

from tacita.errors import ResumeError
from tacita.federated.flower_processes import Security, Serving
from tacita.federated.server_folder import ServerFolder
from tests.federated.federations import SETTINGS
from tests.federated.test_federation import TEXT

HOLD = """
import sys
from tacita.federated.server_folder import ServerFolder
with ServerFolder(sys.argv[1]).serving():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path):
    return ServerFolder(tmp_path / "server")


def test_one_command_and_one_server_at_a_time(folder):
    with folder.commanded():
        with pytest.raises(ResumeError, match="another server of a federation is running"), folder.commanded():
            pass
        with folder.serving(), pytest.raises(ResumeError, match="another server"), folder.serving():
            pass
    with folder.serving(), pytest.raises(ResumeError, match="another server"), folder.commanded():
        pass  # a server that was started by hand
    with folder.commanded(), folder.serving():
        pass


def test_a_server_in_another_process_keeps_this_one_out_until_it_is_killed(folder):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        settings = folder.path.parent / "federation.toml"
        settings.write_text(TEXT)
        where = {"federation": str(settings), "output": str(folder.path), "host": "127.0.0.1", "port": 1}
        serving = Serving(**where, security=Security(insecure=True))
        with pytest.raises(ResumeError, match="another server of a federation is running"):
            serving.run()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with folder.commanded(), folder.serving():
            pass


def test_a_server_whose_lock_is_gone_ends_before_it_publishes(folder):
    server = SETTINGS.coordinator()
    with folder.serving():
        folder.publish(server)
        folder.model.unlink()
        (folder.path / "server.lock").unlink()
        with pytest.raises(ResumeError, match="another server can have started there"):
            folder.publish(server)
        second = ServerFolder(folder.path)
        with second.serving():
            second.publish(server)
            folder.model.unlink()
            with pytest.raises(ResumeError, match="another server can have started there"):
                folder.publish(server)
    assert not folder.model.exists()
    folder.publish(server)  # no server is running


def test_a_server_that_has_lost_its_state_is_not_started_anew(folder):
    """Clients that remember a message would not answer it, and every round would be one of nobody."""
    server = SETTINGS.coordinator(folder.state)
    with folder.serving():
        server.broadcasts([0])
        server.receive({})
        folder.publish(server)
    with folder.serving():
        pass
    folder.state.unlink()
    with pytest.raises(ResumeError, match="is missing, and a round was made there"), folder.serving():
        pass
