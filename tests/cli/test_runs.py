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
from tacita.tables import check_run, train_table
from tacita.tables.run_verdict import run_verdict
from tests.ledger.test_seal import rewritten


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


def test_a_ledger_that_was_shortened_and_chained_anew_is_listed_as_changed(runs, tacita_command):
    path = Path("runs/done/ledger.jsonl")
    lines = path.read_bytes().splitlines()
    rewritten(path, *(line for line in lines if b'"score-1"' not in line))
    listed = tacita_command("list", "runs")
    assert (listed.code, "statement.json is that of another ledger") == (1, check_run("runs/done").faults[0])


def test_a_run_without_its_statement_is_listed(runs, tacita_command):
    for path in Path("runs/done").glob("statement.*"):
        path.unlink()
    assert "changed" in tacita_command("list", "runs/done").out
    assert "statement.json cannot be read" in tacita_command("show", "runs/done").err


def test_lines_that_are_gone_from_the_list_of_runs_are_said(settings, table):
    for name in ("one", "two"):
        train_table(settings(output=f"runs/{name}", dataset_name="patients"))
    kept = Path("runs/tacita-runs.jsonl").read_bytes().splitlines(keepends=True)
    assert not any("are gone" in note for note in check_run("runs/two").notes)
    Path("runs/tacita-runs.jsonl").write_bytes(kept[-1])
    assert any("are gone: it names 0 other runs, and 1 when this" in note for note in check_run("runs/two").notes)


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
    assert "verdict     CAUTION: epsilon promises next to nothing; private\n" in shown
    assert "CAUTION: epsilon promises next to nothing; private, as stated" in page
    assert 'class="verdict good"' not in page
    for text in (shown, page, " ".join(Path("run/statement.txt").read_text().split())):
        assert "may be right more than 99.99 % of the time" in text
        assert "at most 100 %" not in text
    assert json.loads(Path("run/statement.json").read_text())["verdict"] == "private"
    assert tacita_command("statement", "run").code == 0


def test_classes_are_said_as_they_are_given(settings, table, tacita_command):
    says = "Classes as given: no, yes, yess. Rows whose target is none of them contribute nothing"
    words = ("train", "table.csv", "--target", "label", "--epsilon", "20", "--delta", "1e-3", "--classes=no,yes,yess")
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


ABOUT = {"responsible": "Ward analytics", "contact": "privacy@example.org", "purpose": "to plan beds"}
OTHER = {"dataset_name": "patients"}


def another_run(settings):
    train_table(settings(output="other", **OTHER))


def audited(settings):
    fields = json.loads(Path("run/statement.json").read_text())
    of = {name: fields[name] for name in ("neighboring_relation", "privacy_unit")}
    bounds = {"epsilon_claimed": 1.0, "epsilon_lower_bound": 2.0, "delta": 1e-3, "largest_possible_lower_bound": 3.0}
    counts = dict.fromkeys(("correct_guesses", "guesses", "canaries"), 9)
    audit = {**bounds, **counts, "verdict": "refuted", "confidence": 0.95, "adversary": "x", "verdict_at": bounds}
    Path("run-audit").mkdir()
    Path("run-audit/audit.json").write_text(json.dumps({**of, "audit": {**audit, "epsilon_of_the_audit": None}}))


def with_a_key(settings):
    Path("run/private").mkdir()
    Path("run/private/key.json").write_text("{}")


def with_a_patient(settings):
    Path("run/patients.csv").write_text("Ada Moreau\n")


CHOSEN = "chosen among 7 runs by their results, which costs more than this epsilon"
VIEWS = ("statement", "show", "list", "report", "card", "verify", "sign")


@pytest.mark.parametrize(
    ("changes", "then", "says"),
    [
        ({"delta": 0.1, "allow_large_delta": True}, None, "delta is so large that whole records may be published"),
        ({"epsilon": 500.0}, None, "epsilon promises next to nothing"),
        ({"target": "kind", "drop": ("x", "label", "patient")}, None, None),  # most often a score like a guess
        ({"chosen_among": 7}, None, CHOSEN),
        ({"chosen_among": 7, "non_private_holdout": True}, None, CHOSEN),
        (OTHER, another_run, "1 other run on the same data cost"),
        ({}, with_a_key, "its key or a checkpoint is still in private/"),
        ({"seed": 3}, None, "not private"),
        ({}, audited, "refuted"),
        ({"about": {"purpose": "to plan beds"}}, None, "NOT TO BE SIGNED: responsible, contact are not given"),
        ({"about": {}}, None, "NOT TO BE SIGNED: responsible, contact, purpose are not given"),
    ],
)
@pytest.mark.usefixtures("table", "keys")
def test_no_view_leaves_out_a_warning(settings, tacita_command, changes, then, says):
    """One verdict: statement, JSON, show, list, report, card, verify, sign and exit codes have it from one function."""
    run = train_table(settings(**{"about": ABOUT, **changes}))
    stated = verdict(run.fields)
    assert (run.fields["verdict"], run.fields["verdict_warnings"]) == (stated.word, list(stated.warnings))
    if then is not None:
        then(settings)
    weighed = run_verdict("run", run.fields, changed=False)
    if not weighed.missing:
        assert says is None or any(says in one for one in (weighed.word, *weighed.warnings))
    words = {**dict.fromkeys(VIEWS, ("run",)), "report": ("run", "--output", "page.html")}
    words |= {"sign": ("run", "--key", "officer", "--signer", "Ada"), "verify": ("run", "--public-key", "officer.pub")}
    signable = weighed.guaranteed and not weighed.missing
    may_be_signed = signable and then is not with_a_key
    if signable:
        assert (tacita_command("sign", *words["sign"]).code == 0) == may_be_signed
    views = {view: tacita_command(view, *words[view]) for view in VIEWS}
    page = Path("page.html").read_text()
    for view, done in views.items():
        text = re.sub(r"<[^>]*>", " ", done.out + done.err + page * (view == "report")).replace("\\", "")
        text = " ".join(text.split()).casefold()
        said = (
            [weighed.word.split(",")[0], *weighed.warnings] if may_be_signed or view not in ("verify", "sign") else []
        )
        said += [says.split(":")[0]] if weighed.missing and says and view not in ("verify", "card") else []
        for one in said:
            assert all(word in text for word in one.casefold().split()), (view, one, text)
        if view != "list":
            assert (done.code == 0) == (weighed.guaranteed and (may_be_signed or view not in ("sign", "verify"))), view
    assert ('class="verdict good"' in page) == weighed.good
    assert ('class="sign"' in page) == signable
    if then is None:
        assert ("Signature: ____" in run.statement) == signable


@pytest.mark.parametrize("view", VIEWS)
def test_epsilon_stands_beside_what_it_has_to_be_compared_by(settings, table, keys, tacita_command, view):
    """Delta, neighbours and unit, as docs/nist-sp-800-226.md says."""
    train_table(settings(about=ABOUT))
    words = {**dict.fromkeys(VIEWS, ("run",)), "report": ("run", "run", "--output", "page.html")}
    words |= {"sign": ("run", "--key", "officer", "--signer", "Ada"), "verify": ("run", "--public-key", "officer.pub")}
    assert tacita_command("sign", *words["sign"]).code == 0
    text = tacita_command(view, *words[view]).out
    if view == "report":
        text = re.sub(r"<[^>]*>", " ", Path("page.html").read_text()).partition("Comparison")[2].partition("Epsilon")[0]
    text = " ".join(text.replace("\\", "").split())
    assert all(one in text for one in ("19.99", "0.001", "add_or_remove_one", "one row of the table")), text


@pytest.mark.parametrize(
    ("changes", "leaves", "stays"),
    [
        ({}, {"model.safetensors", "statement.json"}, None),
        ({"non_private_holdout": True}, {"model.safetensors"}, "statement.json, ledger.jsonl"),
        ({"seed": 3}, set(), "statement.json, ledger.jsonl"),
    ],
)
@pytest.mark.usefixtures("table")
def test_which_files_may_leave_follows_from_the_verdict(settings, tacita_command, changes, leaves, stays):
    run = train_table(settings(**changes))
    names = set(run.fields["files_policy"]["may_leave"])
    assert names & {"model.safetensors", "statement.json", "statement.txt", "ledger.jsonl"} >= leaves
    assert ("statement.json" in names) == (stays is None)
    assert stays is None or stays in run.fields["files_policy"]["never"][0]
    assert check_run("run").faults == ()
    assert ("Covered: no file." in " ".join(run.statement.split())) == (not leaves)
    assert (
        ("NOTHING: the verdict is not private." in run.statement) == ("In words:" not in run.statement) == (not leaves)
    )
    card = tacita_command("card", "run").out
    assert ("model.safetensors" in card.partition("Covered")[2].partition("Must stay")[0]) == bool(leaves)


def test_files_that_no_seal_covers_are_named(settings, table, keys, tacita_command):
    train_table(settings(about=ABOUT))
    Path("run/patients.csv").write_text("Ada Moreau\n")
    Path("run/more").mkdir()
    words = {**dict.fromkeys(VIEWS, ("run",)), "report": ("run", "--output", "page.html")}
    words |= {"sign": ("run", "--key", "officer", "--signer", "Ada"), "verify": ("run", "--public-key", "officer.pub")}
    for view in ("sign", "verify", "show", "statement", "report", "card"):
        done = tacita_command(view, *words[view])
        text = done.out + done.err + (Path("page.html").read_text() if view == "report" else "")
        assert "no seal and no signature covers these files, whatever they say: more/, patients.csv" in text
        assert done.code == 0
    assert check_run("run").faults == ()


def test_an_unfinished_run_has_one_exit_code_and_says_what_is_spent(runs, tacita_command, keys):
    words = {**dict.fromkeys(VIEWS, ("runs/stopped",)), "report": ("runs/stopped", "--output", "page.html")}
    words |= {"sign": (*words["sign"], "--key", "officer", "--signer", "A")}
    words |= {"verify": (*words["verify"], "--public-key", "officer.pub")}
    for view in VIEWS:
        done = tacita_command(view, *words[view])
        assert "unfinished" in done.out + done.err
        if view != "list":
            assert done.code == 1, view
            assert "train-1, 4 of 4 planned queries" in done.out + done.err
