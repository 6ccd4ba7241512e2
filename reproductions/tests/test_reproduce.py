"""``tacita reproduce``: the list, a table, JSON, a folder, the exit code, and what it says without matplotlib."""

import builtins
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tacita.cli.app import commands
from tacita.report.style import new_figure, styled
from tacita_reproductions import Check, Experiment, Result, catalogue
from tacita_reproductions.cpu_seconds import CPU_SECONDS
from tacita_reproductions.reproduce import reproduce
from tacita_reproductions.runner import Paper
from tests.cli.test_working import wait_for_a_line


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """Two experiments: one that holds and draws, one that fails."""

    @styled
    def draw():
        return new_figure(size=(2, 1))[0]

    def run(held, drawn):
        return lambda full, seed, progress, data=None: Result(
            rows=[{"size": "full" if full else "small", "seed": seed}], checks=[Check("it holds", held)], draw=drawn
        )

    good = Experiment(name="good", title="Good.", source="nowhere", run=run(True, draw))
    bad = Experiment(name="bad", title="Bad.", source="nowhere", run=run(False, None), reads_data=True)
    lacks = ("The rest, for lack of it.",)
    papers = (Paper(name="toys", title="On toys", experiments=(good, bad), not_reproduced=lacks),)
    monkeypatch.setattr("tacita_reproductions.papers.PAPERS", papers)
    monkeypatch.setattr("tacita_reproductions.cpu_seconds.CPU_SECONDS", {"good": (2.0, None), "bad": (90.0, None)})
    monkeypatch.chdir(tmp_path)


def test_without_a_name_it_lists(toys, tacita_command):
    header, *lines, empty, first, second, papers = tacita_command("reproduce").out.splitlines()
    assert header.split() == ["name", "CPU", "time", "--data", "what", "it", "shows"]
    assert [line.split() for line in lines] == [["good", "2", "s", "-", "Good."], ["bad", "1.5", "min", "?", "Bad."]]
    assert (empty, "that of one core" in first, "not measured" in second) == ("", True, True)
    assert papers == "Papers, for --report: toys."
    listed = json.loads(tacita_command("reproduce", "--json").out)["experiments"]
    assert [entry["name"] for entry in listed] == ["good", "bad"]
    assert [entry["reads_data"] for entry in listed] == [False, True]
    assert [entry["cpu_seconds"] for entry in listed] == [2.0, 90.0]
    assert [entry["cpu_seconds_with_data"] for entry in listed] == [None, None]


def test_every_experiment_has_a_measured_time():
    assert list(CPU_SECONDS) == list(catalogue())
    for name, experiment in catalogue().items():
        alone, with_data = CPU_SECONDS[name]
        assert alone, name
        assert bool(with_data) == experiment.reads_data, name


def test_a_table_and_what_held(toys, tacita_command):
    done = tacita_command("reproduce", "good")
    assert done.code == 0
    assert "small" in done.out
    assert "holds  it holds.\n" in done.out
    assert not list(Path().iterdir())


def test_a_claim_that_fails_is_exit_code_1(toys, tacita_command):
    done = tacita_command("reproduce", "bad")
    assert done.code == 1
    assert "FAILS  it holds.\n" in done.out


def test_a_claim_that_is_not_decided_does_not_say_that_it_fails(toys, tacita_command, monkeypatch):
    open_one = Result(rows=[{"size": 1}], checks=[Check("one beats two", False, undecided=True)])
    entry = Experiment(name="open", title="Open.", source="nowhere", run=lambda *_: open_one)
    papers = (Paper(name="toys", title="On toys", experiments=(entry,)),)
    monkeypatch.setattr("tacita_reproductions.papers.PAPERS", papers)
    done = tacita_command("reproduce", "open")
    assert done.code == 1
    assert "depends one beats two.\n" in done.out
    assert "FAILS" not in done.out


def test_json_has_size_and_seed(toys, tacita_command):
    done = tacita_command("reproduce", "good", "--json", "--full", "--seed", "5")
    assert json.loads(done.out)["rows"] == [{"size": "full", "seed": 5}]


def test_a_folder_of_files(toys, tacita_command):
    pytest.importorskip("matplotlib")
    done = tacita_command("reproduce", "good", "--output", "figures")
    assert sorted(path.name for path in Path("figures").iterdir()) == ["good.html", "good.json", "good.png", "good.txt"]
    assert Path("figures/good.txt").read_text() == done.out


def test_one_page_about_all_results_of_a_paper(toys, tacita_command):
    pytest.importorskip("matplotlib")
    tacita_command("reproduce", "bad", "--output", "figures")
    done = tacita_command("reproduce", "toys", "--report", "--output", "figures")
    assert (done.code, done.out, done.err) == (0, "", "written to figures/toys.html\n")
    page = Path("figures/toys.html").read_text()
    assert "<h1>Reproduction: On toys</h1>" in page
    assert "0 of 1 claims hold; 1 fails" in page
    assert "The rest, for lack of it." in page
    assert "good has no result in this folder: run tacita reproduce good." in page
    tacita_command("reproduce", "good", "--output", "figures")
    tacita_command("reproduce", "toys", "--report", "--output", "figures")
    page = Path("figures/toys.html").read_text()
    assert "has no result in this folder" not in page
    assert "All experiments of this page" in page


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--report"], "name is missing: with --report, give the name of a paper, one of toys."),
        (["toys", "--report"], "output is missing: with --report, give --output FOLDER, the folder with the results."),
        (
            ["toy", "--report", "-o", "f"],
            "paper must be a name that tacita reproduce lists, got 'toy'. Did you mean 'toys'?",
        ),
        (["toys", "--report", "-o", "f"], "has none: run tacita reproduce good --output f first."),
        (["toys", "--report", "-o", "f", "--full"], "report cannot be given with full, json, seed or data:"),
        (["toys"], "toys is a paper: give one of its experiments, good, bad; or add --report for a page about it."),
    ],
)
def test_what_a_report_needs(toys, tacita_command, words, says):
    done = tacita_command("reproduce", *words)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_a_folder_that_cannot_be_made_is_said_before_the_work(toys, tacita_command):
    pytest.importorskip("matplotlib")
    Path("taken").write_text("")
    done = tacita_command("reproduce", "good", "--output", "taken/figures")
    assert (done.code, done.out) == (2, "")
    assert "output must be a folder" in done.err


def test_folders_above_are_made(toys, tacita_command):
    pytest.importorskip("matplotlib")
    done = tacita_command("reproduce", "good", "--output", "a/b")
    assert "written to a/b/good.json\n" in done.err
    assert Path("a/b/good.png").exists()


@pytest.mark.parametrize(("name", "end"), [("ugly", "The known ones are good, bad."), ("god", "Did you mean 'good'?")])
def test_an_unknown_name_says_which_there_are(toys, tacita_command, name, end):
    done = tacita_command("reproduce", name)
    assert done.code == 2
    assert done.err == f"tacita: error: experiment must be a name that tacita reproduce lists, got {name!r}. {end}\n"


def test_a_missing_matplotlib_is_said_before_the_work(toys, tacita_command, monkeypatch):
    whole = builtins.__import__

    def without(name, *rest, **more):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return whole(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    done = tacita_command("reproduce", "good", "--output", "figures")
    assert (done.code, done.out) == (2, "")
    assert "pip install '.[report]'" in done.err
    assert tacita_command("reproduce", "good").code == 0


def test_an_experiment_says_how_far_it_is(monkeypatch, tacita_command, log):
    def work(full, seed, progress):
        progress(0.5, "noise 2")
        wait_for_a_line(log)
        wait_for_a_line(log)
        raise ValueError("enough")

    slow = Experiment(name="slow", title="Slow.", source="nowhere", run=work)
    monkeypatch.setattr("tacita_reproductions.find", lambda name: slow)
    assert tacita_command("reproduce", "slow").code == 2
    assert "tacita: slow, noise 2: 50%" in log.getvalue()


def test_help_is_that_of_the_command_and_the_list_waits_for_no_torch(tacita_command) -> None:
    assert "Example: tacita reproduce" in " ".join(tacita_command("reproduce", "--help").out.split())
    program = """
import sys
from tacita.cli.app import make_app

make_app()(["reproduce", "--help"], result_action="return_value")
make_app()(["reproduce"], result_action="return_value")
slow = {"torch", "scipy", "numpy"} & set(sys.modules)
assert not slow, f"the list of experiments imports {slow}"
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_the_line_in_the_list_of_commands_is_the_first_of_the_docstring() -> None:
    assert commands()["reproduce"] == ("tacita_reproductions.reproduce:reproduce", reproduce.__doc__.split("\n\n")[0])
