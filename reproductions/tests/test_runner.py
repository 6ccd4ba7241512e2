"""The runner: what a result looks like on paper, in JSON and in a folder; and the catalogue."""

import json
import re

import pytest

from tacita.report.style import new_figure, styled
from tacita_reproductions import Check, Experiment, Result, catalogue, find
from tacita_reproductions.catalogue import find_paper, paper_of
from tacita_reproductions.papers import PAPERS
from tacita_reproductions.result_cells import as_table, cell, in_words
from tacita_reproductions.result_files import as_json, as_record, write
from tacita_reproductions.runner import Paper, sentence

ROWS = [{"method": "a", "gap": 0.123456}, {"method": "b", "gap": float("inf")}]


def toy(held=True, draw=None):
    result = Result(rows=ROWS, checks=[Check("a is small", held, found="0.1 (0.02)")], notes=["medians"], draw=draw)
    return Experiment(name="toy", title="A toy.", source="nowhere", run=lambda full, seed, progress: result)


def test_a_result_holds_if_every_check_does():
    assert toy(True)().holds
    assert not toy(False)().holds
    assert Result(rows=[]).holds


def test_the_record_is_json_whatever_the_figures():
    experiment = toy()
    record = as_record(experiment, experiment(), full=False, seed=3)
    read = json.loads(as_json(record))
    assert read["rows"] == [{"method": "a", "gap": 0.123456}, {"method": "b", "gap": "inf"}]
    assert read["checks"] == [{"says": "a is small.", "found": "0.1 (0.02)", "held": True, "verdict": "holds"}]
    assert (read["seed"], read["full"], read["notes"]) == (3, False, ["medians."])


def test_run_is_given_size_seed_and_progress():
    seen = []
    experiment = Experiment(
        name="toy",
        title="",
        source="",
        run=lambda full, seed, progress: (seen.append((full, seed)), progress(0.5, "half"), Result(rows=[]))[-1],
    )
    told = []
    experiment(full=True, seed=7, progress=lambda share, what: told.append((share, what)))
    assert (seen, told) == ([(True, 7)], [(0.5, "half")])
    with pytest.raises(ValueError, match="seed must be an integer >= 0, got -1"):
        experiment(seed=-1)


def test_files_of_a_result(tmp_path):
    @styled
    def draw():
        figure, axes = new_figure(size=(2, 1))
        axes.plot([0, 1])
        return figure

    pytest.importorskip("matplotlib")
    experiment = toy(draw=draw)
    result = experiment()
    record = as_record(experiment, result, full=False, seed=0)
    paths = write(tmp_path / "deep" / "folder", record, "text\n", result.draw)
    assert [path.name for path in paths] == ["toy.json", "toy.txt", "toy.png", "toy.html"]
    assert json.loads(paths[0].read_text())["name"] == "toy"
    assert paths[1].read_text() == "text\n"
    assert paths[2].read_bytes().startswith(b"\x89PNG")


def test_no_figure_no_png(tmp_path):
    experiment = toy()
    result = experiment()
    paths = write(tmp_path, as_record(experiment, result, full=False, seed=0), "", None)
    assert [path.suffix for path in paths] == [".json", ".txt", ".html"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.123456, "0.1235"), (1234567, "1,234,567"), ("a", "a"), (True, "yes"), (1e-9, "1e-09")],
)
def test_cells(value, shown):
    assert in_words(value) == shown


def test_the_table_has_a_column_a_name():
    table = as_table(toy()())
    assert [column.header for column in table.columns] == ["method", "gap"]
    assert [column.justify for column in table.columns] == ["left", "right"]
    assert table.row_count == 2


def test_names_are_found_and_unknown_ones_say_what_there_is():
    for name, experiment in catalogue().items():
        assert find(name) is experiment
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert experiment.title
        assert experiment.source
    with pytest.raises(ValueError, match=r"lists, got 'nothing'\. The known ones are dp-clipped-sgd-floor, "):
        find("nothing")
    with pytest.raises(ValueError, match=r"got 'dicesgd-figure2'\. Did you mean 'dicesgd-figure-2' or .*\?$"):
        find("dicesgd-figure2")


def test_every_experiment_is_in_one_paper_and_has_a_function():
    for name, experiment in catalogue().items():
        paper = paper_of(name)
        assert paper is not None
        assert find_paper(paper.name) is paper
        assert name.startswith(paper.name) or name == "error-feedback-one-pass"
        assert isinstance(experiment.run, str)
        assert callable(experiment._function()), name
    assert all(paper.not_reproduced for paper in PAPERS)
    assert all(text.endswith(".") for paper in PAPERS for text in paper.not_reproduced)
    assert paper_of("toy") is None
    with pytest.raises(ValueError, match=r"got 'dicesgdd'\. Did you mean 'dicesgd'\?"):
        find_paper("dicesgdd")
    with pytest.raises(ValueError, match="dicesgd is a paper: give one of its experiments, dicesgd-mnist, "):
        find("dicesgd")


def test_a_printed_epsilon_is_still_a_bound():
    assert cell("real epsilon, delta 0.01", 1.00001) == "1.001"
    assert cell("epsilon", 0.125) == "0.125"
    assert cell("accuracy", 1.00001) == "1"
    assert cell("delta at epsilon 1", 1.00001) == "1"
    assert cell("epsilon", float("inf")) == "inf"
    assert cell("claimed epsilon", None) == "–"


def test_what_is_listed_and_shown_ends_like_a_sentence():
    for experiment in catalogue().values():
        assert experiment.title == sentence(experiment.title), experiment.name
    shown = as_record(toy(), Result(rows=[], checks=[Check("it holds", True)], notes=["one run"]), full=False, seed=0)
    assert shown["checks"][0]["says"] == "it holds."
    assert shown["notes"] == ["one run."]


def test_two_experiments_of_one_name_are_an_error(monkeypatch):
    twice = Paper(name="toys", title="Toys", experiments=(toy(), toy()))
    monkeypatch.setattr("tacita_reproductions.papers.PAPERS", (twice,))
    with pytest.raises(AssertionError, match="two experiments are called toy"):
        catalogue()
