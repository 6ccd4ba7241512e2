"""``tacita list``, ``tacita show``, and predictions on standard output."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tacita.tables.table_task as module
from tacita.cli.app import run
from tacita.cli.outputs import write_bytes
from tacita.cli.runs import _model_in_words
from tacita.ledger.verdict import verdict
from tacita.report.run_numbers import RunNumbers
from tacita.report.run_page import report_page
from tacita.tables import train_table


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


def test_auc_stands_beside_accuracy(settings, table, tacita_command):
    train_table(settings(output="runs/exact", non_private_holdout=True))
    score = json.loads(Path("runs/exact/statement.json").read_text())["holdout_score"]
    said = f"accuracy {score['value']:.3f}, AUC {score['AUC']['value']:.3f}"
    assert said in tacita_command("list", "runs").out
    assert said in tacita_command("show", "runs/exact").out


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
    stopped = tacita_command("show", "runs/stopped")
    assert stopped.code == 1
    assert "unfinished" in stopped.out
    assert "holds no run" in tacita_command("show", "runs/notes").err
    path = Path("runs/done/statement.json")
    path.write_text(json.dumps({**stated, "epsilon": 0.1}))
    changed = tacita_command("show", "runs/done")
    assert changed.code == 1
    assert "TAMPERED: statement.json is not the statement that the ledger was sealed with" in changed.out
    assert "verdict     changed\n" in changed.out
    assert "epsilon not verified at" in changed.out
    assert "score       not verified\n" in changed.out
    listed = tacita_command("list", "runs").out
    assert "not verified" in listed
    assert "private" not in listed


def test_a_seeded_run_shows_no_guarantee(settings, table, tacita_command):
    train_table(settings(seed=3))
    shown = tacita_command("show", "run").out
    assert "epsilon none (at most 19.99" in shown
    assert "if the noise were secret)" in shown
    for words in (("show", "run"), ("statement", "run"), ("report", "run", "--output", "page.html")):
        assert tacita_command(*words).code == 1
    listed = tacita_command("list", ".").out
    (line,) = [line for line in listed.splitlines() if "not private" in line]
    assert "if the noise were secret" in line


def test_predictions_go_to_standard_output(settings, table, tacita_command):
    train_table(settings())
    done = tacita_command("predict", "run", "table.csv")
    assert (done.code, done.err) == (0, "")
    tacita_command("predict", "run", "table.csv", "--output", "scored.csv")
    assert done.out == Path("scored.csv").read_text()
    before, *lines = Path("table.csv").read_text().splitlines(keepends=True)
    bad = "one,row,of,many,more,cells\n"
    Path("table.csv").write_text("".join([before, lines[0], bad, *lines[1:], bad]))
    for output in ((), ("--output", "scored.csv")):
        ragged = tacita_command("predict", "run", "table.csv", *output)
        words = f"(too many or too few cells?): 2, {len(lines) + 2}, counted from the first row after a header"
        assert (ragged.code, f"without a prediction: 2 rows that could not be read {words}" in ragged.err) == (0, True)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "not said"),
        ({"model": "mlp"}, "mlp"),
        ({"model": "mlp", "task": "regression", "target": "y"}, "mlp, regression of y"),
    ],
)
def test_show_names_what_is_known_of_the_model(fields, words):
    assert _model_in_words(fields) == words


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


def test_an_enormous_epsilon_is_not_shown_as_a_promise(settings, table, tacita_command):
    train_table(settings(epsilon=500.0))
    page = report_page([RunNumbers.of("run")])
    shown, listed = tacita_command("show", "run").out, tacita_command("list", ".").out
    for text in (shown, " ".join(listed.split()), page):
        assert "promises next" in text
    assert "verdict     private, but epsilon promises next to nothing" in shown
    assert "Private, as stated, but epsilon promises next to nothing" in page
    assert 'class="verdict good"' not in page
    for text in (shown, page, " ".join(Path("run/statement.txt").read_text().split())):
        assert "may be right more than 99.99 % of the time" in text
        assert "at most 100 %" not in text
    assert json.loads(Path("run/statement.json").read_text())["verdict"] == "private"
    assert tacita_command("statement", "run").code == 0


def test_classes_are_said_as_they_are_given(settings, table, tacita_command):
    says = "Classes as given: no, yess. Rows whose target is none of them contribute nothing"
    words = ("train", "table.csv", "--target", "label", "--epsilon", "20", "--delta", "1e-3", "--classes", "no,yess")
    quick = (*words, "--drop", '"patient",kind', "--sample-rate", "0.5", "--queries", "2", "--output", "run")
    assert f"{says}.\n" in tacita_command(*quick, "--dry-run").out
    assert f"{says}, and no message tells how many: check" in tacita_command(*quick, "--dry-run", "--rows", "400").out
    done = tacita_command(*quick)
    assert says in done.err
    assert says in " ".join(done.out.split())
    assert "Classes as given" not in " ".join(train_table(settings(output="bought")).statement.split())


def test_a_name_that_holds_a_comma_is_quoted(table, tacita_command):
    Path("comma.csv").write_text(Path("table.csv").read_text().replace("x,y,kind", 'x,y,"kind, old"', 1))
    words = ("train", "comma.csv", "--target", "label", "--epsilon", "20", "--delta", "1e-3", "--output", "run")
    done = tacita_command(*words, "--drop", '"kind, old", patient', "--sample-rate", "0.5", "--queries", "2")
    assert done.code == 0
    assert json.loads(Path("run/statement.json").read_text())["columns"]["dropped_by_option"] == [
        "kind, old",
        "patient",
    ]
    assert 'dropped by option (2): "kind, old", patient' in " ".join(done.out.split())
    assert "drop must hold names separated by commas" in tacita_command(*words, "--drop", '"kind, old').err


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words", [("--help",), ("epsilon", "--steps=9", "--sample-rate=1", "--noise-multiplier=9", "--delta=1e-5")]
)
def test_a_closed_pipe_ends_a_command_without_a_word(words, unbuffered):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "tacita", *words],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_pipe_of_its_own_that_breaks_is_an_error(capsys):
    def broken():
        raise BrokenPipeError(32, "Broken pipe")

    assert run(broken) == 2
    assert "Broken pipe" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "warns"),
    [
        ({"delta": 0.1, "allow_large_delta": True}, "delta is so large that whole records may be published"),
        ({"drop": ("x", "y", "patient")}, "its score may be that of a constant guess"),
        ({"seed": 3}, None),
    ],
)
def test_no_view_leaves_out_a_warning(settings, table, tacita_command, changes, warns):
    """One verdict: statement, JSON, show, list, report and exit codes have it from one function."""
    run = train_table(settings(**changes))
    weighed = verdict(run.fields)
    assert run.fields["verdict"] == weighed.word
    assert run.fields["verdict_warnings"] == list(weighed.warnings)
    assert warns is None or warns in weighed.warnings
    views = {words: tacita_command(*words, "run") for words in (("statement",), ("show",), ("list",))}
    views["report",] = tacita_command("report", "run", "--output", "page.html")
    page = Path("page.html").read_text()
    texts = [*(view.out for view in views.values() if view.out), page, run.statement]
    for text in texts:
        flat = " ".join(re.sub(r"<[^>]*>", " ", text).split()).casefold()
        for words in (weighed.word.split(",")[0], *weighed.warnings):
            assert all(word in flat for word in words.casefold().split()), (words, flat)
    assert 'class="verdict good"' not in page
    assert {view.code for words, view in views.items() if words != ("list",)} == {int(not weighed.guaranteed)}
