"""``tacita audit one-run``: from a run's config.toml to a verdict, a picture and a statement."""

import json
from pathlib import Path

import pytest

import tacita.oracles.gate as gate_module
from tacita.random import Randomness

TRAIN = ("train", "table.csv", "--target", "label", "--epsilon", "2", "--delta", "1e-3", "--drop", "patient")
QUICK = (*TRAIN, "--sample-rate", "0.5", "--queries", "10", "--output", "run", "--quiet")
BARE = ("audit", "one-run", "run/config.toml")
AUDIT = (*BARE, "--canaries", "300")


@pytest.fixture
def run(table, tacita_command):
    assert tacita_command(*QUICK).code == 0
    return Path("run")


def test_a_run_is_audited_by_its_config(run, tacita_command):
    pytest.importorskip("matplotlib")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    found = tacita_command(*AUDIT, "--json", "audit.json", "--plot", "audit.png")
    assert found.code == 0
    assert found.out.startswith("AUDIT IN ONE RUN: CONSISTENT")
    assert "PRIVACY STATEMENT" in found.out
    assert "training with 300 canaries" in found.err
    assert "this spends up to another epsilon 2 at delta 0.001 on the same rows" in found.err.splitlines()[0]
    assert "the claim of the training session alone" in found.out
    assert "written to audit.json\nwritten to audit.png\n" in found.err
    said = json.loads(Path("audit.json").read_text())
    assert (said["verdict"], said["delta"], said["runs"], said["canaries"]) == ("consistent", 1e-3, 1, 300)
    assert said["epsilon_lower_bound"] < said["epsilon_claimed"] < said["epsilon_of_the_audit"] <= 2
    assert Path("audit.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before  # the run itself is left as it was
    assert {path.name for path in Path("run-audit").iterdir()} >= {"ledger.jsonl", "statement.txt"}
    assert tacita_command("statement", "run").code == 0
    again = tacita_command(*AUDIT)
    assert again.code == 2
    assert "never resumed" in again.err
    assert tacita_command(*AUDIT, "--output", "other", "--quiet").err == ""


def test_less_noise_than_claimed_is_refuted_by_exit_code_1(run, tacita_command, monkeypatch):
    begin = gate_module.ReleaseGate.__init__

    def wrong(self, session, mechanism, noise_std, randomness, *more, **rest):
        less = {block: 0.02 * std for block, std in noise_std.items()}
        begin(self, session, mechanism, less, randomness, *more, **rest)

    monkeypatch.setattr(gate_module.ReleaseGate, "__init__", wrong)
    monkeypatch.setattr(gate_module.ReleaseGate, "_check_paid", lambda self: None)  # which refuses so little noise
    monkeypatch.setattr(Randomness, "system", classmethod(lambda cls: cls.insecure(1)))  # one retraining is luck
    found = tacita_command(*BARE, "--canaries", "8000")
    assert found.code == 1
    assert found.out.startswith("AUDIT IN ONE RUN: REFUTED")


def test_an_audit_is_one_more_run_on_its_data_set(table, tacita_command):
    """Where runs on one data set are listed, its statement's reader is told of it."""
    assert tacita_command(*QUICK, "--dataset-name", "patients").code == 0
    assert tacita_command(*AUDIT, "--quiet").code == 0
    lines = [json.loads(line) for line in Path("tacita-runs.jsonl").read_text().splitlines()]
    assert [line["run"] for line in lines if line["finished"]] == ["run", "run-audit"]
    assert len({line["id"] for line in lines}) == 2
    assert "1 other run is recorded" in " ".join(tacita_command("statement", "run").err.split())


def test_a_run_may_be_given_by_its_folder(run, tacita_command):
    assert tacita_command("audit", "one-run", "run", "--canaries", "300", "--quiet").code == 0
    assert Path("run-audit/audit.json").exists()


def test_rows_and_the_final_loss(run, tacita_command):
    found = tacita_command(*AUDIT, "--kind", "rows", "--attack", "black_box", "--guesses", "50")
    assert found.code == 0
    assert "of 50 guesses right" in found.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--canaries", "3"), "canaries must be >= 50, got 3"),
        (("--plot", "audit.gif"), "plot must end in .png, .svg or .pdf"),
        (("--json", "nowhere/audit.json"), "json must be in a folder that exists"),
        (("--attack", "black_box"), "attack must be white_box with planted canaries"),
        (("--confidence", "95"), "confidence must be in (0, 1), got 95.0. 95 % is 0.95."),
        (("--kind", "ghosts"), "kind"),
    ],
)
def test_a_wrong_setting_spends_nothing(run, tacita_command, arguments, says):
    found = tacita_command(*BARE, *arguments)
    assert found.code == 2
    assert says in found.err
    assert found.err.count("\n") == 1
    assert not Path("run-audit").exists()


def test_a_config_that_is_none(table, tacita_command):
    found = tacita_command("audit", "one-run", "nowhere.toml")
    assert found.code == 2
    assert "config must be a readable text file" in found.err


def test_help(tacita_command):
    words = " ".join(tacita_command("audit", "one-run", "--help").out.split())
    assert "Example: tacita audit one-run" in words
    assert "one-run" in tacita_command("audit", "--help").out
