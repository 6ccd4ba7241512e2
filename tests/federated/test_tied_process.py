"""A program that was started for a process ends with it, also if that process is killed."""

import os
import subprocess
import sys

import pytest

STARTER = """
import sys, time
from pathlib import Path
from tacita.federated.flower_processes import running

with running(["sh", "-c", sys.argv[2]], home=Path(sys.argv[1]), log=Path(sys.argv[1]) / "log"):
    time.sleep(1000)
"""
TIED = """
import sys
from tacita.federated import tied_process

tied_process.SECONDS_TO_END = 0.2
sys.exit(tied_process.main(sys.argv[1:]))
"""
STAYS = 'exec 3>"{pipe}"; sh -c "echo a >&3; sleep 100; echo late >&3" & echo b >&3; wait; sleep 100; echo late >&3'


def tied(script):
    """A shell script, tied to a pipe that this process holds."""
    command = [sys.executable, "-c", TIED, "sh", "-c", script]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


@pytest.fixture
def pipe(tmp_path):
    """A named pipe, which ends when all processes that write to it are gone."""
    os.mkfifo(path := tmp_path / "pipe")
    return path


def test_a_killed_process_leaves_nothing_that_it_has_started(tmp_path, pipe):
    """By SIGKILL: no handler of its own can end the program, or what that has started in turn."""
    command = [sys.executable, "-c", STARTER, str(tmp_path), STAYS.format(pipe=pipe)]
    with subprocess.Popen(command) as process, pipe.open("rb", buffering=0) as said:
        found = said.read(2) + said.read(2)
        process.kill()
        assert sorted(found.split()) == [b"a", b"b"]
        assert said.read() == b""


def test_what_ignores_the_request_to_end_is_killed(pipe):
    with tied("trap '' TERM; " + STAYS.format(pipe=pipe)) as process, pipe.open("rb", buffering=0) as said:
        assert said.read(2)
        process.stdin.close()
        assert b"late" not in said.read()


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -9 $$", 137), ("exit 0", 0)])
def test_it_ends_as_the_program_does(script, status):
    with tied(script) as process:
        assert process.wait() == status


def test_a_request_to_end_is_passed_on(pipe):
    script = f'trap "exit 7" TERM; exec 3>"{pipe}"; echo a >&3; while true; do sleep 0.05; done'
    with tied(script) as process, pipe.open("rb", buffering=0) as said:
        assert said.read(2)
        process.terminate()
        assert process.wait() == 7
