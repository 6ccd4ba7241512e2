"""The whole path: files, statement, resume, bad input, hostile rows, every kind of file."""

import errno
import importlib
import json
import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from torch import nn

import tacita
import tacita.tables.table_oracle as oracle_module
import tacita.tables.table_task as task_module
from tacita.errors import ResumeError
from tacita.random import Randomness
from tacita.tables import TableSettings, check_run, read_table, train_table
from tacita.tables.encoded_file import EncodedFile
from tacita.tables.purchases import TablePurchases
from tests.conftest import RUN_FILES, SCHEMA

FIELDS = (
    "epsilon epsilon_spent delta neighboring_relation privacy_unit sampler sample_rate planned_queries "
    "noise_multiplier noise_std max_grad_norm accountant secure_randomness ledger_sha256 holdout_score purchases "
    "chosen_by_tacita caveats"
)


def test_a_run_leaves_its_files_and_nothing_private(settings, table) -> None:
    run = train_table(settings())
    assert {path.name for path in Path("run").iterdir()} == RUN_FILES
    assert set(FIELDS.split()) <= set(run.fields)
    assert run.fields["epsilon"] <= 20.0
    assert run.fields["secure_randomness"] is True
    assert run.fields["planned_queries"] == run.fields["queries_made"] == 4
    assert [one["session"] for one in run.fields["purchases"]] == [*("rows", "survey", "refinement", "score")]
    assert run.fields["holdout_score"]["private"] is True
    assert any("--unit-column" in caveat for caveat in run.fields["caveats"])
    assert not any(choice.startswith("queries") for choice in run.fields["chosen_by_tacita"])
    assert any(choice.startswith("max_grad_norm = 2") for choice in run.fields["chosen_by_tacita"])
    assert check_run("run").faults == ()
    assert Path("run/statement.txt").read_text() == run.statement


def test_the_config_runs_again(settings, table) -> None:
    train_table(settings())
    again = TableSettings.from_toml(Path("run/config.toml").read_text())
    assert again == settings()
    with pytest.raises(ResumeError, match="output must be a new or an empty folder"):
        train_table(again)


def test_it_learns(settings, table) -> None:
    run = train_table(settings(queries=60, sample_rate=0.2))
    model = tacita.load("run")
    cells = pyarrow.csv.read_csv("table.csv")
    right = model.predict(cells) == np.array(cells["label"].to_pylist(), dtype=object)
    assert right.mean() > 0.8
    assert abs(run.fields["holdout_score"]["value"] - right.mean()) < 0.2


@pytest.fixture
def own_model(monkeypatch: pytest.MonkeyPatch, table: Path) -> str:
    Path("own_net.py").write_text(
        "from torch import nn\n"
        "def deep(inputs, outputs):\n"
        "    return nn.Sequential(nn.Linear(inputs, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, outputs))\n"
        "answer = 42\n"
    )
    monkeypatch.syspath_prepend(str(table.parent))
    sys.modules.pop("own_net", None)
    return "own_net:deep"


@pytest.mark.parametrize("model", ["linear", "mlp", "own_net:deep"])
def test_every_kind_of_model(settings, own_model, model: str) -> None:
    train_table(settings(model=model, **({"width": 7} if model == "mlp" else {})))
    if ":" in model:
        with pytest.raises(tacita.TacitaError, match=r"'own_net:deep'.*allow it with --trust-code"):
            tacita.load("run")
    loaded = tacita.load("run", trust_code=":" in model)
    chances = loaded.predict_proba({"x": [0.1, 2.0], "y": [3, 4], "kind": ["red", "nobody has seen"]})
    assert chances.shape == (2, len(loaded.classes))
    np.testing.assert_allclose(chances.sum(1), 1)
    with pytest.raises(ValueError, match="model must be importable"):
        train_table(settings(model="own_net:shallow", output="other"))
    with pytest.raises(ValueError, match="model must name a callable"):
        train_table(settings(model="own_net:answer", output="other"))
    assert not Path("other").exists()


def test_a_regression(settings, table) -> None:
    run = train_table(settings(target="x", queries=60, sample_rate=0.2))
    assert (run.fields["task"], run.fields["holdout_score"]["measure"]) == ("regression", "R2 of bounded values")
    predicted = tacita.load("run").predict({"y": [1, 2], "kind": ["red", "red"], "label": ["yes", "no"]})
    assert predicted[0] > predicted[1]  # a high x goes with yes
    with pytest.raises(ValueError, match="predict_proba needs a classification"):
        tacita.load("run").predict_proba({"y": [1], "kind": ["red"], "label": ["yes"]})


def test_a_redone_score_of_a_regression_is_the_same(settings, table, monkeypatch) -> None:
    """Killed after the score was released, and resumed: rounded by the same coins, it costs nothing again."""
    asked = settings(target="x", queries=20)
    with monkeypatch.context() as patch:
        patch.setattr(task_module, "publish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_table(asked)
    counted = []
    real = task_module.score.exact_counts
    monkeypatch.setattr(
        task_module.score, "exact_counts", lambda *a, **more: counted.append(real(*a, **more)) or counted[-1]
    )
    run = train_table(asked)
    assert run.fields["holdout_score"]["measure"] == "R2 of bounded values"
    assert len(counted) == 1
    assert check_run(run.folder).faults == ()


def test_a_rows_coins_follow_from_its_place_in_any_chunk() -> None:
    stream = Randomness.insecure(0).session_key("holdout").stream("rounding", "score")
    whole = task_module.score._coins(stream, 0, 50)
    assert np.array_equal(whole[:, 30:], task_module.score._coins(stream, 30, 20))
    assert whole.shape == (3, 50)
    assert np.unique(whole).size == whole.size
    assert 0 <= whole.min() < whole.max() < 1


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_parquet_and_npz(settings, table) -> None:
    cells = pyarrow.csv.read_csv("table.csv")
    pyarrow.parquet.write_table(cells, "table.parquet")
    train_table(settings(data="table.parquet", output="parquet"))
    pixels = (np.arange(400)[:, None, None] % 2 * 200 + np.zeros((400, 2, 3))).astype(np.uint8)
    np.savez("table.npz", image=pixels, digit=np.arange(400) % 2)
    train_table(settings(data="table.npz", target="digit", drop=(), output="npz", queries=40))
    model = tacita.load("npz")
    assert model.encoder.pieces[0].shape == (2, 3)
    assert (model.predict({"image": pixels}) == np.array(["0", "1"] * 200, dtype=object)).mean() > 0.9


@pytest.fixture
def decoded(settings, table, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Runs on a Parquet file with small row groups: the row groups that were decoded while training, in order."""
    cells = pyarrow.csv.read_csv("table.csv")
    pyarrow.parquet.write_table(cells, "table.parquet", row_group_size=100)
    seen: list[int] = []

    class Counting(pyarrow.parquet.ParquetFile):
        def iter_batches(self, *args: Any, row_groups: Any = None, **more: Any) -> Any:
            for group in range(self.num_row_groups) if row_groups is None else row_groups:
                seen.append(group)
                yield from super().iter_batches(*args, row_groups=[group], **more)

        def read_row_group(self, i: int, *args: Any, **more: Any) -> Any:
            seen.append(i)
            return super().read_row_group(i, *args, **more)

        def read_row_groups(self, row_groups: Any, *args: Any, **more: Any) -> Any:
            seen.extend(row_groups)
            return super().read_row_groups(row_groups, *args, **more)

        def read(self, *args: Any, **more: Any) -> Any:
            seen.extend(range(self.num_row_groups))
            return super().read(*args, **more)

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", Counting)

    def of(queries: int, output: str) -> list[int]:
        seen.clear()
        train_table(settings(data="table.parquet", output=output, queries=queries, sample_rate=0.1))
        return seen.copy()

    return of


def test_random_batches_of_a_parquet_file_decode_no_row_group_again(decoded) -> None:
    """A file is decoded to buy bounds and to encode its rows; Poisson batches then read the encoded rows."""
    few, many = decoded(2, "few"), decoded(20, "many")
    assert few == many
    counts = {group: few.count(group) for group in few}
    assert len(counts) == 4
    assert len(set(counts.values())) == 1
    assert max(counts.values()) <= 6  # to check, count, survey, refine, encode; never for a batch


def test_the_count_of_row_groups_sees_a_file_that_is_decoded_for_every_batch(decoded, monkeypatch) -> None:
    fetch = EncodedFile.fetch

    def converted_again(self: EncodedFile, indices: np.ndarray, seed: int) -> Any:
        read_table("table.parquet")
        return fetch(self, indices, seed)

    monkeypatch.setattr(EncodedFile, "fetch", converted_again)
    assert len(decoded(20, "many")) > len(decoded(2, "few")) + 60


def test_a_public_test_file_takes_no_row_from_the_training(settings, table) -> None:
    Path("test.csv").write_text(table.read_text())
    run = train_table(settings(test_file="test.csv"))
    assert run.fields["holdout_score"]["private"] is False
    assert f"AUC {run.fields['holdout_score']['AUC']['value']:.3f}" in run.statement
    assert run.fields["verdict"] == "private"  # the rows of the score were declared public
    assert "test.csv" in run.fields["holdout_score"]["how"]
    assert "score" not in [one["purpose"] for one in run.fields["sessions"]]
    assert any("outside the guarantee" in caveat for caveat in run.fields["caveats"])
    with pytest.raises(ValueError, match="test_file: data must be a file that exists"):
        train_table(settings(test_file="nowhere.csv", output="other"))


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (r"\1.", "400 of 400 targets in column 'label' are none of the classes .*: 'no.', 'yes.'"),
        ("", "no row has a target in column 'label'"),
    ],
    ids=["other labels", "no labels"],
)
def test_a_test_file_that_scores_nothing_stops_before_the_training(settings, table, label, words) -> None:
    """UCI's own test file of Adult ends each label with a full stop; once it is mended, nothing is bought again."""
    test, text = Path("test.csv"), table.read_text()
    test.write_text(re.sub(r"(?m),(yes|no)$", f",{label}", text))
    with pytest.raises(tacita.TacitaError, match=f"{words}. Stopped before the training; .* repeat the same command"):
        train_table(settings(test_file="test.csv"))
    bought = Path("run/preprocessing.json").read_bytes()
    test.write_text(text)
    assert train_table(settings(test_file="test.csv")).fields["queries_made"] == 4
    assert Path("run/preprocessing.json").read_bytes() == bought


def test_labels_of_a_test_file_that_are_no_classes_are_said(settings, table) -> None:
    said: list[str] = []
    Path("test.csv").write_text(re.sub(r"(?m),yes$", ",maybe", table.read_text()))
    train_table(settings(test_file="test.csv"), say=said.append)
    (words,) = (line for line in said if line.startswith("test_file: "))
    assert words.endswith(": 'maybe'. Each counts as wrong")


def test_a_score_outside_the_guarantee_is_repeated_in_the_statement(settings, table) -> None:
    run = train_table(settings(non_private_holdout=True))
    assert "--non-private-holdout" in run.fields["holdout_score"]["how"]
    assert any("--non-private-holdout" in caveat for caveat in run.fields["caveats"])
    assert run.fields["verdict"] == "private model, exact score"
    assert run.statement.startswith("EXACT SCORE: the held-out score was computed without noise on private rows.")
    assert check_run(run.folder).faults == ()


def test_everything_declared_buys_nothing_but_the_score(settings, table) -> None:
    Path("schema.toml").write_text(SCHEMA)
    run = train_table(settings(schema="schema.toml", drop=()))
    assert [one["session"] for one in run.fields["purchases"]] == ["score"]
    assert run.fields["rows"] == {"value": 400.0, "how": "declared"}


def test_persons(settings, table) -> None:
    run = train_table(settings(unit_column="patient", max_rows_per_unit=2, drop=()))
    assert "Poisson" in run.fields["sampler"]
    assert "patient" in run.fields["privacy_unit"]
    assert not any("--unit-column" in caveat for caveat in run.fields["caveats"])
    assert "patient" not in tacita.load("run").encoder.columns()


class Watch:
    """What each stage of a run got to see."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: dict[str, Any] = {}
        self._wrap(monkeypatch, TablePurchases, "survey", lambda purchases, *_: purchases.table)
        self._wrap(monkeypatch, oracle_module, "ClippedGradientOracle", lambda model, loss, records, **_: records)
        self._wrap(monkeypatch, task_module.score, "_answers", lambda rows: rows)
        self.held, self.kept = np.zeros((2, 400), bool)  # which rows went into which file
        append = EncodedFile.append

        def watched(file: Any, encoded: Any, rows: np.ndarray) -> None:
            self.held, self.kept = self.kept, rows & encoded.valid.numpy()
            append(file, encoded, rows)

        monkeypatch.setattr(EncodedFile, "append", watched)

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, pick: Callable[..., Any]) -> None:
        real = getattr(module, name)

        def watched(*arguments: Any, **more: Any) -> Any:
            self.seen[name] = pick(*arguments, **more)
            return real(*arguments, **more)

        monkeypatch.setattr(module, name, watched)


def test_training_and_score_see_different_persons_and_nobody_beyond_the_cap(settings, table, monkeypatch) -> None:
    watch = Watch(monkeypatch)
    train_table(settings(unit_column="patient", max_rows_per_unit=2, drop=()))
    surveyed, records = watch.seen["survey"], watch.seen["ClippedGradientOracle"]
    surveyed = surveyed.whole()
    codes, _ = surveyed.column("patient").texts()
    assert max(np.bincount(codes[surveyed.valid])) == 2
    trained, scored = np.flatnonzero(watch.kept), np.flatnonzero(watch.held)
    assert records.dataset.whole()[2].sum() == len(trained)
    assert watch.seen["_answers"].valid.sum() == len(scored) > 0
    assert not set(codes[trained]) & set(codes[scored])
    assert sorted([*trained, *scored]) == np.flatnonzero(surveyed.valid).tolist()
    assert records.max_rows_per_unit == 2


def test_a_row_is_trained_on_or_scored(settings, table, monkeypatch) -> None:
    watch = Watch(monkeypatch)
    run = train_table(settings())
    records, scored = watch.seen["ClippedGradientOracle"], watch.seen["_answers"]
    assert 10 < watch.held.sum() < 80  # 40 expected, standard deviation 6
    assert (watch.held ^ watch.kept).all()
    every = tacita.load("run").encoder.encode(read_table("table.csv")).features
    assert torch.equal(scored.features, every[watch.held])  # bit for bit what was never in a file
    assert torch.equal(records.dataset.whole()[0], every[watch.kept])
    assert [session["part"] and session["part"]["index"] for session in run.fields["sessions"]] == [
        *(None, None, None, 0, 1)
    ]


def test_what_is_bought_is_whole_numbers(settings, table) -> None:
    """Noise on a count shows the count in its low bits, unless it is rounded."""
    run = train_table(settings())
    survey = json.loads(Path("run/preprocessing.json").read_bytes())["survey"]
    counts = [survey["rows"]]
    for facts in survey["columns"]:
        counts += [facts["missing"], *(one["count"] for one in [*facts["bins"], *facts["fine"]])]
        counts += [one[1] for one in facts["values"]]
    assert len(counts) > 20
    assert all(count == int(count) for count in counts)
    assert run.fields["holdout_score"]["rows"] == int(run.fields["holdout_score"]["rows"])


def test_other_relations(settings, table) -> None:
    for relation in ("replace_one", "zero_out_one"):
        run = train_table(settings(neighboring_relation=relation, output=relation))
        assert run.fields["neighboring_relation"] == relation
        assert run.fields["rows"] == {"value": 400.0, "how": "declared"}


@pytest.mark.parametrize("relation", ["replace_one", "zero_out_one"])
def test_a_public_count_of_zero_is_named(settings, table, relation: str) -> None:
    np.savez("table.npz", image=np.zeros((0, 3, 3), np.uint8), digit=np.arange(0))
    asked = settings(data="table.npz", target="digit", drop=(), classes=("0", "1"), neighboring_relation=relation)
    with pytest.raises(tacita.DataStructureError, match="must have a row to train on"):
        train_table(asked)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_an_array_column_of_any_length_trains(settings, table, rows: int) -> None:
    """Under add_or_remove_one the outcome does not tell whether there is a row."""
    np.savez("table.npz", image=np.zeros((rows, 3, 3), np.uint8), digit=np.arange(rows) % 2)
    run = train_table(settings(data="table.npz", target="digit", drop=(), classes=("0", "1")))
    assert run.fields["queries_made"] == 4


HOSTILE = {
    "no rows": [],
    "one row": ["1.0,2,red,p1,yes"],
    "one class": [f"{i / 7},{i},red,p{i},yes" for i in range(300)],
    "all missing": [",,,,"] * 50,
    "half of the wrong width": ["1,2", "1.0,2,red,p1,yes"] * 50,
    "constant": ["1.0,2,red,p1,yes"] * 300,
    "overflow": ["1e999,-1e999,red,p1,yes"] * 100,
    "huge and tiny": ["1e308,-1e308,red,p1,yes", "1e-308,5e-324,blue,p1,no"] * 200,
    "every text new": [f"a{i},b{i},c{i},d{i},e{i}" for i in range(200)],
}


@pytest.mark.parametrize("target", ["label", "x"])
@pytest.mark.parametrize("name", HOSTILE)
def test_what_rows_hold_raises_nothing_else(settings, table, name: str, target: str, capsys) -> None:
    table.write_text("x,y,kind,patient,label\n" + "".join(row + "\n" for row in HOSTILE[name]))
    try:
        run = train_table(settings(target=target))
    except tacita.TacitaError as error:  # by what was bought, and before the training
        if not str(error).startswith("nothing to train on: "):
            raise
        return
    assert run.fields["epsilon"] <= 20.0
    predicted = tacita.load("run").predict({"x": [1.0], "y": [1], "kind": ["red"], "label": ["yes"]})
    assert len(predicted) == 1
    assert capsys.readouterr() == ("", "")
    weights = {name: value.isfinite().all().item() for name, value in tacita.load("run").model.state_dict().items()}
    assert all(weights.values())


class Killed(BaseException):
    """Not an Exception: nothing tidies up after it."""


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Stop the process at the n-th time that it puts something on disk."""
    fsync = os.fsync

    def arm(number: int) -> list[int]:
        count = [0]

        def counting(handle: int) -> None:
            count[0] += 1
            if count[0] == number:
                raise Killed
            fsync(handle)

        monkeypatch.setattr(os, "fsync", counting)
        return count

    return arm


def test_killed_anywhere_it_goes_on_to_the_same_bits(settings, table, kill_at) -> None:
    count = kill_at(0)
    train_table(settings(output="whole"), randomness=Randomness.insecure(0))
    whole, total = _released("whole"), count[0]
    assert total > 30
    for number in range(1, total + 1, 1 if os.environ.get("TACITA_AUDIT") else 8):
        Path("tacita-runs.jsonl").unlink()  # one seed, one name: else it is there already
        kill_at(number)
        chosen = settings(output=f"killed{number}")
        with pytest.raises(Killed):
            train_table(chosen, randomness=Randomness.insecure(0))
        kill_at(0)
        run = train_table(chosen, randomness=Randomness.insecure(0))
        assert _released(chosen.output) == whole, number
        assert check_run(chosen.output).faults == (), number
        assert run.fields["queries_made"] == 4
        assert {path.name for path in Path(chosen.output).iterdir()} == RUN_FILES, number


def _released(folder: str) -> tuple[bytes, bytes, Any]:
    run = Path(folder)
    score = json.loads((run / "statement.json").read_bytes())["holdout_score"]
    return (run / "model.safetensors").read_bytes(), (run / "preprocessing.json").read_bytes(), score


def _stopped_run(settings: Any, kill_at: Any, **changes: Any) -> TableSettings:
    """A run that stands still in the middle of its training."""
    kill_at(70)
    chosen = settings(**changes)
    with pytest.raises(Killed):
        train_table(chosen)
    kill_at(0)
    assert {"key.json", "checkpoint.safetensors"} <= {path.name for path in Path(chosen.output, "private").iterdir()}
    return chosen


def test_a_stopped_run_is_private_to_its_owner(settings, table, kill_at) -> None:
    _stopped_run(settings, kill_at)
    assert stat.S_IMODE(Path("run/private").stat().st_mode) == 0o700
    for path in Path("run/private").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_other_settings_or_data_do_not_continue_a_run(settings, table, kill_at) -> None:
    _stopped_run(settings, kill_at)
    with pytest.raises(ResumeError, match="unfinished run with other settings"):
        train_table(settings(max_grad_norm=1.0))
    text = table.read_text()
    table.write_text(text + "1.0,2,red,p1,yes\n")
    with pytest.raises(ResumeError, match="data or schema are not those"):
        train_table(settings())
    table.write_text(text)
    assert train_table(settings()).fields["queries_made"] == 4


def test_another_ledger_does_not_continue_a_run(settings, table, kill_at) -> None:
    _stopped_run(settings, kill_at)
    path = Path("run/ledger.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"purpose":"train"', b'"purpose":"trade"'))
    with pytest.raises(tacita.LedgerError):
        train_table(settings())
    for refused, says in ((tacita.ResumeError, r"ledger\.jsonl .* is missing"), (tacita.LedgerError, "does not match")):
        for gone in (path, Path("run/ledger.head.json")):
            gone.unlink(missing_ok=True)
        with pytest.raises(refused, match=says):
            train_table(settings())
        Path("run/private/checkpoint.safetensors").unlink(
            missing_ok=True
        )  # what was bought tells, too, that the ledger is another one
    for gone in (path, Path("run/ledger.head.json")):
        gone.unlink()
    path.write_bytes(whole)
    with pytest.raises(tacita.TacitaError):
        train_table(settings())


@pytest.mark.parametrize("number", [3, 12, 30, 70])
def test_a_full_disk_loses_nothing(settings, table, monkeypatch, number: int) -> None:
    fsync, count = os.fsync, [0]

    def full(handle: int) -> None:
        count[0] += 1
        if count[0] >= number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((OSError, tacita.LedgerError), match=r"No space left|disk"):
        train_table(settings())
    monkeypatch.setattr(os, "fsync", fsync)
    assert train_table(settings()).fields["queries_made"] == 4
    assert check_run("run").faults == ()


def test_a_row_that_does_not_count_moves_no_weight(settings, table) -> None:
    """Wrong width, unknown label: with the same coins, a run without noise ends in the same weights."""
    records = task_module.TableTask.records
    seen = []

    def watch(self: Any, *arguments: Any) -> Any:
        seen.append(records(self, *arguments))
        return seen[-1]

    text = table.read_text()
    table.write_text(text + "1.0,2\n" + "1.0,2,red,p1,perhaps\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_module.TableTask, "records", watch)
        train_table(settings(test_file="table.csv"))
    features, target, weight = seen[0].dataset.whole()
    assert len(weight) == 401  # a row of the wrong width has no place
    assert weight[-1] == 0.0
    assert weight[:-1].sum() == 400
    model = nn.Linear(features.shape[1], 2)
    losses = tacita.tables.models.loss_fn("classification")(model, (features, target, weight))
    assert losses[-1] == 0.0
    assert torch.isfinite(losses).all()


def test_a_model_that_mixes_rows_is_named_and_mended_without_buying_again(settings, own_model, monkeypatch) -> None:
    path = Path("own_net.py")
    sound = path.read_text()
    path.write_text(sound.replace("LayerNorm", "BatchNorm1d"))
    with pytest.raises(tacita.UnsupportedModuleError, match="BatchNorm1d"):
        train_table(settings(model=own_model))
    bought = Path("run/preprocessing.json").read_bytes()
    path.write_text(sound)
    del sys.modules["own_net"]
    importlib.invalidate_caches()
    run = train_table(settings(model=own_model))
    assert Path("run/preprocessing.json").read_bytes() == bought
    assert [one["queries_spent"] for one in run.fields["sessions"]] == [1, 1, 1, 4, 1]
