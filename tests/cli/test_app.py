"""The command line: one line for an error, exit codes, help that helps, a run that goes on after a kill."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import tacita.cli
import tacita.tables.purchases as purchases_module
from tacita.cli import app
from tacita.cli.app import COMMANDS, EXIT_CODES, make_app, run

TRAIN = ("train", "table.csv", "--target", "label", "--epsilon", "20", "--delta", "1e-3", "--drop", "patient")
QUICK = (*TRAIN, "--sample-rate", "0.5", "--queries", "4", "--output", "run")


def _one_line(err: str) -> str:
    assert err.startswith("tacita: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def test_train_predict_statement(table, tacita_command) -> None:
    trained = tacita_command(*QUICK)
    assert trained.code == 0
    assert trained.out.startswith("NOT PRIVATE") is False
    assert "PRIVACY STATEMENT" in trained.out
    assert "plan: 4 queries" in trained.err
    assert trained.out == Path("run/statement.txt").read_text()
    assert re.fullmatch("verdict: private.*; epsilon at most .*; (accuracy .*|no score)", trained.err.splitlines()[-1])
    predicted = tacita_command("predict", "run", "table.csv", "--output", "scored.csv")
    assert (predicted.code, predicted.out) == (0, "")
    assert Path("scored.csv").read_text().splitlines()[0].endswith("label,prediction,probability_no,probability_yes")
    stated = tacita_command("statement", "run")
    assert (stated.code, stated.out) == (0, trained.out)
    assert "the ledger is intact" in stated.err
    assert "that the ledger was sealed with" in stated.err
    again = tacita_command("train", "--config", "run/config.toml", "--output", "again")
    assert again.code == 0
    assert tacita_command("train", "--config", "run/config.toml").code == 2


def test_classes_on_the_command_line_are_not_bought(table, tacita_command) -> None:
    trained = tacita_command(*QUICK, "--classes", "no, yes")
    assert trained.code == 0
    assert "kept" not in trained.err
    assert "a label needs" not in trained.err
    assert 'classes = ["no", "yes"]' in Path("run/config.toml").read_text()
    assert "the target's values" not in trained.out


def test_a_log_shows_how_many_queries_are_made(table, tacita_command) -> None:
    lines = [line for line in tacita_command(*QUICK).err.splitlines() if line.startswith("training:")]
    assert lines == [f"training: {made} of 4 queries made" for made in range(1, 5)]


def test_a_curve_is_shown_on_public_rows_alone(table, tacita_command) -> None:
    *curve, last = tacita_command(*QUICK).err.splitlines()
    assert "accuracy" not in "".join(curve)
    assert last.startswith("verdict: ")
    assert "on public rows" in tacita_command(*QUICK[:-1], "other", "--test-file", "table.csv").err


def test_quiet_says_nothing_on_the_way(table, tacita_command) -> None:
    assert tacita_command(*QUICK, "--quiet").err == ""


def test_schema_and_check(table, tacita_command) -> None:
    drafted = tacita_command("schema", "table.csv", "--target", "label")
    written = tacita_command("schema", "table.csv", "--target", "label", "--output", "written.toml")
    assert (written.code, written.out, Path("written.toml").read_text()) == (0, "", drafted.out)
    assert drafted.code == 0
    assert "NOT PRIVATE" in drafted.out.splitlines()[0]
    assert "reviewed = false" in drafted.out
    Path("draft.toml").write_text(drafted.out)
    refused = tacita_command(*TRAIN[:2], *TRAIN[4:8], "--schema", "draft.toml", "--output", "run")
    assert refused.code == 2
    assert "reviewed must be true" in _one_line(refused.err)
    table.write_text(table.read_text() + "too,narrow\n")
    looked = tacita_command("check", "table.csv")
    assert looked.out.startswith("NOT PRIVATE")
    assert "too many or too few cells" in looked.out
    by_schema = tacita_command("check", "table.csv", "--schema", "draft.toml").out
    assert "too many or too few cells" in by_schema
    assert "--multiline reads quoted line breaks" in by_schema


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--epsilon", "0"), "epsilon must be a finite number > 0, got 0"),
        (("--epsilon", "inf"), "epsilon must be a finite number > 0, got inf"),
        (("--epsilon", "much"), "epsilon"),
        (("--sample-rate", "1.5"), "sample_rate must be in (0, 1], got 1.5"),
        (("--max-grad-norm", "0"), "max_grad_norm must be a finite number > 0, got 0"),
        (("--rows", "400", "--delta", "0.01"), "delta must be below 1 / rows"),
        (("--target", "nobody"), "no column 'nobody'"),
        (("--model", "tree"), "model must be linear, additive, mlp or"),
        (("--neighboring-relation", "add_two"), "neighboring-relation"),
        (("--epsilom", "1"), "--epsilom"),
        (("--schema", "nowhere.toml"), "schema must be a readable text file"),
        (("--config", "nowhere.toml"), "config must be a readable text file"),
        (("--output", "table.csv"), "output must be a new or an empty folder"),
        (("--output", "table.csv/run"), "output must be a folder"),
        (("--output", "/proc/nowhere"), "/proc/nowhere"),
    ],
)
def test_a_wrong_setting_is_one_line_and_loses_nothing(table, tacita_command, arguments, named: str) -> None:
    before = table.read_bytes()
    replaced = dict(zip(QUICK[2::2], QUICK[3::2], strict=True)) | dict(
        zip(arguments[::2], arguments[1::2], strict=True)
    )
    outcome = tacita_command(*QUICK[:2], *(word for pair in replaced.items() for word in pair))
    assert outcome.code == 2
    assert outcome.out == ""
    assert named in _one_line(outcome.err)
    assert not Path("run").exists()
    assert table.read_bytes() == before


def test_a_finished_run_is_never_overwritten(table, tacita_command) -> None:
    assert tacita_command(*QUICK).code == 0
    before = {path.name: path.read_bytes() for path in Path("run").iterdir()}
    outcome = tacita_command(*QUICK)
    assert outcome.code == 2
    assert "output must be a new or an empty folder" in _one_line(outcome.err)
    assert {path.name: path.read_bytes() for path in Path("run").iterdir()} == before


def test_missing_arguments_are_named(table, tacita_command) -> None:
    for gone in ("--epsilon", "--delta", "--output"):
        i = QUICK.index(gone)
        outcome = tacita_command(*QUICK[:i], *QUICK[i + 2 :])
        assert outcome.code == 2
        assert f"{gone[2:]} is missing" in _one_line(outcome.err)


def test_an_option_that_is_not_given_is_asked_for(tacita_command) -> None:
    outcome = tacita_command("epsilon", "--steps", "3", "--delta", "1e-5", "--noise-multiplier", "1")
    assert outcome.code == 2
    wanted = "--sample-rate NUMBER, the chance of a record to be in a step"
    assert outcome.err == f"tacita: error: sample_rate is missing: give {wanted}.\n"


def test_an_option_without_its_value_is_no_missing_option(tacita_command) -> None:
    assert "--epsilon requires an argument" in tacita_command("train", "new.csv", "--epsilon").err


def test_a_file_that_is_not_given_is_asked_for(tacita_command) -> None:
    for command in (("check",), ("schema",), ("predict", "run"), ("train",)):
        outcome = tacita_command(*command)
        assert outcome.code == 2
        assert "data is missing: give the file after the command" in outcome.err


def test_a_dry_run_finds_what_the_training_would_stop_at(table, tacita_command) -> None:
    given = ("train", "table.csv", "--target", "label", "--epsilon", "1", "--delta", "1e-5")
    for more, named in ((("--test-file", "none.csv"), "test_file"), (("--model", "nowhere:net"), "nowhere:net")):
        outcome = tacita_command(*given, *more, "--dry-run")
        assert outcome.code == 2
        assert named in outcome.err
    assert "where the budget goes" in tacita_command(*given, "--dry-run").out
    assert "output is missing" in tacita_command(*given).err


@pytest.mark.parametrize(("epsilon", "first"), [("19", "epsilon 19 at"), ("20", "CAUTION: epsilon promises")])
def test_a_dry_run_begins_with_what_the_verdict_will_warn_of(table, tacita_command, epsilon, first) -> None:
    words = f"train table.csv --target label --epsilon {epsilon} --delta 1e-5 --output run --dry-run"
    assert tacita_command(*words.split()).out.startswith(first)


def test_tampering_is_said_clearly(table, tacita_command) -> None:
    assert tacita_command(*QUICK).code == 0
    path = Path("run/ledger.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"planned_queries":4', b'"planned_queries":3'))
    outcome = tacita_command("statement", "run")
    assert outcome.code == 1
    assert "TAMPERED: ledger.jsonl" in outcome.err
    assert outcome.out.startswith("TAMPERED: ")  # also where standard error goes elsewhere
    assert "  - ledger.jsonl" in outcome.out.split("PRIVACY STATEMENT")[0]


def test_a_full_disk_is_one_line(table, tacita_command, monkeypatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        outcome = tacita_command(*QUICK)
    assert outcome.code == 2
    assert "No space left on device" in _one_line(outcome.err)
    assert outcome.err.endswith(
        "Free space first. To continue the training where it stopped, repeat the same command.\n"
    )
    assert tacita_command(*QUICK).code == 0


def test_what_fails_among_rows_is_not_quoted(table, tacita_command, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("could not convert 'SECRET'")

    monkeypatch.setattr(purchases_module, "survey_counts", broken)
    outcome = tacita_command(*QUICK)
    assert outcome.code == 2
    assert "SECRET" not in outcome.out + outcome.err


def test_an_error_of_our_own_is_not_quoted_either(table, tacita_command, monkeypatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("SECRET")

    monkeypatch.setattr("tacita.tables.train_table", broken)
    outcome = tacita_command(*QUICK)
    assert outcome.code == 70
    assert "internal error (KeyError)" in _one_line(outcome.err)
    assert "SECRET" not in outcome.err
    monkeypatch.setenv("TACITA_DEBUG", "1")
    with pytest.raises(KeyError, match="SECRET"):
        tacita_command(*QUICK)


def test_interrupted_it_says_how_to_go_on(table, tacita_command, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tacita.tables.train_table", interrupted)
    outcome = tacita_command(*QUICK)
    assert outcome.code == 130
    assert "repeat the same command" in outcome.err


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOENT, "give a path that exists"),
        (errno.EISDIR, "give the path of a file"),
        (errno.ENOTDIR, "A part of the path is a file"),
        (errno.ENOSPC, "Free space first."),
        (errno.EACCES, "Change the permissions"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_what_the_system_refuses_comes_with_its_way_out(capsys, number: int, says: str) -> None:
    def refused() -> int:
        raise OSError(number, os.strerror(number), "there")

    assert run(refused) == 2
    err = _one_line(capsys.readouterr().err)
    assert says in err
    assert "'there'" in err
    assert "continue the training" not in err  # nothing was trained


@pytest.mark.parametrize("command", ["statement", "predict"])
def test_a_run_that_is_not_given_is_asked_for(tacita_command, command: str) -> None:
    assert "give the folder of a run" in _one_line(tacita_command(command).err)


@pytest.mark.parametrize("command", ["train", "predict", "statement", "schema", "check", "plan"])
def test_every_command_has_help_with_an_example(tacita_command, command: str) -> None:
    outcome = tacita_command(command, "--help")
    assert outcome.code == 0
    words = " ".join(outcome.out.split())
    assert f"Example: tacita {command}" in words
    assert "In short" not in words  # the whole command line's
    assert command in tacita_command("--help").out


def test_no_help_waits_for_torch() -> None:
    """Nor for SciPy: both take seconds to import. One process shows the help of every command, nested ones included."""
    program = """
import sys
from tacita.cli.app import COMMANDS, make_app

commands = [[], *([name] for name in COMMANDS), ["audit", "one-run"]]
commands += [["federate", name] for name in ("simulate", "serve", "join")]
for words in commands:
    make_app()([*words, "--help"], result_action="return_value")
    slow = {"torch", "scipy", "numpy"} & set(sys.modules)
    assert not slow, f"tacita {' '.join(words)} --help imports {slow}"
    print("shown:", *words)
make_app()(["epsilon", "--sample-rate", "1", "--steps", "1", "--noise-multiplier", "9", "--delta", "1e-5"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("shown:") == len(COMMANDS) + 5
    assert "Usage: tacita federate serve" in done.stdout
    assert "epsilon           <=" in done.stdout  # what is imported late is imported where it is used


def test_help_gives_the_three_commands_one_needs(tacita_command) -> None:
    words = " ".join(tacita_command("--help").out.split())
    for command in ("tacita train adult.csv", "tacita predict runs/adult", "tacita statement runs/adult"):
        assert command in words


def test_help_and_docs_have_one_table_of_exit_codes(tacita_command) -> None:
    words = " ".join(tacita_command("--help").out.split())
    documented = (Path(__file__).parents[2] / "docs" / "statement.md").read_text()
    for code, says in EXIT_CODES.items():
        assert f"{code}: {says}" in words
        assert f"\n| {code} | {says} |\n" in documented


def test_a_process_killed_outright_goes_on(table, tacita_command) -> None:
    """SIGKILL while it trains; then the same command finishes the run. tests/training/test_kill.py kills anywhere."""
    command = [sys.executable, "-m", "tacita", *TRAIN, "--sample-rate", "0.5"]
    command += ["--queries", "600", "--output", "run"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait_for_progress(process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert Path("run/private/key.json").exists()
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "600 of 600 planned queries made" in " ".join(finished.stdout.split())
    assert not Path("run/private").exists()
    assert tacita_command("statement", "run").code == 0


def _wait_for_progress(process: subprocess.Popen) -> None:
    """Until its ledger has grown by more than registrations."""
    path = Path("run/ledger.jsonl")
    start = path.stat().st_size if path.exists() else 0
    while process.poll() is None and (not path.exists() or path.stat().st_size < start + 8000):
        time.sleep(0.02)


def test_a_schedulers_stop_is_an_interruption(table) -> None:
    """SIGTERM ends like Ctrl-C: one line, how to go on, exit code 130."""
    program = """
import os, signal
import tacita.cli.app as app

def stopped(command):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    except KeyboardInterrupt:
        return app.INTERRUPTED

app.run = stopped
app.main(["statement", "nowhere"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_line_of_each(name) -> None:
    _, summary = COMMANDS[name]
    shown = make_app()[name].help
    function = make_app()[name].default_command
    documented = shown or function.__doc__
    assert " ".join(documented.split("\n\n")[0].split()) == summary


def test_a_command_shows_its_own_help_and_the_list_one_line_of_it(capsys, monkeypatch) -> None:
    for words, shown in [(["--help"], "odd in a table"), (["check", "--help"], "Example: tacita check")]:
        with pytest.raises(SystemExit) as left:
            tacita.cli.main(words)
        assert left.value.code == 0
        assert shown in " ".join(capsys.readouterr().out.split())


def installed(monkeypatch, **commands: str) -> None:
    """Let the named commands be all that other distributions bring, each with a summary."""
    dist = SimpleNamespace(metadata={"Summary": "Say hello."})
    found = [SimpleNamespace(name=name, value=place, dist=dist) for name, place in commands.items()]
    monkeypatch.setattr(app, "entry_points", lambda group: found if group == "tacita.commands" else [])


def test_an_installed_distribution_adds_a_command(monkeypatch, tmp_path, tacita_command) -> None:
    (tmp_path / "hello_tacita.py").write_text(
        'def hello(name: str) -> None:\n    """Greet."""\n    print("hi", name)\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    installed(monkeypatch, hello="hello_tacita:hello")
    assert tacita_command("hello", "Ada").out == "hi Ada\n"
    assert "Greet." in tacita_command("hello", "--help").out


def test_the_list_of_commands_imports_no_other_distribution(monkeypatch, capsys) -> None:
    installed(monkeypatch, hello="nowhere_at_all:hello")
    with pytest.raises(SystemExit) as left:
        app.main(["--help"])
    assert not left.value.code
    assert "Say hello." in capsys.readouterr().out


def test_no_installed_command_takes_the_place_of_one_of_tacita(monkeypatch, tacita_command) -> None:
    installed(monkeypatch, statement="nowhere_at_all:statement")
    assert "Verify the ledger" in tacita_command("statement", "--help").out


@pytest.mark.parametrize("words", [[], ["dicesgd-mnist", "--full"], ["--help"]])
def test_without_the_experiments_reproduce_says_how_to_get_them(monkeypatch, tacita_command, words) -> None:
    installed(monkeypatch)
    outcome = tacita_command("reproduce", *words)
    assert outcome.code == 2
    assert "pip install ./reproductions" in _one_line(outcome.err)
    assert "reproduce" not in tacita_command("--help").out


def test_check_reads_a_file_by_its_schema_and_the_options_beside_it(tmp_path, monkeypatch, tacita_command):
    monkeypatch.chdir(tmp_path)
    Path("notes.csv").write_bytes(b'note,y\n"caf\xe9\nand more",1\n"b",0\n')
    Path("notes.toml").write_text("reviewed = true\n[reading]\nmultiline = true\n")
    looked = tacita_command("check", "notes.csv", "--schema", "notes.toml", "--encoding", "latin-1").out
    assert "2 records" in looked
    assert "too few cells" not in looked
