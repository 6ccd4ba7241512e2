"""Runs that were, or may have been, chosen among others say so."""

import json
from pathlib import Path

import pytest

from tacita.pipeline import check_run, train_table
from tacita.random import Randomness


def words(run):
    return " ".join(run.statement.split())


def listed():
    return [json.loads(line) for line in Path("tacita-runs.jsonl").read_text().splitlines()]


def test_a_run_chosen_by_hand_says_so(settings, table):
    run = train_table(settings(chosen_among=7))
    assert run.fields["chosen_among"] == 7
    assert "Chosen among 7 runs by looking at results outside of this guarantee: the price" in words(run)
    assert check_run("run").faults == ()
    plain = train_table(settings(output="other"))
    assert "chosen_among" not in plain.fields
    assert "Chosen among" not in words(plain)


def test_runs_under_one_name_are_flagged(settings, table):
    first = train_table(settings(output="a", dataset_name="patients"))
    assert first.fields["dataset"]["other_runs"] == 0
    assert check_run("a").notes == ()
    second = train_table(settings(output="b", dataset_name="patients"))
    other = train_table(settings(output="c", dataset_name="shops"))
    train_table(settings(output="d"))
    assert second.fields["dataset"]["other_runs"] == 1
    assert "1 other run is recorded on the data set 'patients'" in words(second)
    assert other.fields["dataset"]["other_runs"] == 0
    assert [line["run"] for line in listed()] == ["a", "b", "c"]
    checked = check_run("a")  # reported alone later on, it is flagged as well
    assert checked.faults == ()
    assert "1 other run is recorded" in checked.notes[0]
    assert check_run("c").notes == check_run("d").notes == ()


def test_statement_shows_the_flag(settings, table, tacita_command):
    for output in ("a", "b", "c"):
        train_table(settings(output=output, dataset_name="patients"))
    done = tacita_command("statement", "a")
    assert done.code == 0
    assert "note: 2 other runs are recorded on the data set 'patients'" in done.err


def test_a_run_that_goes_on_is_listed_once(settings, table, monkeypatch):
    import tacita.pipeline.table_task as module

    chosen = settings(dataset_name="patients")
    with monkeypatch.context() as patch:
        patch.setattr(module.TableTask, "write", lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_table(chosen)
    run = train_table(chosen)
    assert [line["run"] for line in listed()] == ["run"]
    assert run.fields["dataset"]["other_runs"] == 0


def test_a_line_that_cannot_be_read_counts(settings, table):
    Path("tacita-runs.jsonl").write_bytes(b'{"dataset_name": "shops", "id": "1"}\n\xff\xfe\n{"dataset_na')
    run = train_table(settings(dataset_name="patients"), randomness=Randomness.insecure(0))
    assert run.fields["dataset"]["other_runs"] == 2
    assert Path("tacita-runs.jsonl").read_bytes().endswith(b"}\n")
    assert json.loads(Path("tacita-runs.jsonl").read_bytes().splitlines()[-1])["dataset_name"] == "patients"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chosen_among": 1}, "chosen_among must be an integer >= 2"),
        ({"chosen_among": True}, "chosen_among must be"),
        ({"dataset_name": " "}, "dataset_name must be one line"),
        ({"dataset_name": "a\nb"}, "dataset_name must be one line"),
    ],
)
def test_wrong_settings(settings, changes, message):
    with pytest.raises(ValueError, match=message):
        settings(**changes)
