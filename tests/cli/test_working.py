"""No command is silent for long: a bar on a terminal, plain lines elsewhere."""

import io
import threading
from types import SimpleNamespace

import pytest

from tacita.cli import working
from tacita.cli.working import Working


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Err(io.StringIO):
    """Standard error of a log, which says when a line is written."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def write(self, text):
        found = super().write(text)
        if "\n" in text:
            self.written.set()
        return found


@pytest.fixture
def log(monkeypatch):
    """A log whose first line is due at once."""
    monkeypatch.setattr(working, "FIRST", 0.01)
    monkeypatch.setattr(working, "LONGEST", 0.01)
    return written_to(monkeypatch, Err())


def written_to(monkeypatch, err):
    """Give the module a standard error of its own; pytest exchanges the other one between fixture and test."""
    monkeypatch.setattr(working, "sys", SimpleNamespace(stderr=err))
    return err


def wait_for_a_line(err):
    err.written.clear()
    assert err.written.wait(60)


def test_a_log_gets_plain_lines_of_what_is_done_and_how_much(log):
    with Working("computing") as shown:
        wait_for_a_line(log)
        assert log.getvalue().startswith("tacita: computing: 0 s\n")
        shown.show("runs", 0.25)
        wait_for_a_line(log)
        wait_for_a_line(log)
    assert "tacita: runs: 25%, 0 s" in log.getvalue()
    assert "\x1b" not in log.getvalue()


def test_what_is_done_soon_says_nothing(capsys):
    with Working("computing") as shown:
        shown.show("runs", 0.5)
    assert capsys.readouterr() == ("", "")


def test_lines_become_seldom():
    assert working.FIRST == 5
    assert working.LONGEST == 60


def test_a_terminal_gets_a_bar_that_is_gone_in_the_end(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    err = written_to(monkeypatch, Terminal())
    with Working("computing") as shown:
        shown.show("runs", 0.5)
        shown._bar.refresh()
        assert "runs" in err.getvalue()
        assert "50%" in err.getvalue()


@pytest.mark.parametrize("err", [Terminal, Err])
def test_quiet_shows_nothing(monkeypatch, err):
    monkeypatch.setattr(working, "FIRST", 0.01)
    written = written_to(monkeypatch, err())
    with Working("computing", quiet=True) as shown:
        shown.show("runs", 0.5)
    assert not written.getvalue()


PLAN = (
    "--epsilon 8 --delta 1e-5 --neighboring-relation replace_one --num-records 40 --dim 10 --smoothness 1 --radius 5 "
    "--moment-scale 6 --batch-size 1 --steps 40"
)


@pytest.mark.parametrize(
    ("slow", "words", "says"),
    [
        ("testing.audit.audit_oracle", "audit dicesgd --noise automatic", "dicesgd: trying adversaries"),
        ("cli.planning.plan_dp_clipped_sgd", f"plan {PLAN}", "computing the noise"),
    ],
)
def test_a_slow_command_says_that_it_works(tacita_command, monkeypatch, log, *, slow, words, says):
    def work(*_, **__):
        wait_for_a_line(log)
        raise ValueError("enough")

    monkeypatch.setattr(f"tacita.{slow}", work)
    assert tacita_command(*words.split()).code == 2
    assert log.getvalue().startswith(f"tacita: {says}: ")
