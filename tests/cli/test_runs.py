"""``tacita list``, ``tacita show``, and predictions on standard output."""

import json
import os
import sys
from pathlib import Path

import pytest

import tacita.pipeline.table_task as module
from tacita.cli.outputs import write_bytes
from tacita.pipeline import train_table


@pytest.fixture
def runs(settings, table, monkeypatch):
    """A finished run, one that was stopped, and a folder that holds no run."""
    train_table(settings(output="runs/done", dataset_name="patients"))
    with monkeypatch.context() as patch:
        patch.setattr(module.TableTask, "write", lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_table(settings(output="runs/stopped"))
    Path("runs/notes").mkdir()


def test_every_run_is_listed_with_its_state(runs, tacita_command):
    done = tacita_command("list", "runs")
    assert done.code == 0
    lines = {line.split()[0]: line for line in done.out.splitlines() if line.strip()}
    assert "finished" in lines["done"]
    assert "patients" in lines["done"]
    assert "private" in lines["done"]
    assert "0.001" in lines["done"]
    assert "unfinished" in lines["stopped"]
    assert "notes" not in lines
    (Path("runs/done") / "model.safetensors").write_bytes(b"x")
    changed = tacita_command("list", "runs")
    assert changed.code == 1
    assert "changed" in changed.out
    (Path("runs/done") / "statement.json").write_text("[")
    assert tacita_command("list", "runs").code == 1


def test_a_folder_without_runs(table, tacita_command):
    empty = tacita_command("list")
    assert (empty.code, empty.out) == (0, "")
    assert "no runs in ." in empty.err
    assert "folder must be a folder of runs" in tacita_command("list", "nowhere").err


def test_show_says_the_guarantee_and_checks_everything(runs, tacita_command):
    done = tacita_command("show", "runs/done")
    stated = json.loads(Path("runs/done/statement.json").read_text())
    assert done.code == 0
    assert "finished, verified" in done.out
    assert "at delta 0.001, add_or_remove_one, one row of the table" in done.out
    assert stated["run"]["id"] in done.out
    assert json.loads(tacita_command("show", "runs/done", "--json").out) == stated
    assert "unfinished" in tacita_command("show", "runs/stopped").out
    assert "holds no run" in tacita_command("show", "runs/notes").err
    path = Path("runs/done/statement.json")
    path.write_text(json.dumps({**stated, "epsilon": 0.1}))
    changed = tacita_command("show", "runs/done")
    assert changed.code == 1
    assert "CHANGED: statement.json is not the statement that the ledger was sealed with" in changed.out


def test_a_seeded_run_shows_no_guarantee(settings, table, tacita_command):
    train_table(settings(seed=3))
    assert "none; if the noise were secret, epsilon <= " in tacita_command("show", "run").out
    listed = tacita_command("list", ".").out
    (line,) = [line for line in listed.splitlines() if "not private" in line]
    assert "not private   -" in line


def test_predictions_go_to_standard_output(settings, table, tacita_command):
    train_table(settings())
    done = tacita_command("predict", "run", "table.csv")
    assert (done.code, done.err) == (0, "")
    tacita_command("predict", "run", "table.csv", "--output", "scored.csv")
    assert done.out == Path("scored.csv").read_text()


def test_a_reader_that_wants_no_more_is_no_error(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        write_bytes([b"header\n"])
        assert os.read(reading, 100) == b"header\n"
        os.close(reading)
        asked = []
        write_bytes(asked.append(i) or bytes(2**16) for i in range(100))
        assert len(asked) < 100
        print("what follows goes nowhere")
