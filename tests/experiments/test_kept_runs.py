"""Results of single runs: computed once, read again, whatever an interruption left."""

import json
import math

from tacita.experiments import kept_runs
from tacita.experiments.kept_runs import KeptRuns


def counted(calls, value):
    return lambda: calls.append(value) or {"loss": value}


def test_a_result_is_computed_once_and_read_by_the_next_run(tmp_path):
    path, calls = tmp_path / "deep" / "runs.jsonl", []
    runs = KeptRuns(path)
    for _ in range(2):
        assert runs({"seed": 1, "epsilon": None}, counted(calls, 0.1)) == {"loss": 0.1}
    assert runs({"seed": 2, "epsilon": None}, counted(calls, math.inf)) == {"loss": math.inf}
    again = KeptRuns(path)
    assert again({"epsilon": None, "seed": 1}, counted(calls, 9.0)) == {"loss": 0.1}
    assert again({"epsilon": None, "seed": 2}, counted(calls, 9.0)) == {"loss": math.inf}
    assert calls == [0.1, math.inf]


def test_nothing_is_kept_without_a_file():
    calls = []
    KeptRuns(None)({"seed": 1}, counted(calls, 0.1))
    KeptRuns(None)({"seed": 1}, counted(calls, 0.1))
    assert calls == [0.1, 0.1]


def test_a_line_that_is_cut_off_is_computed_again(tmp_path):
    path, calls = tmp_path / "runs.jsonl", []
    KeptRuns(path)({"seed": 1}, counted(calls, 0.1))
    KeptRuns(path)({"seed": 2}, counted(calls, 0.2))
    path.write_text(path.read_text()[:-20])
    assert KeptRuns(path)({"seed": 2}, counted(calls, 0.3)) == {"loss": 0.3}
    last = KeptRuns(path)
    assert last({"seed": 1}, counted(calls, 9.0)) == {"loss": 0.1}
    assert last({"seed": 2}, counted(calls, 9.0)) == {"loss": 0.3}


def test_strange_lines_and_other_versions_are_not_used(tmp_path, monkeypatch):
    path, calls = tmp_path / "runs.jsonl", []
    KeptRuns(path)({"seed": 1}, counted(calls, 0.1))
    path.write_text(path.read_text() + "[]\n3\n{}\n\n")
    assert KeptRuns(path)({"seed": 1}, counted(calls, 9.0)) == {"loss": 0.1}
    monkeypatch.setattr(kept_runs, "tacita_version", lambda: "another")
    assert KeptRuns(path)({"seed": 1}, counted(calls, 0.2)) == {"loss": 0.2}
    assert len([json.loads(line) for line in path.read_text().splitlines() if line]) == 5
