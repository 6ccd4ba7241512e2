"""No folder of a run and no configuration makes a command import code, unless the caller allows it."""

import sys
from pathlib import Path

import pytest

QUICK = (
    "train",
    "table.csv",
    "--target",
    "label",
    "--epsilon",
    "20",
    "--delta",
    "1e-3",
    "--drop",
    "patient",
    "--quiet",
)
QUICK = (*QUICK, "--sample-rate", "0.5", "--queries", "4", "--output", "run")
GRID = 'mean_runs = 2\n[grid]\nmodel = ["linear", "own_net:deep"]\n'


@pytest.fixture
def ran(table, monkeypatch):
    """Forgets the user's module, and says whether it was imported since."""
    Path("own_net.py").write_text(
        "from pathlib import Path\n"
        "from torch import nn\n"
        "Path('imported').touch()\n"
        "def deep(inputs, outputs):\n"
        "    return nn.Sequential(nn.Linear(inputs, 5), nn.ReLU(), nn.Linear(5, outputs))\n"
    )
    monkeypatch.syspath_prepend(str(table.parent))

    def forget_and_look():
        found = Path("imported").exists()
        Path("imported").unlink(missing_ok=True)
        sys.modules.pop("own_net", None)
        return found

    forget_and_look()
    return forget_and_look


@pytest.fixture
def own(ran, tacita_command):
    """A run whose model is the user's own, named on the command line."""
    assert tacita_command(*QUICK, "--model", "own_net:deep").code == 0
    assert ran()


PREDICT = ("predict", "run", "table.csv", "--output", "scored.csv")


def test_predict_imports_code_only_if_it_is_trusted(own, ran, tacita_command) -> None:
    refused = tacita_command(*PREDICT)
    assert refused.code == 2
    assert "'own_net:deep'" in refused.err
    assert "--trust-code" in refused.err
    assert not ran()
    assert not Path("scored.csv").exists()
    assert tacita_command(*PREDICT, "--trust-code").code == 0
    assert ran()


def test_the_statement_imports_no_code(own, ran, tacita_command) -> None:
    assert tacita_command("statement", "run").code == 0
    assert not ran()


@pytest.mark.parametrize(
    "command", [("train", "--output", "other"), ("audit", "one-run", "--canaries", "60")], ids=" ".join
)
def test_a_configuration_imports_code_only_if_it_is_trusted(own, ran, tacita_command, command) -> None:
    config = ("--config", "run/config.toml") if command[0] == "train" else ("run",)
    refused = tacita_command(*command, *config)
    assert refused.code == 2
    assert "'own_net:deep'" in refused.err
    assert "--trust-code" in refused.err
    assert not ran()
    tacita_command(*command, *config, "--trust-code")
    assert ran()


def test_a_model_of_the_command_line_is_allowed_by_it(own, ran, tacita_command) -> None:
    again = tacita_command("train", "--config", "run/config.toml", "--output", "again", "--model", "own_net:deep")
    assert again.code == 0
    assert ran()
    assert tacita_command("train", "--config", "run/config.toml", "--output", "plain", "--model", "linear").code == 0
    assert not ran()


def test_a_grid_in_a_configuration_is_looked_at_too(table, ran, tacita_command) -> None:
    Path("config.toml").write_text(f"sweep = '''{GRID}'''\n")
    refused = tacita_command(*QUICK, "--config", "config.toml")
    assert refused.code == 2
    assert "--trust-code" in refused.err
    assert not ran()
    assert not Path("run").exists()
