"""A small table, quick settings, and runs of the command line inside the process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tacita.cli.app import make_app, run
from tacita.gradients.program.engine import Programs
from tacita.tables import TableSettings
from tests.traced_once import build_once

ROOT = Path(__file__).parent
SCHEMA = """
rows = 400
[target]
column = "label"
classes = ["no", "yes"]
[columns.x]
kind = "number"
lower = -3
upper = 3
"""
CLASSIFICATION = "reviewed = true" + SCHEMA.replace("[target]", '[target]\ntask = "classification"')
RUN_FILES = {
    "config.toml",
    "ledger.head.json",
    "ledger.jsonl",
    "model.safetensors",
    "preprocessing.json",
    "statement.json",
    "statement.txt",
}


def table_text(rows: int = 400, seed: int = 0) -> str:
    """Two numbers, a category, a patient of about four rows, and a label that follows from them."""
    rng = np.random.default_rng(seed)
    x, y, kind = rng.normal(size=rows), rng.integers(0, 50, rows), rng.choice(["red", "green", "blue"], rows)
    label = np.where(x + 0.04 * (y - 25) + (kind == "red") > 0.3, "yes", "no")
    patient = rng.integers(0, rows // 4 + 1, rows)
    lines = [f"{a:.4f},{b},{c},p{p},{z}" for a, b, c, p, z in zip(x, y, kind, patient, label, strict=True)]
    return "x,y,kind,patient,label\n" + "\n".join(lines) + "\n"


@pytest.fixture(autouse=True)
def equal_networks_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the program of an equal network, but in tests of programs: tracing takes longer than most tests."""
    if ROOT / "gradients" not in request.path.parents:
        monkeypatch.setattr(Programs.__init__, "__defaults__", (build_once,))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CSV in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "table.csv"
    path.write_text(table_text())
    return path


@pytest.fixture
def settings() -> Callable[..., TableSettings]:
    """Settings of a quick run on ``table.csv``; each may be replaced."""

    def make(**changes: Any) -> TableSettings:
        quick: dict[str, Any] = {
            "data": "table.csv",
            "output": "run",
            "target": "label",
            "epsilon": 20.0,
            "delta": 1e-3,
            "drop": ("patient",),
            "sample_rate": 0.5,
            "queries": 4,
        }
        return TableSettings(**{**quick, **changes})

    return make


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def tacita_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run ``tacita ARGUMENTS`` inside the process."""

    def command(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = run(lambda: make_app()(list(arguments), result_action="return_value"))
        return Outcome(code, *capsys.readouterr())

    return command
