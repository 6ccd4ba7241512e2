"""Runs that were, or may have been, chosen among others say so."""

import json
import math
from pathlib import Path

import pytest

from tacita.ledger.text_lines import rounded_up
from tacita.random import Randomness
from tacita.runs import run_list
from tacita.runs.run_list import ListedRun
from tacita.tables import check_run, train_table


def words(run):
    return " ".join(run.statement.split())


def listed():
    return [json.loads(line) for line in Path("tacita-runs.jsonl").read_text().splitlines()]


def test_a_run_chosen_by_hand_says_so(settings, table):
    run = train_table(settings(chosen_among=7))
    assert run.fields["chosen_among"] == 7
    assert "Chosen among 7 runs by looking at results outside of this guarantee: the price" in words(run)
    first = run.statement.split("\n\n")[0]
    assert first.startswith("CHOSEN AMONG 7 RUNS by looking at results")
    bound = rounded_up(7 * run.fields["epsilon"])
    assert f"have epsilon <= {bound} at delta = {7 * run.fields['delta']:g}." in " ".join(first.split())
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
    assert [line["run"] for line in listed() if line["finished"]] == ["a", "b", "c", "d"]
    checked = check_run("a")  # reported alone later on, it is flagged as well
    assert checked.faults == ()
    assert "1 other run is recorded" in checked.notes[0]
    assert check_run("c").notes == check_run("d").notes == ()


def test_runs_on_one_file_are_flagged_without_a_name(settings, table):
    train_table(settings(output="a"))
    assert train_table(settings(output="b")).fields["verdict_warnings"] == [
        "1 other run on the same data cost in addition"
    ]
    copy = Path(settings().data).rename("others.csv")
    assert train_table(settings(output="c", data=str(copy))).fields["dataset"]["other_runs"] == 0


def test_runs_under_one_name_are_added_up(settings, table):
    for output, epsilon in (("a", 20.0), ("b", 8.0)):
        run = train_table(settings(output=output, dataset_name="patients", epsilon=epsilon))
        if output == "a":
            assert "Other runs: none listed under this name in tacita-runs.jsonl when this was stated." in words(run)
    total = run.fields["dataset"]["together"]
    assert 28 <= total["epsilon"] <= 28 * (1 + 1e-15)
    assert 2e-3 <= total["delta"] <= 2e-3 * (1 + 1e-15)
    assert "With this one they guarantee epsilon <= 28 at delta <= 0.002 (added up)" in words(run)


def test_a_run_from_a_seed_is_listed_as_one(settings, table):
    train_table(settings(output="a", dataset_name="patients"), randomness=Randomness.insecure(0))
    run = train_table(settings(output="b", dataset_name="patients"))
    assert [line["secret_noise"] for line in listed() if line["finished"]] == [False, True]
    assert "No total can be stated: the noise of a run came from a seed" in words(run)
    exact = train_table(settings(output="c", dataset_name="shops", non_private_holdout=True))
    assert listed()[-1]["exact_score"] is True
    assert exact.fields["dataset"]["together"]["epsilon"] is None


OTHER = {
    "run": "other",
    "id": "1",
    "epsilon": 1.0,
    "delta": 1e-3,
    "neighboring_relation": "add_or_remove_one",
    "privacy_unit": "one row of the table",
    "secret_noise": True,
    "exact_score": False,
}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"neighboring_relation": "replace_one"}, "differ in neighbouring relation"),
        ({"privacy_unit": "one person"}, "differ in neighbouring relation or privacy unit"),
        ({"secret_noise": False}, "came from a seed"),
        ({"exact_score": True}, "exact score of held-out rows"),
        ({"epsilon": -5.0}, "cannot be read"),
        ({"epsilon": "0"}, "cannot be read"),
        ({"epsilon": 1.7e308}, "cannot be read"),
        ({"delta": 0.9999999}, "add up to 1 or more"),
        ({"delta": math.nan}, "cannot be read"),
        ({"delta": None}, "cannot be read"),
        ({"dataset_name": "shops", "epsilon": None}, None),
    ],
)
def test_no_total_where_none_follows(tmp_path, changes, why):
    path, mine = tmp_path / "tacita-runs.jsonl", {"name": "patients", "id": "0"}
    lines = [{**OTHER, "dataset_name": "patients", "id": "0"}, {**OTHER, "dataset_name": "patients", **changes}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = run_list.together(path, mine)
    if why is None:
        runs = 1 if "dataset_name" in changes else 2
        assert found == {name: runs * OTHER[name] for name in ("epsilon", "delta")}
    else:
        assert (found["epsilon"], found["delta"]) == (None, None)
        assert why in found["why"]


def test_no_total_from_a_list_that_cannot_be_read(tmp_path):
    path = tmp_path / "tacita-runs.jsonl"
    assert run_list.together(path, {"name": "patients", "id": "0"})["epsilon"] is None
    path.write_bytes(json.dumps({**OTHER, "dataset_name": "patients", "id": "0"}).encode() + b"\n\xff\n")
    assert run_list.together(path, {"name": "patients", "id": "0"})["epsilon"] is None


def test_statement_shows_the_flag(settings, table, tacita_command):
    for output in ("a", "b", "c"):
        train_table(settings(output=output, dataset_name="patients"))
    done = tacita_command("statement", "a")
    assert done.code == 0
    assert "note: 2 other runs are recorded on the data set 'patients'" in done.err


def test_a_run_that_goes_on_is_listed_once(settings, table, monkeypatch):
    import tacita.tables.table_task as module

    chosen = settings(dataset_name="patients")
    with monkeypatch.context() as patch:
        patch.setattr(module.TableTask, "write", lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train_table(chosen)
    run = train_table(chosen)
    assert [(line["run"], len(line["lineage"]), line["finished"]) for line in listed()] == [
        ("run", 1, False),
        ("run", 2, False),
        ("run", 2, True),
    ]
    assert run.fields["dataset"]["other_runs"] == 0
    assert run.fields["dataset"]["together"]["epsilon"] == chosen.epsilon


def test_a_copy_of_a_run_that_still_goes_on_counts_once_both_are_finished(tmp_path):
    run, copy = (ListedRun("rows", str(tmp_path / name), 1.0, 1e-5, "replace_one", "one row") for name in "ab")
    first = Randomness.system()
    first.save(tmp_path / "key")
    second = Randomness.load(tmp_path / "key")
    run.record(first)
    copy.record(second)
    assert json.loads((tmp_path / "key").read_text())["lineage"] == [*second.lineage]
    stated = copy.stated(second)
    assert stated["other_runs"] == 0  # as where the first was killed
    copy.record(second, finished=True)
    run.record(first, finished=True)
    assert run_list.others(tmp_path / "b", stated) == ("a",)
    assert run_list.others(tmp_path / "a", run.stated(first)) == ("b",)
    assert "a copy of a run went on by itself" in run_list.together(tmp_path / run_list.NAME, stated)["why"]


@pytest.mark.parametrize("lineage", [None, 5, [{}], [[1], "x"], {}, []])
def test_a_damaged_lineage_counts_as_a_run(tmp_path, lineage):
    line = {**OTHER, "dataset_name": "patients", "lineage": lineage}
    (tmp_path / run_list.NAME).write_text(json.dumps(line) + "\n")
    mine = {"name": "patients", "id": "0", "process": "p"}
    assert run_list.others(tmp_path / "mine", mine) == ("other",)
    assert run_list.together(tmp_path / run_list.NAME, mine)["epsilon"] is not None


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
