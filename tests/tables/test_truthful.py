"""What a run says of itself is true: classes kept, task, constants, the plan before anything is spent, balance."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import tacita
from tacita.random import Randomness
from tacita.tables import train_table
from tacita.tables.dry_run import plan_in_words, what_survives
from tacita.tables.plan import TablePlan, noise_stds
from tacita.tables.source import declared_schema, open_source
from tacita.tables.table_task import TableTask

HEAD = "x,y,label\n"


def rows_of(labels, seed=0) -> str:
    """Two columns that tell the label, and the label."""
    rng = np.random.default_rng(seed)
    return "".join(f"{label + rng.normal() / 4:.3f},{rng.normal():.3f},c{label}\n" for label in labels)


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def table(labels) -> None:
        Path("table.csv").write_text(HEAD + rows_of(labels))

    return table


def test_labels_that_were_not_bought_are_wrong_and_said(settings, write) -> None:
    """Two classes of many rows, and a third of the rows with labels of their own."""
    write([i % 2 if i % 3 else 100 + i for i in range(9000)])
    said: list[str] = []
    run = train_table(settings(drop=(), queries=60), say=said.append)
    assert tacita.load("run").classes == ("c0", "c1")
    found = run.fields["holdout_score"]
    assert found["interval"][0] < 0.67 * 0.98 < found["interval"][1] < 0.8
    assert any("kept 2 classes" in line and "have another label" in line for line in said)
    words = " ".join(run.statement.split())
    assert "Kept 2 classes" in words
    assert "3" in words.partition("Kept 2 classes")[2][:80]
    assert found["level"] == 0.95
    assert found["constant_guess"]["label"] in ("c0", "c1")
    assert found["constant_guess"]["value"] == pytest.approx(1 / 3, abs=0.03)


def test_the_guess_of_declared_classes_says_its_noise(settings, write) -> None:
    """It is a sum over ten bins, and may pass for better than a score that has less noise."""
    write([i % 2 for i in range(3000)])
    run = train_table(settings(drop=(), queries=5, classes=("c0", "c1")))
    found = run.fields["holdout_score"]
    expected = 2 * 10**0.5 * found["noise_std"]["classes"] / found["rows"]
    assert found["constant_guess"]["noise"] == pytest.approx(expected, rel=0.01)
    assert f"give or take {found['constant_guess']['noise']:.3f} of noise" in " ".join(run.statement.split())


def test_the_score_without_noise_counts_them_too(settings, write) -> None:
    write([i % 2 if i % 3 else 100 + i for i in range(9000)])
    run = train_table(settings(drop=(), queries=60, non_private_holdout=True))
    assert run.fields["holdout_score"]["value"] == pytest.approx(0.67, abs=0.06)


ONE_LABEL = [
    ([1] * 300, "no label but 'c1'"),
    ([0] * 290 + [1] * 2, "no label but 'c0'"),
    (list(range(300)), "no label"),
    ([], "no label"),
]


@pytest.mark.parametrize(("labels", "seen"), ONE_LABEL)
@pytest.mark.parametrize("model", ["linear", "additive"])
def test_fewer_than_two_labels_stop_before_the_training(settings, write, labels, seen, model) -> None:
    write(labels)
    with pytest.raises(
        tacita.TacitaError, match=f"nothing to train on: {seen} stood out of the noise in column 'label'"
    ):
        train_table(settings(drop=(), epsilon=2.0, delta=1e-5, model=model, average=None))
    assert not Path("run/statement.json").exists()


def test_the_task_is_said_where_it_is_decided(settings, table) -> None:
    said: list[str] = []
    run = train_table(settings(), say=said.append)
    assert any(line.startswith("task: classification, since") and "--task" in line for line in said)
    assert "task = classification" in run.fields["chosen_by_tacita"]
    said.clear()
    run = train_table(settings(target="x", task="regression", output="declared"), say=said.append)
    assert any(line == "task: regression, as declared" for line in said)
    assert not any(word.startswith("task =") for word in run.fields["chosen_by_tacita"])


@pytest.mark.parametrize(("epsilon", "deviations"), [(3.0, 3**0.5), (30.0, 3)])  # less noise, a larger bound
def test_what_the_stated_r2_bounds_is_said_in_the_units_of_the_target(settings, table, epsilon, deviations) -> None:
    run = train_table(settings(target="x", task="regression", epsilon=epsilon), randomness=Randomness.insecure(0))
    target = json.loads((run.folder / "preprocessing.json").read_bytes())["encoder"]["target"]
    centre, most = target["centre"], deviations * target["scale"]
    words = (
        f"It is the R2 of bounded values: an error, of the target as it is, above {most:.4g} counts as {most:.4g}; and "
        f"where the targets' spread is taken, one outside {centre - most:.4g} to {centre + most:.4g} "
        "counts as the nearer end"
    )
    assert words in run.fields["holdout_score"]["how"]
    assert "R2 of bounded values" in " ".join(run.statement.split())
    assert "bounded values" not in train_table(settings(output="classes")).statement


def test_what_a_value_needs_is_said_before_anything_is_spent(settings, table, monkeypatch) -> None:
    said: list[str] = []

    def stop(*arguments, **more):
        raise RuntimeError

    monkeypatch.setattr("tacita.tables.purchases.TablePurchases.rows_and_task", stop)
    with pytest.raises(RuntimeError):
        train_table(settings(), say=said.append)
    assert any("a label needs about" in line for line in said)
    assert all(session.queries_made == 0 for session in tacita.Ledger.load("run/ledger.jsonl").sessions)


def test_what_a_label_needs_is_what_it_gets(settings, write) -> None:
    """The number that is printed: half as many rows are seen in hardly any run, twice as many in every one."""
    write([0] * 4000)
    chosen = settings(drop=(), epsilon=1.0, delta=1e-5, task="classification")
    plan = TablePlan.of(chosen, open_source(chosen, declared_schema(chosen)))
    (line,) = [line for line in what_survives(plan) if "a label needs" in line]
    needed = int(line.split("about ")[1].split()[0])
    asked = {"drop": (), "epsilon": 1.0, "delta": 1e-5, "task": "classification", "queries": 2}
    for i in range(3):
        write([0] * 4000 + [1] * (needed // 2))
        with pytest.raises(tacita.TacitaError, match=f"no label but 'c0' .* needs about {needed} rows"):
            train_table(settings(**asked, output=f"few{i}"), randomness=tacita.Randomness.insecure(i))
        write([0] * 4000 + [1] * 2 * needed)
        train_table(settings(**asked, output=f"more{i}"), randomness=tacita.Randomness.insecure(i))
        assert len(tacita.load(f"more{i}").classes) == 2


@pytest.mark.parametrize(
    ("epsilon", "says"), [(20.0, "and look at the AUC"), (2.0, "none will be stated, but on public rows (--test-file)")]
)
def test_what_a_rare_class_means_is_said_before_the_training(settings, write, epsilon, says) -> None:
    write([0] * 9600 + [1] * 400)
    said: list[str] = []
    run = train_table(settings(drop=(), epsilon=epsilon, delta=1e-5, queries=20), say=said.append)
    (line,) = [line for line in said if "the rarest class, 'c1', has about" in line]
    assert re.search(r"about (3\.[89]|4\.[0-2])% of the rows: always answering 'c0' is right in about 9[56]\.\d%", line)
    assert line.endswith(says)
    score = run.fields["holdout_score"]
    assert ("AUC" in score) == ("too few of these rows for a balanced accuracy or an AUC" not in score["how"])
    assert ("AUC" in score) == (epsilon == 20)


def test_nothing_is_said_of_classes_of_a_size(settings, write) -> None:
    write([0] * 500 + [1] * 100)
    said: list[str] = []
    train_table(settings(drop=(), queries=2), say=said.append)
    assert not any("rarest" in line for line in said)


def test_the_advice_to_name_columns_comes_with_many_of_them(settings, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"c{i}" for i in range(2000)]
    Path("table.csv").write_text(",".join([*names, "label"]) + "\n")
    words = plan_in_words(settings(drop=(), epsilon=1.0, delta=1e-5))
    assert "leave nothing of so many columns: declare them in a schema" in words
    assert not Path("run").exists()


def test_a_dry_run_prints_the_plan_that_is_registered(settings, table, tacita_command) -> None:
    flags = ("--target", "label", "--epsilon", "2", "--delta", "1e-4", "--queries", "3", "--drop", "patient")
    dry = tacita_command("train", "table.csv", *flags, "--output", "run", "--dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert not Path("run").exists()
    assert tacita_command("train", "table.csv", *flags, "--output", "run").code == 0
    for session in tacita.Ledger.load("run/ledger.jsonl").sessions:
        noise = " and ".join(f"{value:.3g}" for value in noise_stds(session.event))
        assert f"noise of {noise} " in dry.out
    for jargon in ("mu^2", "max_contribution", "noise_std", "Poisson", "query", "-1:"):
        assert jargon not in dry.out


def test_balanced_weights_are_public_and_at_most_one(settings, write, monkeypatch) -> None:
    write([0] * 3000 + [1] * 600)
    seen = []
    records = TableTask.records

    def watch(self, *arguments):
        seen.append(records(self, *arguments))
        return seen[-1]

    monkeypatch.setattr(TableTask, "records", watch)
    run = train_table(settings(drop=(), balanced=True))
    _, target, weights = seen[0].dataset.whole()
    counts = dict(json.loads(Path("run/preprocessing.json").read_bytes())["survey"]["columns"][-1]["values"])
    assert (target == 1).sum() > 450  # of 600, less one in ten held out
    assert (weights[target == 1] == 1).all()
    assert weights[target == 0].unique().tolist() == pytest.approx([counts["c1"] / counts["c0"]])
    assert any("weight of a row" in word for word in run.fields["chosen_by_tacita"])
    assert {"balanced_accuracy", "AUC"} <= set(run.fields["holdout_score"])


def test_balanced_finds_the_rare_class(settings, write) -> None:
    rng = np.random.default_rng(1)
    target = (rng.random(6000) < 0.08).astype(int)
    lines = "".join(f"{1.5 * t + rng.normal():.3f},{rng.normal():.3f},c{t}\n" for t in target)
    recall = {}
    for balanced in (False, True):
        Path("table.csv").write_text(HEAD + lines)
        train_table(settings(drop=(), balanced=balanced, queries=100, output=f"b{balanced}"))
        x = [float(line.split(",")[0]) for line in lines.splitlines()]
        said = tacita.load(f"b{balanced}").predict({"x": x, "y": [0.0] * len(x)})
        recall[balanced] = (said[target == 1] == "c1").mean()
    assert recall[True] > recall[False] + 0.3
    assert recall[True] > 0.6


def test_balanced_needs_bought_counts(settings, table) -> None:
    Path("schema.toml").write_text('[target]\ncolumn = "label"\nclasses = ["no", "yes"]\n')
    with pytest.raises(ValueError, match="balanced weighs rows by bought counts"):
        train_table(settings(schema="schema.toml", drop=(), balanced=True))
    with pytest.raises(ValueError, match="balanced belongs to a classification"):
        settings(balanced=True, task="regression")


@pytest.mark.parametrize(("rows", "columns"), [(456, 30), (1400, 64)])
def test_few_rows_of_many_columns_learn(settings, tmp_path, monkeypatch, rows: int, columns: int) -> None:
    """Seen: a constant at epsilon 1, where a linear model of public scale reaches 0.94."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(rows)
    target = rng.integers(0, 2, rows)
    scales = 10.0 ** rng.uniform(-2, 3, columns)
    values = (3 + rng.normal(size=(rows, columns)) + 0.7 * target[:, None]) * scales
    lines = [",".join(f"{v:.4g}" for v in row) + f",{t}" for row, t in zip(values, target, strict=True)]
    Path("table.csv").write_text(",".join([*(f"c{i}" for i in range(columns)), "label"]) + "\n" + "\n".join(lines))
    run = train_table(settings(drop=(), epsilon=1.0, delta=1e-6, queries=None, sample_rate=None))
    model = tacita.load("run")
    said = model.predict({f"c{i}": values[:, i] for i in range(columns)})
    assert (said == target.astype(str)).mean() > 0.85
    assert abs(run.fields["rows"]["value"] - rows) < 5 * 31
